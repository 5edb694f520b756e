"""Constructs a first feasible assignment quickly, for searches that find none within their time limit.

Idea: tasks are placed one by one, the largest first, each on the node with room where its price is least.
With prices that are too low what is cheap fills the nodes before all are placed; so it is tried with higher
and higher prices of capacity, at last with these alone and with ones that keep the capacities of a sample.
What finds no room is put in where one task can make way for it, and what is left after that goes where it
needs least, for chains that see nothing but overload.
Source: best-fit decreasing over nodes, Martello and Toth, Knapsack Problems, 1990, §7.4 (MTHG) and §8.2.
Cost: O(pairs) an attempt, and `EFFORT` times as much for making way.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints, nearest, numbered, reduced
from trimtab.solvers.dual import climb, mean_demand, spread_of
from trimtab.solvers.ejection_chains import LEAST_GAIN, link, unlink
from trimtab.solvers.ejection_search import (
    EjectionProblem,
    beam_of,
    crowded_tasks,
    eject_chains,
    ejection_state_of,
)
from trimtab.solvers.problem import TOLERANCE_FRAC, AssignmentProblem

STEEPNESS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # prices added, in spreads of costs for a mean demand
BALANCE_STAGES = (0.1, 0.03, 0.01)  # softness of the prices that keep capacities
CHAIN_STEEPNESS = 1e4  # the same where costs only break ties
SAMPLE_TASKS = 1_000  # that costs and demands are known by
MOST_WANTED_FRAC = 1.05  # of all capacity, for an attempt to be worth its time
EFFORT = 2.0  # looks at a task and a node of those that make way, as a share of all pairs
LEAST_LOOKS = 100_000
NEAR_NODES = 24  # of a task, those of least demand, that chains look at
DEPTH, BREADTH = 5, 4  # of these chains
PART_TASKS = 20  # that chains begin at between two looks at the clock
PASSES = 30  # over the tasks of crowded nodes
HARDEN = 1.5  # factor on the weights of overload that a pass leaves
_NOWHERE = -2  # no node, nor the −1 of a pair that is not there


def construct_assignment(
    problem: AssignmentProblem, prices: Floats, until_s: float = math.inf
) -> Ints | None:
    """Node of each task [tasks], −1 if left out; None if no assignment was found.

    Args:
        problem: one without a proof of infeasibility by `why_infeasible`.
        prices: [nodes + 1, resources] initial prices; zeros if unknown.
        until_s: time limit of the chains (perf_counter); only tight problems need them.
    """
    order = np.lexsort((-_sizes(problem), problem.optional)).astype(np.int32)
    sample = np.linspace(0, problem.tasks - 1, min(problem.tasks, SAMPLE_TASKS)).astype(np.int32)
    candidates = nearest(problem, np.zeros_like(prices), problem.nodes + 1, sample)
    unit = np.zeros_like(prices) + spread_of(candidates) / mean_demand(candidates)
    assignment = np.empty(problem.tasks, np.int32)
    for price in (prices + steepness * unit for steepness in STEEPNESS):
        if _may_fit(candidates, price, problem.tasks) and _placed(problem, price, 1.0, order, assignment):
            return assignment
    for price in (unit, unit + _balancing(candidates, unit, problem.tasks)):
        if _placed(problem, price, 0.0, order, assignment):
            return assignment
    return _uncrowded(problem, assignment, CHAIN_STEEPNESS * unit, until_s)


def _may_fit(candidates: CandidatePairs, price: Floats, tasks: int) -> bool:
    """Whether the total capacity holds the demand of a sample of tasks at these prices."""
    rows = np.arange(candidates.node.shape[0])
    wanted = candidates.demand[rows, reduced(candidates, price).argmin(axis=1)].sum(axis=0) * (
        tasks / rows.size
    )
    return bool((wanted <= MOST_WANTED_FRAC * candidates.capacity.sum(axis=0)).all())


def _balancing(candidates: CandidatePairs, unit: Floats, tasks: int) -> Floats:
    """[nodes + 1, resources] prices that keep capacities if tasks minimise their use, by a sample."""
    used = (candidates.demand * unit[candidates.node]).sum(axis=2)
    part = candidates._replace(
        cost=np.where(candidates.node >= 0, used, np.inf),
        capacity=candidates.capacity * (candidates.node.shape[0] / tasks),
    )
    return climb(part, np.zeros_like(unit), stages=BALANCE_STAGES).prices


def _sizes(problem: AssignmentProblem) -> Floats:
    """[tasks] least fraction of a node that a task uses, of the resource that it uses most."""
    size = np.empty(problem.tasks)
    _least_share(problem.demand, np.maximum(problem.capacity, 1e-300), size)
    return size


def _placed(problem: AssignmentProblem, price: Floats, scale: float, order: Ints, assignment: Ints) -> bool:
    """Place all tasks, into `assignment`, −1 without room; returns whether the assignment is feasible."""
    room, load = problem.capacity * (1 + TOLERANCE_FRAC), np.zeros(problem.capacity.shape)
    value, demand, optional = problem.value, problem.demand, problem.optional
    skip = np.where(optional, scale * problem.sign * problem.skip_value, np.inf)
    left = _place(value, demand, room, price, problem.sign, scale, skip, order, load, assignment)
    if left:
        looks = max(LEAST_LOOKS, int(EFFORT * value.size))
        left = _make_way(value, demand, room, optional, order, load, assignment, looks)
    return left == 0 and problem.is_feasible(assignment)


def _uncrowded(problem: AssignmentProblem, assignment: Ints, tightest: Floats, until_s: float) -> Ints | None:
    """Put unplaced tasks on their first node, then remove overload by ejection chains."""
    candidates = nearest(problem, tightest, NEAR_NODES)
    candidates = candidates._replace(
        cost=np.zeros_like(candidates.cost), capacity=candidates.capacity * (1 + TOLERANCE_FRAC)
    )
    wanted = np.where(problem.optional | (assignment >= 0), numbered(assignment, problem.nodes), _NOWHERE)
    choice = np.asarray((candidates.node == wanted[:, None]).argmax(axis=1), np.int32)
    none = np.zeros_like(candidates.capacity)
    board = EjectionProblem(
        candidates.node, candidates.cost, candidates.cost, candidates.demand, candidates.capacity, none, 0.0
    )
    at, beam = ejection_state_of(choice, none + 1.0 / mean_demand(candidates)), beam_of(DEPTH, BREADTH)
    generator, tasks = np.random.default_rng(0), np.arange(choice.size, dtype=np.int32)
    for _ in range(PASSES):
        order, overload = generator.permutation(tasks).astype(np.int32), math.inf
        for begin in range(0, order.size, PART_TASKS):
            part = order[begin : begin + PART_TASKS]
            _, overload = eject_chains(board, at, beam, part, LEAST_GAIN, HARDEN ** (part.size / order.size))
            if overload == 0.0 or time.perf_counter() > until_s:
                break
        if overload == 0.0:
            after = candidates.nodes_of(choice)
            return after if problem.is_feasible(after) else None
        if time.perf_counter() > until_s:
            break
        tasks = crowded_tasks(candidates.node, candidates.capacity, at)
    return None


@kernel
def _least_share(demand: Any, capacity: Any, size: Any) -> None:
    tasks, nodes, resources = demand.shape
    for j in range(tasks):
        size[j] = np.inf
        for i in range(nodes):
            share = 0.0
            for r in range(resources):
                share = max(share, demand[j, i, r] / capacity[i, r])
            size[j] = min(size[j], share)


@helper
def _fits(demand: Any, room: Any, load: Any, j: Any, i: Any, leaver: Any) -> Any:
    """Whether task j has room on node i once another task has left it; −1 is no task."""
    for r in range(room.shape[1]):
        after = load[i, r] + demand[j, i, r]
        if leaver >= 0:
            after -= demand[leaver, i, r]
        if after > room[i, r]:
            return False
    return True


@kernel
def _place(
    value: Any,
    demand: Any,
    room: Any,
    price: Any,
    sign: Any,
    scale: Any,
    skip_cost: Any,
    order: Any,
    load: Any,
    assignment: Any,
) -> Any:
    """Place tasks in order, each on the cheapest node with room; returns the number of unplaced tasks."""
    left = 0
    for n in range(order.size):
        j = order[n]
        best, best_i = np.inf, -1
        for i in range(value.shape[1]):
            v = scale * sign * value[j, i]  # not a number where forbidden and of no weight: no least price
            for r in range(room.shape[1]):
                v += price[i, r] * demand[j, i, r]
            if v < best and _fits(demand, room, load, j, i, -1):
                best, best_i = v, i
        if skip_cost[j] <= best and skip_cost[j] < np.inf:
            best_i = -1
        elif best_i < 0:
            left += 1
        assignment[j] = best_i
        if best_i >= 0:
            for r in range(room.shape[1]):
                load[best_i, r] += demand[j, best_i, r]
    return left


@helper
def _shift(
    demand: Any, load: Any, head: Any, after: Any, before: Any, assignment: Any, j: Any, i: Any
) -> None:
    """Move task j to node i."""
    old = assignment[j]
    if old >= 0:
        unlink(head, after, before, old, j)
    link(head, after, before, i, j)
    for r in range(load.shape[1]):
        if old >= 0:
            load[old, r] -= demand[j, old, r]
        load[i, r] += demand[j, i, r]
    assignment[j] = i


@helper
def _way_for(value: Any, demand: Any, room: Any, load: Any, head: Any, after: Any, j: Any, looks: Any) -> Any:
    """(node for task j, task that leaves it, that task's new node, remaining steps); −1 for none."""
    nodes = value.shape[1]
    for i in range(nodes):
        if np.isinf(value[j, i]):
            continue
        t = head[i]
        while t >= 0:
            if _fits(demand, room, load, j, i, t):
                for i2 in range(nodes):
                    if i2 != i and not np.isinf(value[t, i2]) and _fits(demand, room, load, t, i2, -1):
                        return i, t, i2, looks
                looks -= nodes
            looks -= 1
            if looks < 0:
                return -1, -1, -1, looks
            t = after[t]
    return -1, -1, -1, looks


@kernel
def _make_way(
    value: Any,
    demand: Any,
    room: Any,
    optional: Any,
    order: Any,
    load: Any,
    assignment: Any,
    looks: Any,
) -> Any:
    """Place compulsory tasks by moving another task elsewhere; returns the number of unplaced ones."""
    tasks, nodes = value.shape
    head, after, before = np.full(nodes, -1, np.int32), np.empty(tasks, np.int32), np.empty(tasks, np.int32)
    for j in range(tasks):
        if assignment[j] >= 0:
            link(head, after, before, assignment[j], j)
    left = 0
    for n in range(tasks):
        j = order[n]
        if assignment[j] >= 0 or optional[j]:
            continue
        i, t, i2, looks = _way_for(value, demand, room, load, head, after, j, looks)
        if i < 0:
            left += 1
        else:
            _shift(demand, load, head, after, before, assignment, t, i2)
            _shift(demand, load, head, after, before, assignment, j, i)
    return left
