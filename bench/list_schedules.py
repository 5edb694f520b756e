"""Static schedules of one graph of tasks on unequal processors: HEFT, CPOP and PEFT, as published.

All three rank the tasks, take them one by one in that order, and put each on a processor into the first gap
that is long enough. Data of an edge move when its tasks are on different processors; links are never shared.

Source: Haluk Topcuoglu, Salim Hariri, Min-You Wu: "Performance-effective and low-complexity task scheduling
for heterogeneous computing", IEEE Transactions on Parallel and Distributed Systems 13(3), 2002, §4 (HEFT,
CPOP); Hamid Arabnejad, Jorge Barbosa: "List scheduling algorithm for heterogeneous systems by an optimistic
cost table", IEEE Transactions on Parallel and Distributed Systems 25(3), 2014, §4 (PEFT). From memory; the
examples of both papers are tests, and their tables were compared with public implementations.
Cost: O(edges · processors + tasks² · processors); PEFT O(edges · processors²).
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.validation.names import require

Floats: TypeAlias = NDArray[np.float64]
Edge: TypeAlias = tuple[int, int, float]


class ListMethod(StrEnum):
    """How tasks are ranked and placed."""

    HEFT = "heft"
    CPOP = "cpop"
    PEFT = "peft"


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Tasks, and the mean seconds that the data of each edge take between two processors."""

    n_tasks: int
    edges: tuple[Edge, ...]  # task before, task after, seconds

    def predecessors(self) -> list[list[tuple[int, float]]]:
        """The tasks before each task, with seconds."""
        return self._neighbours(1, 0)

    def successors(self) -> list[list[tuple[int, float]]]:
        """The tasks after each task, with seconds."""
        return self._neighbours(0, 1)

    def _neighbours(self, at: int, other: int) -> list[list[tuple[int, float]]]:
        found: list[list[tuple[int, float]]] = [[] for _ in range(self.n_tasks)]
        for edge in self.edges:
            found[int(edge[at])].append((int(edge[other]), edge[2]))
        return found

    def in_order(self) -> list[int]:
        """Tasks, each after all that it reads. Raises UsageError for a cycle."""
        after, waits = self.successors(), [len(before) for before in self.predecessors()]
        order = [task for task in range(self.n_tasks) if waits[task] == 0]
        for task in order:
            for following, _ in after[task]:
                waits[following] -= 1
                if waits[following] == 0:
                    order.append(following)
        require(len(order) == self.n_tasks, "edges", "a graph without cycles", value="a cycle")
        return order


@dataclass(frozen=True, slots=True, eq=False)
class ListSchedule:
    """Where and when each task runs."""

    processor: NDArray[np.int64]  # [tasks]
    start_s: Floats  # [tasks]
    finish_s: Floats  # [tasks]

    @property
    def makespan_s(self) -> float:
        """Last finish."""
        return float(self.finish_s.max())


def schedule(graph: TaskGraph, seconds: Floats, method: ListMethod | str = ListMethod.HEFT) -> ListSchedule:
    """Schedule the tasks; `seconds` [tasks, processors].

    Raises UsageError for tables that do not fit together, negative or infinite times, and a cycle.
    """
    _check(graph, seconds)
    method = ListMethod(method)
    if method is ListMethod.PEFT:
        table = optimistic_cost_s(graph, seconds)
        return _placed(graph, seconds, table.mean(axis=1), lambda task, finish_s: finish_s + table[task])
    upward_s = upward_rank_s(graph, seconds)
    if method is ListMethod.HEFT:
        return _placed(graph, seconds, upward_s, lambda task, finish_s: finish_s)
    priority_s = upward_s + downward_rank_s(graph, seconds)
    path = _critical_path(graph, priority_s)
    best = int(seconds[path].sum(axis=0).argmin())

    def choose(task: int, finish_s: Floats) -> Floats:
        return np.where(np.arange(len(finish_s)) == best, 0.0, np.inf) if task in path else finish_s

    return _placed(graph, seconds, priority_s, choose)


