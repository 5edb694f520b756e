"""Measured behaviour of training jobs: step times, gradient noise, speed by GPUs. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.training_jobs import Floats, Ints


@dataclass(frozen=True)
class StepMeasurements:
    """Measured seconds of a training step on one type of GPU, and of the synchronisation in it."""

    placements: dict[tuple[int, ...], tuple[Floats, Floats]]  # GPUs on each node → local batch, times [·, 2]
    scaled: Floats  # [rows, 3] nodes, GPUs, local batch of larger runs
    scaled_times: Floats  # [rows, 2]


@dataclass(frozen=True)
class ApplicationProfile:
    """One application. Progress counts iterations at the initial batch, corrected for gradient noise."""

    name: str
    steps: tuple[StepMeasurements, ...]  # [types]
    batches: Floats  # [batches] measured global batches, ascending
    progress: Floats  # [epochs] at the end of each epoch
    iterations: Floats  # [batches, epochs] done at the end of each epoch
    grad_sqr: Floats  # [batches, epochs] squared norm of the gradient
    grad_var: Floats  # [batches, epochs] its variance
    loss: (
        Floats  # [batches, epochs] validation error at the end of each epoch, as a fraction; lower is better
    )
    min_local: Floats  # [types] least local batch
    max_local: Floats  # [types] largest one that fits
    gpus_max: int  # most GPUs that were measured, or may be used
    agent_batch: float = 0.0  # the batch at which its agent always trains; 0 = it adapts the batch

    @property
    def init_batch(self) -> float:
        """The batch for which progress counts iterations."""
        return float(self.batches[0])

    @property
    def max_batch(self) -> float:
        """The largest batch that still converges."""
        return float(self.batches[-1])

    @property
    def epochs(self) -> int:
        """Epochs to the end."""
        return len(self.progress)

    @cached_property
    def node_gpus(self) -> int:
        """GPUs of a node on which it was measured."""
        return max(max(placement) for step in self.steps for placement in step.placements)


@dataclass(frozen=True)
class ScalingTable:
    """Measured curves of speed against number of GPUs. Curves need not be monotone."""

    levels: Ints  # [levels] numbers of GPUs, ascending
    curve_names: tuple[str, ...]  # [curves] for messages
    rate_per_s: Floats  # [types, curves, levels] work per second; 0 = it can't run so
    curve_idx: Ints  # [models, batches]; -1 = not measured
    batches: Floats  # [batches] ascending

    def curves_of(self, model_idx: Ints, batch: Floats) -> Ints:
        """The curve of each job; -1 = not measured."""
        at = np.searchsorted(self.batches, batch)
        at = np.minimum(at, len(self.batches) - 1)
        return np.where(self.batches[at] == batch, self.curve_idx[model_idx, at], -1)

    def rates(self, curve: Ints, type_idx: Ints, gpus: Ints) -> Floats:
        """Work per second; linear between two measured levels, 0 beyond the last one or where unmeasured."""
        columns = np.asarray(curve, np.int64), np.asarray(type_idx, np.int64), np.asarray(gpus, np.float64)
        shape = columns[0].shape
        if not shape == columns[1].shape == columns[2].shape:
            columns = np.broadcast_arrays(*columns)  # type: ignore[assignment]
            shape = columns[0].shape
        flat = (np.ascontiguousarray(column).ravel() for column in columns)
        found: Floats = rates_between(self.levels, self.rate_per_s, *flat)
        return found.reshape(shape)

    def joined(self, other: ScalingTable) -> ScalingTable:
        """Both tables, the other one's models behind these. Speeds between levels stay what they were."""
        levels, batches = np.union1d(self.levels, other.levels), np.union1d(self.batches, other.batches)
        models = len(self.curve_idx), len(other.curve_idx)
        curve_idx = np.full((sum(models), len(batches)), -1, np.int64)
        curve_idx[: models[0], np.searchsorted(batches, self.batches)] = self.curve_idx
        moved = np.where(other.curve_idx >= 0, other.curve_idx + len(self.curve_names), -1)
        curve_idx[models[0] :, np.searchsorted(batches, other.batches)] = moved
        rate = np.concatenate([self._at(levels), other._at(levels)], axis=1)
        return ScalingTable(levels, self.curve_names + other.curve_names, rate, curve_idx, batches)

    def _at(self, levels: Ints) -> Floats:
        """Speeds at these levels, [types, curves, levels]."""
        types, curves = np.arange(len(self.rate_per_s)), np.arange(len(self.curve_names))
        return self.rates(curves[:, None], types[:, None, None], levels)


@kernel
def rates_between(levels: Any, rate_per_s: Any, curve: Any, type_idx: Any, gpus: Any) -> Any:
    """As `ScalingTable.rates`, of flat columns."""
    found = np.zeros(len(gpus))
    top = len(levels) - 1
    for i in range(len(gpus)):
        n = gpus[i]
        if levels[0] <= n <= levels[top]:
            low = np.searchsorted(levels, n, side="right") - 1
            left = rate_per_s[type_idx[i], curve[i], low]
            found[i] = left
            if n > levels[low]:
                right = rate_per_s[type_idx[i], curve[i], low + 1]
                part = (n - levels[low]) / (levels[low + 1] - levels[low])
                found[i] = left + part * (right - left) if left > 0 and right > 0 else 0.0
    return found
