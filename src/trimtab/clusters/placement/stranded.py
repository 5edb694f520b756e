"""GPU capacity that is free, yet of no use to the next workload: fragments as in `fragmentation-gradient`."""

from __future__ import annotations

from collections import Counter
from typing import Final, Generic

import numpy as np

from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY, WHOLE_GPU, Ledger, NodeT, Workload, WorkloadT
from trimtab.compiled.kernel import interpreted
from trimtab.policies.resource_aware.fragmentation_gradient import fragment_memory, fragments

_COUNTED: Final = 2  # position of GPUs among the resources
_KINDS: Final = 64  # the most frequent ones

_fragments = interpreted(fragments)
Kind = tuple[float, float, float, int]  # cores, GiB, thousandths of each GPU, GPUs


class Stranded(Generic[NodeT, WorkloadT]):
    """Thousandths of GPUs per node that a workload, drawn as its like came, is expected not to use."""

    def __init__(self, ledger: Ledger[NodeT, WorkloadT]) -> None:
        self._ledger = ledger
        self._kinds: Counter[Kind] = Counter()

    def note(self, workload: Workload) -> None:
        """A workload of a kind came."""
        self._kinds[_kind(workload)] += 1

    def growth(self, workload: Workload, j: int) -> float:
        """By how much a workload would make the fragments of node j grow."""
        kinds = dict(self._kinds.most_common(_KINDS)) or {_kind(workload): 1}
        before = self._of(j, kinds, self._left(j), self._devices(j))
        cores, gib, ask, many = _kind(workload)
        left, devices = self._left(j), self._devices(j)
        left[:2] -= cores, gib
        for d in _taken(devices, ask, many):
            devices[d] -= ask
        return self._of(j, kinds, left, devices) - before

    def total(self) -> float:
        """Of all nodes."""
        kinds = dict(self._kinds.most_common(_KINDS))
        many = range(len(self._ledger.nodes))
        return sum(self._of(j, kinds, self._left(j), self._devices(j)) for j in many) if kinds else 0.0

    def _left(self, j: int) -> np.ndarray:
        ledger = self._ledger
        return np.array([ledger.left(CPU)[j] / 1000.0, ledger.left(MEMORY)[j] / GIB])

    def _devices(self, j: int) -> list[float]:
        name = self._ledger.nodes[j].name
        if left := self._ledger.devices_left(name):
            return [float(each) for each in left]
        names, node = self._ledger.resources.gpus, self._ledger.nodes[j]
        free = sum(int(self._ledger.left(name)[j]) for name in names)
        gpus = sum(node.allocatable.get(name, 0) for name in names)
        return [float(WHOLE_GPU) if d < free else 0.0 for d in range(gpus)]

    def _of(self, j: int, kinds: dict[Kind, int], left: np.ndarray, devices: list[float]) -> float:
        demand = np.array([kind[:3] for kind in kinds])
        memory = fragment_memory(
            _COUNTED, [kind[3] for kind in kinds], [float(n) for n in kinds.values()], 3, len(devices)
        )
        first = len(kinds)
        memory.floats[first : first + 2] = left
        memory.floats[first + 2] = sum(devices)
        memory.floats[first + 3 :] = devices
        return float(_fragments(demand, np.zeros((first, 1)), 0, len(devices), memory)) if devices else 0.0


def _kind(workload: Workload) -> Kind:
    cores, gib, milli = workload.demand
    if 0 < milli < WHOLE_GPU:
        return cores, gib, milli, 1
    return cores, gib, float(WHOLE_GPU) if milli else 0.0, workload.gpu_milli // WHOLE_GPU


def _taken(devices: list[float], ask: float, many: int) -> list[int]:
    """The fullest devices that have room."""
    able = sorted((d for d, left in enumerate(devices) if left >= ask > 0.0), key=devices.__getitem__)
    return able[:many]
