"""Formulas of the seconds of a step: Optimus', and the throughput model of Pollux and Sia.

Optimus' speed model: seconds of a synchronous step, by non-negative least squares.

    seconds = θ0 · batch / workers + θ1 + θ2 · workers

Source: Peng et al., Optimus, EuroSys 2018, §3.2, equation 4, and its published estimator.
Deviations: parameter servers are as many as workers and beside them, as with all-reduce, so the terms in
workers over servers and in servers fall into θ1 and θ2. Rows are weighted by 1 / seconds, so relative errors
count.

Pollux's throughput model as a performance model: seconds of a step by nodes, GPUs and local batch.

Source: see `trimtab.training.throughput_model`, which fits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import nnls

from trimtab.domain.training_jobs import Floats
from trimtab.training.performance.profiled_runs import Samples
from trimtab.training.throughput_model import fit_throughput, step_seconds


@dataclass(frozen=True)
class OptimusSpeed:
    """One fit for each group of rows."""

    name: ClassVar[str] = "optimus-speed"
    groups: tuple[str, ...] = ("curve",)

    def fit(self, samples: Samples) -> SpeedFits:
        """Fit every group."""
        fits = {}
        for key, group in samples.by_group(*self.groups):
            weight = 1.0 / group.seconds
            terms = _terms(group) * weight[:, None]
            fits[key] = nnls(terms, np.ones(len(group)))[0]
        return SpeedFits(self, fits)


@dataclass(frozen=True)
class SpeedFits:
    """θ of each group."""

    model: OptimusSpeed
    theta: dict[tuple[object, ...], Floats]

    def seconds(self, samples: Samples) -> Floats:
        """By the fit of each row's group; nan for a group without one."""
        keys = samples.rows_of(*self.model.groups)
        unknown = np.full(3, np.nan)
        theta = np.array([self.theta.get(key, unknown) for key in keys]).reshape(-1, 3)
        return np.asarray((_terms(samples) * theta).sum(axis=1), np.float64)


def _terms(samples: Samples) -> Floats:
    workers = np.asarray(samples.columns["gpus"], np.float64)
    batch = np.asarray(samples.columns["batch"], np.float64)
    return np.column_stack([batch / workers, np.ones(len(workers)), workers])


@dataclass(frozen=True)
class PolluxThroughput:
    """One fit for each group; the column `grad_s` has the seconds of a step without synchronisation."""

    name: ClassVar[str] = "pollux-throughput"
    groups: tuple[str, ...] = ("curve",)

    def fit(self, samples: Samples) -> ThroughputFits:
        """Fit every group."""
        fits = {}
        for key, group in samples.by_group(*self.groups):
            nodes, gpus, local, grad_s = (
                np.asarray(group.columns[name], np.float64)
                for name in ("nodes", "gpus", "local_batch", "grad_s")
            )
            fits[key] = fit_throughput(nodes, gpus, local, grad_s, group.seconds)
        return ThroughputFits(self, fits)


@dataclass(frozen=True)
class ThroughputFits:
    """Parameters of each group."""

    model: PolluxThroughput
    parameters: dict[tuple[object, ...], Floats]

    def seconds(self, samples: Samples) -> Floats:
        """By the fit of each row's group; nan for a group without one."""
        found = np.full(len(samples), np.nan)
        for i, key in enumerate(samples.rows_of(*self.model.groups)):
            if key in self.parameters:
                nodes, gpus, local = (samples.columns[name][i] for name in ("nodes", "gpus", "local_batch"))
                found[i] = step_seconds(self.parameters[key], nodes, gpus, local)
        return found
