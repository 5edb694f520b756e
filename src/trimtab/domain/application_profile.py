"""Measured behaviour of applications that adapt their batch: step times and gradient noise. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trimtab.domain.training_jobs import Floats


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