def _check(graph: TaskGraph, seconds: Floats) -> None:
    require(graph.n_tasks > 0, "n_tasks", "at least 1", value=graph.n_tasks)
    is_table = seconds.ndim == 2 and seconds.shape[0] == graph.n_tasks and seconds.shape[1] > 0
    require(is_table, "seconds", f"a row for each of {graph.n_tasks} tasks", value=seconds.shape)
    require(bool((np.isfinite(seconds) & (seconds >= 0)).all()), "seconds", "times from 0 on")
    for before, after, moved_s in graph.edges:
        known = 0 <= before < graph.n_tasks and 0 <= after < graph.n_tasks
        require(known, "edges", f"tasks from 0 to {graph.n_tasks - 1}", value=(before, after))
        require(0 <= moved_s < np.inf, "edges", "seconds from 0 on", value=moved_s)


def upward_rank_s(graph: TaskGraph, seconds: Floats) -> Floats:
    """Mean seconds from the start of each task to the end, on the longest path with its data."""
    mean_s, rank_s, after = seconds.mean(axis=1), np.zeros(graph.n_tasks), graph.successors()
    for task in reversed(graph.in_order()):
        rank_s[task] = mean_s[task] + max((moved + rank_s[k] for k, moved in after[task]), default=0.0)
    return rank_s


def downward_rank_s(graph: TaskGraph, seconds: Floats) -> Floats:
    """Mean seconds before the start of each task, on the longest path with its data."""
    mean_s, rank_s, before = seconds.mean(axis=1), np.zeros(graph.n_tasks), graph.predecessors()
    for task in graph.in_order():
        rank_s[task] = max((rank_s[k] + mean_s[k] + moved for k, moved in before[task]), default=0.0)
    return rank_s


def optimistic_cost_s(graph: TaskGraph, seconds: Floats) -> Floats:
    """Least seconds from the end of each task on each processor to the end, nothing else running."""
    cost_s, after = np.zeros_like(seconds), graph.successors()
    apart = 1.0 - np.eye(seconds.shape[1])
    for task in reversed(graph.in_order()):
        for following, moved_s in after[task]:
            there_s = (cost_s[following] + seconds[following])[None, :] + moved_s * apart
            cost_s[task] = np.maximum(cost_s[task], there_s.min(axis=1))
    return cost_s


def _critical_path(graph: TaskGraph, priority_s: Floats) -> list[int]:
    """One path of tasks of the largest priority, from an entry to an exit."""
    after = graph.successors()
    entries = [task for task, before in enumerate(graph.predecessors()) if not before]
    path = [max(entries, key=lambda task: priority_s[task])]
    while after[path[-1]]:
        path.append(max((task for task, _ in after[path[-1]]), key=lambda task: priority_s[task]))
    return path


def _placed(
    graph: TaskGraph, seconds: Floats, priority_s: Floats, objective: Callable[[int, Floats], Floats]
) -> ListSchedule:
    """Place ready tasks, the largest priority first, each where the objective of its finish is least."""
    n, processors = seconds.shape
    before, after = graph.predecessors(), graph.successors()
    waits = [len(edges) for edges in before]
    ready = [(-priority_s[task], task) for task in range(n) if waits[task] == 0]
    heapq.heapify(ready)
    processor, start_s, finish_s = np.zeros(n, np.int64), np.zeros(n), np.zeros(n)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(processors)]
    while ready:
        _, task = heapq.heappop(ready)
        starts_s = np.zeros(processors)
        for p in range(processors):
            there_s = (finish_s[k] + (0.0 if processor[k] == p else moved) for k, moved in before[task])
            starts_s[p] = _first_gap_s(busy[p], max(there_s, default=0.0), float(seconds[task, p]))
        ends_s = starts_s + seconds[task]
        best = int(objective(task, ends_s).argmin())
        processor[task], start_s[task], finish_s[task] = best, starts_s[best], ends_s[best]
        bisect.insort(busy[best], (float(starts_s[best]), float(ends_s[best])))
        for following, _ in after[task]:
            waits[following] -= 1
            if waits[following] == 0:
                heapq.heappush(ready, (-priority_s[following], following))
    return ListSchedule(processor, start_s, finish_s)


def _first_gap_s(busy: Sequence[tuple[float, float]], ready_s: float, length_s: float) -> float:
    """Earliest start from `ready_s` on in a gap between the busy times, which ascend."""
    start_s = ready_s
    for begin_s, end_s in busy:
        if start_s + length_s <= begin_s:
            break
        start_s = max(start_s, end_s)
    return start_s
