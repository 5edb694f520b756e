"""Pollux's throughput model as a performance model: seconds of a step by nodes, GPUs and local batch.

Source: see `trimtab.training.throughput_model`, which fits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.performance.samples import Samples
from trimtab.training.throughput_model import fit_throughput, step_seconds


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
