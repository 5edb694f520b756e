"""Gandiva: jobs of one size share sets of nodes, and take turns there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.parameters import Positive
from trimtab.domain.training_jobs import GpuCluster, Records

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 88, 128, 256)


@dataclass(eq=False)
class NodeSet:
    """Nodes that jobs of one size share. The first jobs run, as many as fit at once."""

    nodes: list[int]
    at_once: int
    jobs: list[int] = field(default_factory=list)  # job_idx, the running ones first
    load: int = 0  # jobs that were given to it


@dataclass
class NodeSets:
    """The state of a run: the sets of each size, least loaded first, free nodes and waiting jobs."""

    sets: dict[int, list[NodeSet]]
    free: list[int]
    pending: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)  # nodes that failed or were drained


@dataclass(frozen=True)
class Gandiva(Allocator):
    """Time slicing within sets of nodes, one size of jobs to a set; the sets grow and shrink with demand.

    Idea
        Nodes belong to sets, each for jobs of one number of GPUs. Each size gets GPUs in proportion to its
        demand. A new job joins the least loaded set of its size. Where more jobs share a set than fit, they
        take turns.
    Source
        Xiao et al., Gandiva: Introspective Cluster Scheduling for Deep Learning, OSDI 2018, §3, as in
        the simulators of Tiresias (NSDI 2019) and ElasticFlow (ASPLOS 2023).
    Reads
        gpus_requested.
    Cost
        O(jobs + nodes) a decision.
    When it wins / loses
        All jobs progress from the start, so short jobs end early without anyone knowing that they are short.
        Under overload every job is slow, and few meet a deadline. Every turn costs a switch.
    Deviations from the source
        Packing two jobs on one GPU, migration and growing are not part of this version. As the simulators do,
        a set takes new jobs up to one less than fit at once before new nodes are used; its load does not fall
        when jobs end; turns change only where the time is a multiple of `quantum_s`. Nodes are alike.
        Sets that lose a node are dissolved, and their jobs placed anew.
    """

    name: ClassVar[str] = "gandiva"
    places: ClassVar[bool] = True
    whole_nodes: ClassVar[bool] = True
    clock: ClassVar[str] = "arrivals(slot_s=60)"
    quantum_s: Positive = 60.0

    def init(self, cluster: GpuCluster, n_jobs: int) -> NodeSets:
        """All nodes are free."""
        return NodeSets({size: [] for size in SIZES}, list(range(len(cluster.nodes))))

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: NodeSets
    ) -> Allocation:
        """Take turns, let go of what ended, place new jobs, and balance the sizes."""
        row_of = {int(j): i for i, j in enumerate(jobs["job_idx"])}
        width = cluster.gpus_per_node
        released = self._end_turn(memory, row_of.keys(), now_s)
        released |= _leave_down(memory, cluster.nodes["up"].tolist())
        sizes = jobs["gpus_requested"]
        known = {*memory.pending, *(j for sets in memory.sets.values() for each in sets for j in each.jobs)}
        for row, job in enumerate(jobs["job_idx"].tolist()):
            if job not in known and not _placed(memory, job, int(sizes[row]), width):
                memory.pending.append(job)
        if released:
            _retry(memory, row_of, sizes, width)
        _balance(memory, width, len(cluster.nodes) * width)
        gpus = np.zeros((len(jobs), len(cluster.nodes)), np.int64)
        for size, sets in memory.sets.items():
            for each in sets:
                for k, job in enumerate(each.jobs[: each.at_once]):
                    _take(gpus[row_of[job]], each, size, width, k)
        return Allocation(gpus=gpus)

    def _end_turn(self, memory: NodeSets, active: Iterable[int], now_s: float) -> bool:
        active = set(active)
        rotates, released = int(now_s % self.quantum_s) == 0, False
        for sets in memory.sets.values():
            for each in list(sets):
                if rotates and len(each.jobs) > each.at_once:
                    each.jobs = each.jobs[each.at_once :] + each.jobs[: each.at_once]
                each.jobs = [j for j in each.jobs if j in active]
                if not each.jobs:
                    memory.free += each.nodes
                    sets.remove(each)
                    released = True
        return released


def _leave_down(memory: NodeSets, up: list[bool]) -> bool:
    """Nodes that are down belong to no set; their jobs are placed anew. Returns whether nodes became free."""
    if all(up) and not memory.down:
        return False
    for sets in memory.sets.values():
        for each in [s for s in sets if not all(up[j] for j in s.nodes)]:
            sets.remove(each)
            memory.free += each.nodes
            memory.pending += each.jobs
    nodes = memory.free + memory.down
    memory.free, memory.down = [j for j in nodes if up[j]], [j for j in nodes if not up[j]]
    return True


def _take(row: Any, each: NodeSet, size: int, width: int, k: int) -> None:
    """GPUs of the k-th running job of a set: parts of one node, or all of its nodes."""
    if size <= width:
        row[each.nodes[0]] = size
        return
    for node in each.nodes:
        row[node] = min(width, size)
        size -= int(row[node])


def _retry(memory: NodeSets, row_of: dict[int, int], sizes: Any, width: int) -> None:
    """Offer the freed nodes to waiting jobs. One that starts makes the next one be passed over."""
    i = 0
    while i < len(memory.pending):
        job = memory.pending[i]
        if _placed(memory, job, int(sizes[row_of[job]]), width):
            memory.pending.remove(job)  # the next job moves up to here, and the step passes it
        i += 1


def _placed(memory: NodeSets, job: int, size: int, width: int) -> bool:
    sets = memory.sets.setdefault(size, [])
    if sets and sets[0].load + 1 < sets[0].at_once:
        _join(sets, job)
        return True
    if sets:
        sets.append(sets.pop(0))  # the simulators put it back last, unsorted
    if (new := _new_set(memory, size, width)) is not None:
        new.jobs, new.load = [job], 1
        sets.append(new)
        sets.sort(key=_load)
        return True
    if sets:
        _join(sets, job)
    return bool(sets)


def _join(sets: list[NodeSet], job: int) -> None:
    each = sets.pop(0)
    each.jobs.append(job)
    each.load += 1
    sets.append(each)
    sets.sort(key=_load)


def _load(each: NodeSet) -> int:
    return each.load


def _new_set(memory: NodeSets, size: int, width: int) -> NodeSet | None:
    n = math.ceil(size / width)
    if n > len(memory.free):
        return None
    nodes, memory.free = memory.free[:n], memory.free[n:]
    return NodeSet(nodes, n * width // size)


def _balance(memory: NodeSets, width: int, n_gpus: int) -> None:
    demand = {size: sum(len(s.jobs) for s in sets) * size for size, sets in memory.sets.items()}
    has = {size: sum(len(s.nodes) for s in sets) * width for size, sets in memory.sets.items()}
    total = sum(demand.values())
    for size, sets in memory.sets.items():
        if demand[size]:
            target = min(math.floor(demand[size] / total * n_gpus), demand[size])
            if target > has[size]:
                _expand(memory, sets, size, width, math.ceil((target - has[size]) / size))
            elif target < has[size]:
                _shrink(memory, sets, math.ceil((has[size] - target) / size))


def _expand(memory: NodeSets, sets: list[NodeSet], size: int, width: int, count: int) -> None:
    """Add sets, and deal the jobs out anew if one could not be added or a set has several nodes."""
    was_made = False
    for _ in range(count):
        new = _new_set(memory, size, width)
        was_made = new is not None
        sets += [new] if new is not None else []
    if was_made and math.ceil(size / width) == 1:
        return
    jobs = [job for each in sets for job in each.jobs]
    for each in sets:
        each.jobs, each.load = [], 0
    _deal(sets, jobs)


def _shrink(memory: NodeSets, sets: list[NodeSet], count: int) -> None:
    """Dissolve the least loaded sets, never the last one."""
    count = min(count, len(sets) - 1)
    gone, sets[:count] = sets[:count], []
    for each in gone:
        memory.free += each.nodes
    _deal(sets, [job for each in gone for job in each.jobs])


def _deal(sets: list[NodeSet], jobs: list[int]) -> None:
    for job in jobs:
        sets[0].jobs.append(job)
        sets[0].load += 1
        sets.sort(key=_load)
