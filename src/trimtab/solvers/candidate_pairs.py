"""Candidate pairs of a search: for each task its nodes of least reduced cost, in one row.

Reduced cost of task j on node i under node prices λ is c[j, i] + Σ_r λ[i, r] d[j, i, r]. The nodes are
followed by a dummy node without demand for tasks left out; only optional tasks may use it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import kernel
from trimtab.solvers.problem import TOLERANCE_FRAC, AssignmentProblem, IntArray

MOST_INSERTED = 100  # pairs of a task that are inserted one by one; more are sorted, which is quicker then

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class CandidatePairs(NamedTuple):
    """Pairs by task, least reduced cost first; columns beyond a task's last pair hold node −1.

    Attributes:
        node: [tasks, width] node, or the number of nodes = left out.
        cost: [tasks, width] infinite without a pair.
        demand: [tasks, width, resources].
        capacity: [nodes + 1, resources].
        dropped: [tasks] least reduced cost of the pairs that are not here; infinite where all are.
    """

    node: Ints
    cost: Floats
    demand: Floats
    capacity: Floats
    dropped: Floats

    def nodes_of(self, choice: Ints) -> Ints:
        """Node of each task by its chosen column, −1 for tasks left out."""
        node = self.node[np.arange(choice.size), choice]
        return np.asarray(np.where(node == self.capacity.shape[0] - 1, -1, node), np.int32)

    def give(self, nodes: Ints, problem: AssignmentProblem, prices: Floats) -> tuple[Ints, Ints]:
        """Columns [tasks] of a given node for each task, and the tasks for which the node was no candidate.

        For these it replaces the last pair. The number of nodes stands for left out.
        """
        is_there = self.node == nodes[:, None]
        column, k = is_there.argmax(axis=1), int(self.node.shape[1]) - 1
        new = np.flatnonzero(~is_there.any(axis=1))
        paid = (prices[self.node[new, k]] * self.demand[new, k]).sum(axis=1)
        lost = np.where(self.node[new, k] >= 0, self.cost[new, k] + paid, np.inf)
        self.dropped[new] = np.minimum(self.dropped[new], lost)
        column[new], node = k, nodes[new]
        is_out, placed = node == problem.nodes, np.minimum(node, problem.nodes - 1)
        self.node[new, k] = node
        self.cost[new, k] = np.where(
            is_out, skip_costs(problem)[new], problem.sign * problem.value[new, placed]
        )
        self.demand[new, k] = np.where(is_out[:, None], 0.0, problem.demand[new, placed])
        return np.asarray(column, np.int32), np.asarray(new, np.int32)

    def ordered(self, order: Ints) -> CandidatePairs:
        """The same pairs in another order of each task's columns [tasks, width]."""
        rows = np.arange(order.shape[0])[:, None]
        return self._replace(
            node=self.node[rows, order], cost=self.cost[rows, order], demand=self.demand[rows, order]
        )

    @property
    def is_complete(self) -> bool:
        """Whether every pair of the problem is here."""
        return bool(np.isinf(self.dropped).all())


def reduced(candidates: CandidatePairs, prices: Floats) -> Floats:
    """[tasks, width] reduced costs under prices [nodes + 1, resources]."""
    paid = (prices[candidates.node] * candidates.demand).sum(axis=2)
    return candidates.cost + np.where(candidates.node >= 0, paid, 0.0)


def nearest(
    problem: AssignmentProblem, prices: Floats, width: int, tasks: Ints | None = None
) -> CandidatePairs:
    """The `width` nodes of least reduced cost of the tasks; infeasible pairs are left out.

    Args:
        problem: the assignment problem.
        prices: [nodes, resources], or with a row for tasks left out [nodes + 1, resources].
        width: highest number of pairs of a task.
        tasks: positions of the tasks; default: all.
    """
    value, demand, skip = problem.value, problem.demand, skip_costs(problem)
    if tasks is not None:
        value, demand, skip = value[tasks], demand[tasks], skip[tasks]
    shape = (value.shape[0], min(width, problem.nodes + 1))
    node, cost, dropped = np.full(shape, -1, np.int32), np.full(shape, np.inf), np.empty(shape[0])
    packed = np.zeros((*shape, demand.shape[2]))
    room = problem.capacity * (1 + TOLERANCE_FRAC)
    _nearest(value, demand, room, prices, problem.sign, skip, node, cost, packed, dropped)
    none = np.zeros((1, room.shape[1]))
    return CandidatePairs(node, cost, packed, np.concatenate([problem.capacity, none]), dropped)


def numbered(assignment: IntArray, nodes: int) -> Ints:
    """[tasks] nodes, with the number of nodes in place of −1 for tasks left out."""
    return np.asarray(np.where(assignment < 0, nodes, assignment), np.int32)


def skip_costs(problem: AssignmentProblem) -> Floats:
    """[tasks] cost of leaving a task out; infinite for a compulsory one."""
    return np.where(problem.optional, problem.sign * problem.skip_value, np.inf)


@kernel
def _nearest(
    value: Any,
    demand: Any,
    room: Any,
    prices: Any,
    sign: Any,
    skip_cost: Any,
    node: Any,
    cost: Any,
    packed: Any,
    dropped: Any,
) -> None:
    tasks, nodes = value.shape
    resources, width = demand.shape[2], node.shape[1]
    key = np.empty(nodes + 1)
    for j in range(tasks):
        count = 0
        left = np.inf
        for i in range(-1, nodes):
            if i < 0:
                v = skip_cost[j]
            else:
                v = sign * value[j, i]
                for r in range(resources):
                    if demand[j, i, r] > room[i, r]:
                        v = np.inf
                    v += prices[i, r] * demand[j, i, r]
            if width > MOST_INSERTED:
                key[i + 1] = v
                continue
            if v == np.inf:
                continue
            if count == width:
                if v >= key[count - 1]:
                    left = min(left, v)
                    continue
                left = min(left, key[count - 1])
                count -= 1
            at = count
            while at > 0 and key[at - 1] > v:
                key[at] = key[at - 1]
                node[j, at] = node[j, at - 1]
                at -= 1
            key[at] = v
            node[j, at] = i if i >= 0 else nodes
            count += 1
        if width > MOST_INSERTED:
            order = np.argsort(key, kind="mergesort")  # keeps the order of equals, as inserting does
            while count < width and key[order[count]] < np.inf:
                i = order[count] - 1
                node[j, count] = i if i >= 0 else nodes
                count += 1
            if count < nodes + 1:
                left = key[order[count]]
        dropped[j] = left
        for k in range(count):
            i = node[j, k]
            if i == nodes:
                cost[j, k] = skip_cost[j]
                continue
            cost[j, k] = sign * value[j, i]
            for r in range(resources):
                packed[j, k, r] = demand[j, i, r]
