"""What jobs ask of nodes besides GPUs: partitions, labels, CPUs and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class JobAsk:
    """What a job asks of its nodes."""

    partitions: tuple[str, ...] = ()  # one of them; empty = any
    labels: tuple[str, ...] = ()  # all of them
    cpus_per_gpu: float = 0.0
    memory_gib_per_gpu: float = 0.0

    def __str__(self) -> str:
        """In words."""
        parts = [f"partition {' or '.join(self.partitions)}"] if self.partitions else []
        parts += [f"labels {', '.join(self.labels)}"] if self.labels else []
        parts += [f"{self.cpus_per_gpu:g} CPUs a GPU"] if self.cpus_per_gpu else []
        parts += [f"{self.memory_gib_per_gpu:g} GiB a GPU"] if self.memory_gib_per_gpu else []
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node has."""

    partitions: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    cpus: float = math.inf  # inf = it says none: any number
    memory_gib: float = math.inf

    def takes(self, ask: JobAsk) -> bool:
        """Whether it is a node for such a job."""
        in_one = not ask.partitions or not self.partitions.isdisjoint(ask.partitions)
        return in_one and self.labels.issuperset(ask.labels)


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """Where each job may run, and what is there.

    Attributes:
        allowed: [jobs, nodes] whether it is a node for such a job.
        asks: [jobs, 2] CPUs, and GiB of memory, of each of its GPUs.
        room: [nodes, 2] CPUs, and GiB of memory; inf = any number.
    """

    allowed: Flags
    asks: Floats
    room: Floats

    def of(self, rows: Ints) -> JobPlaces:
        """Of these jobs."""
        return JobPlaces(self.allowed[rows], self.asks[rows], self.room)

    @property
    def is_tight(self) -> bool:
        """Whether GPUs may be free that a job cannot use, on nodes where it is allowed."""
        return bool(self.asks.any() and np.isfinite(self.room).any())

    def usable(self, row: int, free: Ints, room: Floats) -> Ints:
        """GPUs of the free ones on each node, [nodes], that a job could use with what is in `room`."""
        counts = np.where(self.allowed[row], free, 0).astype(np.int64)
        for k in np.flatnonzero(self.asks[row] > 0):
            fit = np.floor(np.maximum(room[:, k], 0.0) / self.asks[row, k] + 1e-9)
            counts = np.minimum(counts, np.where(np.isfinite(fit), fit, counts)).astype(np.int64)
        return counts

    def left(self, gpus: NDArray[Any]) -> Floats:
        """Room beside jobs that hold these GPUs, [jobs, nodes]; [nodes, 2]."""
        with np.errstate(invalid="ignore"):
            taken = [(gpus * self.asks[:, [k]]).sum(axis=0) for k in range(self.asks.shape[1])]
            return self.room - np.stack(taken, axis=1)

    def most(self, gpus: Ints) -> Ints:
        """GPUs that each job could have of empty nodes with so many, [jobs]."""
        rows = range(len(self.asks))
        return np.array([self.usable(row, gpus, self.room).sum() for row in rows], np.int64)


def misfit(ask: JobAsk, wanted: int, most: int) -> str:
    """Why a job can never run that wants so many GPUs, where it could have so many at most; in words."""
    if most == 0:
        return f"no node has {ask}"
    return f"wants {wanted} GPUs with {ask}; the nodes have {most} at most"


def places_of(asks: Sequence[JobAsk], offers: Sequence[NodeOffer]) -> JobPlaces | None:
    """Where jobs may run; None = everywhere, for none asks for more than GPUs."""
    kinds = {ask: np.array([offer.takes(ask) for offer in offers], np.bool_) for ask in set(asks)}
    wanted = np.array([(ask.cpus_per_gpu, ask.memory_gib_per_gpu) for ask in asks], np.float64).reshape(-1, 2)
    room = np.array([(offer.cpus, offer.memory_gib) for offer in offers], np.float64).reshape(-1, 2)
    places = JobPlaces(np.array([kinds[ask] for ask in asks]).reshape(len(asks), -1), wanted, room)
    return None if places.allowed.all() and not places.is_tight else places
