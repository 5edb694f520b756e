"""The answers of estimates of jobs without agents and without measured pairs."""

from __future__ import annotations

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints, Records


def equal_parts(jobs: Records, configs: Records) -> tuple[Floats, Ints]:
    """The batch that each job asked for, divided among its GPUs; no further passes."""
    local = jobs["batch"] / np.maximum(configs["gpus"], 1)
    return local, np.zeros(np.shape(local), np.int64)


def no_services(job_idx: Ints) -> tuple[Floats, Floats]:
    """The reports of jobs that are no services: load 0, slowdown 1."""
    return np.zeros(len(job_idx)), np.ones(len(job_idx))


def never_measured(jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
    """Speeds of two jobs on the same GPUs that were not measured: nan."""
    unknown = np.full(np.broadcast_shapes(jobs.shape, partners.shape, configs.shape), np.nan)
    return unknown, unknown
