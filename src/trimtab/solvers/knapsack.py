"""Prices of tasks: the dual by resource, a knapsack for each node.

Idea: pay u[j] for task j, and let every node by itself take the tasks that pay it most within its capacity,
    L(u) = Σ_j u_j − Σ_i max { Σ_j (u_j − c[j, i]) x_j : Σ_j d[j, i] x_j ≤ b_i, x binary },
which bounds the cost of every assignment from below for any u: no less than the best dual by task (`dual`),
since the knapsacks are solved in whole tasks. Whole demands only, one resource: each knapsack is a table.
Source: Fisher, Jaikumar and Van Wassenhove, Management Science 32(9), 1986; steps towards the incumbent's
cost by Polyak, USSR Computational Mathematics and Mathematical Physics 9(3), 1969.
Deviations: it starts from the dual by task (u is each task's least reduced cost); the factor of the steps
halves where the bound stands still.
Cost: O(tasks · Σ capacity) a step.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints
from trimtab.solvers.problem import TOLERANCE_FRAC

MOST_CELLS = 20_000_000  # of all tables of a step that is worth its time: about 20 ms
SLICE_S = 0.04  # of steps between two looks at the clock
PATIENCE = 12  # steps without gain before steps get shorter
FIRST_FACTOR, LAST_FACTOR = 1.0, 2e-3


@dataclass(slots=True)
class Knapsacks:
    """Subgradient ascent: multipliers `best` [tasks] and their bound `value`.

    Attributes:
        cost: [nodes + 1, tasks] infinite without a pair; the last row is the cost of leaving out.
        size: [nodes + 1, tasks] whole demands.
        room: [nodes + 1] whole capacities.
    """

    cost: Floats
    size: Ints
    room: Ints
    best: Floats
    point: Floats
    value: float = -math.inf
    _factor: float = FIRST_FACTOR
    _idle: int = 0
    _steps: int = 1

    @property
    def is_settled(self) -> bool:
        """Whether the bound has converged: steps are too short or too slow."""
        too_large = int(self.room.sum(dtype=np.int64)) * self.best.size > MOST_CELLS
        return too_large or self._factor < LAST_FACTOR

    def climb(self, target: float) -> None:
        """Ascend for a slice of time towards the cost `target`."""
        begun_s = time.perf_counter()
        self.value, self._factor, self._idle = _climb(
            self.cost, self.size, self.room, self.best, self.point, self.value, target,
            self._factor, self._idle, self._steps,
        )  # fmt: skip
        took_s = time.perf_counter() - begun_s
        self._steps = max(1, int(self._steps * min(4.0, SLICE_S / max(took_s, 1e-5))))

    def floors(self) -> Floats:
        """[nodes + 1, tasks] lower bound of the cost of a solution that uses a pair.

        The node takes the task, and all other nodes do not.
        """
        within, without = _forced(self.cost, self.size, self.room, self.best)
        return np.asarray(self.value + within + (without.sum(axis=0) - without))


def knapsacks_of(candidates: CandidatePairs, prices: Floats) -> Knapsacks | None:
    """The relaxation of a complete set of pairs; None if demands are not whole numbers."""
    if not candidates.is_complete or candidates.demand.shape[2] != 1:
        return None
    demand = candidates.demand[..., 0]
    room = np.floor(candidates.capacity[:, 0] * (1 + TOLERANCE_FRAC))
    if (demand != np.rint(demand)).any() or room.max() > MOST_CELLS:
        return None
    nodes, tasks = room.size, demand.shape[0]
    cost, size = np.full((nodes, tasks), np.inf), np.zeros((nodes, tasks), np.int32)
    task, column = np.nonzero(candidates.node >= 0)
    node = candidates.node[task, column]
    cost[node, task] = candidates.cost[task, column]
    size[node, task] = demand[task, column]
    first = (cost + prices[:, :1] * size).min(axis=0)
    return Knapsacks(cost, size, room.astype(np.int32), first, first.copy())


@helper
def _gain(cost: Any, size: Any, room: Any, price: Any, i: Any, table: Any, value: Any, taken: Any) -> Any:
    """Largest profit of node i; `taken` [tasks] marks its tasks. `table` [tasks, room + 1] is scratch."""
    capacity = room[i]
    value[: capacity + 1] = 0.0
    for j in range(price.size):
        taken[j] = False
        gain, s = price[j] - cost[i, j], size[i, j]
        if gain <= 0.0 or s > capacity:
            continue
        for w in range(capacity, s - 1, -1):
            better = value[w - s] + gain > value[w]
            table[j, w] = better
            if better:
                value[w] = value[w - s] + gain
    w = capacity
    for j in range(price.size - 1, -1, -1):
        s = size[i, j]
        if price[j] - cost[i, j] > 0.0 and s <= w and table[j, w]:
            taken[j] = True
            w -= s
    return value[capacity]


@kernel(nogil=True)
def _climb(
    cost: Any,
    size: Any,
    room: Any,
    best: Any,
    point: Any,
    best_value: Any,
    target: Any,
    factor: Any,
    idle: Any,
    steps: Any,
) -> Any:
    """Steps from `point` [tasks]; changes it and `best`; returns (best value, factor, idle steps)."""
    tasks, widest = point.size, room.max() + 1
    table, taken = np.zeros((tasks, widest), np.bool_), np.zeros(tasks, np.bool_)
    row, slope = np.zeros(widest), np.empty(tasks)
    for _ in range(steps):
        value = 0.0
        for j in range(tasks):
            value += point[j]
        slope[:] = 1.0
        for i in range(room.size):
            value -= _gain(cost, size, room, point, i, table, row, taken)
            for j in range(tasks):
                if taken[j]:
                    slope[j] -= 1.0
        idle += 1
        if value > best_value:
            if value > best_value + 1e-4 * (target - best_value):
                idle = 0
            best_value = value
            best[:] = point
        if idle > PATIENCE:
            factor *= 0.5
            idle = 0
            point[:] = best
            continue
        steep = 0.0
        for j in range(tasks):
            steep += slope[j] * slope[j]
        if steep == 0.0:
            factor = 0.0
            break
        length = factor * max(target - value, 1e-3) / steep
        for j in range(tasks):
            point[j] += length * slope[j]
    return best_value, factor, idle


@kernel
def _forced(cost: Any, size: Any, room: Any, price: Any) -> tuple[Floats, Floats]:
    """[nodes + 1, tasks] loss of profit of node i with task j forced in (infinite if infeasible), and out."""
    tasks, widest = price.size, room.max() + 1
    before, after = np.zeros((tasks + 1, widest)), np.zeros((tasks + 1, widest))
    within, without = np.full(cost.shape, np.inf), np.zeros(cost.shape)
    for i in range(room.size):
        capacity = room[i]
        for j in range(tasks):
            put(before[j], before[j + 1], price[j] - cost[i, j], size[i, j], capacity)
        for j in range(tasks - 1, -1, -1):
            put(after[j + 1], after[j], price[j] - cost[i, j], size[i, j], capacity)
        for j in range(tasks):
            if size[i, j] <= capacity and cost[i, j] < np.inf:
                most, rest = before[tasks, capacity], capacity - size[i, j]
                gain = price[j] - cost[i, j]
                within[i, j] = most - gain - both(before[j], after[j + 1], rest)
                if gain > 0.0:
                    without[i, j] = most - both(before[j], after[j + 1], capacity)
    return within, without


@helper
def both(before: Any, after: Any, capacity: Any) -> Any:
    """Largest value of two tables that share a capacity."""
    most = -np.inf
    for w in range(capacity + 1):
        most = max(most, before[w] + after[capacity - w])
    return most


@helper
def put(source: Any, result: Any, gain: Any, s: Any, capacity: Any) -> None:
    """Add a task to the table: the best value for each capacity."""
    for w in range(capacity + 1):
        best = source[w]
        if gain > 0.0 and w >= s:
            best = max(best, source[w - s] + gain)
        result[w] = best
