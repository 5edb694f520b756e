"""Losses of jobs for allocators that read them: as reported, else an assumed curve."""

from __future__ import annotations

from typing import cast

import numpy as np

from trimtab.domain.allocator import JobNeed, Losses, LossSpeed, Speed
from trimtab.domain.training_jobs import Records

EPOCHS = 100  # of a job that reports none


def seen_losses(jobs: Records, speed: Speed) -> list[Losses]:
    """Of each job; 1 / (1 + 9 x) after the share x of its work for jobs that report none."""
    if JobNeed.LOSSES in speed.provides:
        return cast(LossSpeed, speed).losses(jobs)
    done = np.maximum(jobs["work_total"] - jobs["work_left"], 0.0).tolist()
    total = np.maximum(jobs["work_total"], 1e-12).tolist()
    return [_assumed(d, t) for d, t in zip(done, total, strict=True)]


def _assumed(done: float, total: float) -> Losses:
    part = np.arange(1, int(EPOCHS * done / total + 1e-9) + 1) / EPOCHS
    return Losses(total * part, 1.0 / (1.0 + 9.0 * part), done)
