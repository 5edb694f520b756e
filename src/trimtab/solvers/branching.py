"""Depth-first branch and bound on the dual by resource: is there a solution of at most this cost?

Idea: costs are whole numbers and bounds are tight, so query the least cost that the bound allows; if the
answer is no, the bound rises by one. The closer the query is to the bound, the more pairs it rules out: a
pair whose floor is beyond the asked cost can't be used. At each point of the tree the prices of tasks climb a
few steps, floors strike pairs, a task with one pair left is settled and its node's capacity shrinks, what no
longer fits is struck too; then a pair is tried, and struck if that fails.
Source: Posta, Ferland and Michelon, An exact method with variable fixing for solving the generalized
assignment problem, Computational Optimization and Applications 52(3), 2012: decision problems one after the
other, depth-first search, pairs fixed by what knapsacks lose when forced.
Deviations: the pair to try is the cheapest of the task whose two least floors have the greatest product; the
search stops and goes on at any point, so that others use the time too.
Cost: O(open pairs · capacity left) a step of prices, at most `STEPS` · `ROUNDS` of them a point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.candidate_pairs import Floats, Ints
from trimtab.solvers.knapsack import both, put
from trimtab.solvers.problem import BoolArray

STEPS = 12  # of prices at a point
ROUNDS = 3  # of steps and striking at a point, while pairs go
WORTHWHILE = 10  # a round that struck fewer than one pair for so many open tasks is the last
PATIENCE = 3  # steps without gain before steps get shorter
OPEN, NO, YES = 0, 1, 2  # answers
REFUTED, SOLVED = -1, -2  # what a point may be


class Pairs(NamedTuple):
    """The pairs not ruled out before the search, in order of nodes.

    Attributes:
        begin: [nodes + 2] first pair of each node.
        task, owner, size: [pairs] task, node, demand.
        cost: [pairs].
        first: [tasks + 1] where each task's pairs begin in `of_task`.
        of_task: [pairs] pairs in order of tasks.
    """

    begin: Ints
    task: Ints
    owner: Ints
    size: Ints
    cost: Floats
    first: Ints
    of_task: Ints


class Tree(NamedTuple):
    """State of the search.

    Attributes:
        alive: [pairs] not excluded.
        left: [tasks] remaining pairs of each task.
        room: [nodes + 1] capacity left by the assigned tasks.
        trail: [pairs + 1] excluded pairs in order; the last cell is their number.
        price: [levels, tasks] prices at each level.
        mark: [levels] length of the trail when the level was entered.
        tried: [levels] pair that led to the level.
        at: [1] level.
        chosen: [tasks] pair of each task of the solution, once the answer is yes.
    """

    alive: BoolArray
    left: Ints
    room: Ints
    trail: Ints
    price: Floats
    mark: Ints
    tried: Ints
    at: Ints
    chosen: Ints


class Scratch(NamedTuple):
    """Working arrays: tables [items + 1, room + 1], lists and values by pair and by task."""

    before: Floats
    after: Floats
    taken: BoolArray
    items: Ints
    lose_in: Floats
    lose_out: Floats
    point: Floats
    slope: Floats
    queue: Ints
    first: Ints
    score: Floats


@helper
def _strike(pairs: Any, tree: Any, queue: Any, p: Any) -> Any:
    """Exclude a pair and all pairs excluded in consequence; returns whether each task still has a pair."""
    if tree.left[pairs.task[p]] == 1:
        return False
    waiting = _strike_one(pairs, tree, queue, 0, p)
    while waiting > 0:
        waiting -= 1
        i = pairs.owner[_only(pairs, tree, queue[waiting])]
        if tree.room[i] < 0:
            return False
        for r in range(pairs.begin[i], pairs.begin[i + 1]):
            if tree.alive[r] and pairs.size[r] > tree.room[i] and tree.left[pairs.task[r]] > 1:
                waiting = _strike_one(pairs, tree, queue, waiting, r)
    return True


@helper
def _strike_one(pairs: Any, tree: Any, queue: Any, waiting: Any, p: Any) -> Any:
    """Exclude one pair; a task with one pair left loads its node and is queued; returns the queue length."""
    j, trail = pairs.task[p], tree.trail
    tree.alive[p] = False
    tree.left[j] -= 1
    length = trail[trail.size - 1]
    trail[length] = p
    trail[trail.size - 1] = length + 1
    if tree.left[j] > 1:
        return waiting
    q = _only(pairs, tree, j)
    tree.room[pairs.owner[q]] -= pairs.size[q]
    queue[waiting] = j
    return waiting + 1


@helper
def _only(pairs: Any, tree: Any, j: Any) -> Any:
    """The first remaining pair of task j."""
    n = pairs.first[j]
    while not tree.alive[pairs.of_task[n]]:
        n += 1
    return pairs.of_task[n]


@helper
def _undo(pairs: Any, tree: Any, length: Any) -> None:
    """Restore excluded pairs until the trail has this length."""
    trail = tree.trail
    while trail[trail.size - 1] > length:
        trail[trail.size - 1] -= 1
        p = trail[trail[trail.size - 1]]
        j = pairs.task[p]
        if tree.left[j] == 1:
            q = _only(pairs, tree, j)
            tree.room[pairs.owner[q]] += pairs.size[q]
        tree.alive[p] = True
        tree.left[j] += 1


@helper
def _open_items(pairs: Any, tree: Any, items: Any, i: Any) -> Any:
    """Pairs of node i with unassigned tasks, into `items`; returns their number."""
    count = 0
    for p in range(pairs.begin[i], pairs.begin[i + 1]):
        if tree.alive[p] and tree.left[pairs.task[p]] > 1:
            items[count] = p
            count += 1
    return count


@helper
def _earn(pairs: Any, tree: Any, scratch: Any, i: Any) -> Any:
    """Largest profit of node i at the prices of `point`; subtracts 1 from `slope` of its tasks."""
    capacity, count, row = tree.room[i], 0, scratch.before[0]
    row[: capacity + 1] = 0.0
    for p in range(pairs.begin[i], pairs.begin[i + 1]):
        j, s = pairs.task[p], pairs.size[p]
        gain = scratch.point[j] - pairs.cost[p]
        if gain <= 0.0 or not tree.alive[p] or tree.left[j] == 1 or s > capacity:
            continue
        scratch.items[count] = p
        for w in range(capacity, s - 1, -1):
            other = row[w - s] + gain
            is_better = other > row[w]
            scratch.taken[count, w] = is_better
            if is_better:
                row[w] = other
        count += 1
    w = capacity
    for n in range(count - 1, -1, -1):
        p = scratch.items[n]
        s = pairs.size[p]
        if s <= w and scratch.taken[n, w]:
            scratch.slope[pairs.task[p]] -= 1.0
            w -= s
    return row[capacity]


@helper
def _settled_cost(pairs: Any, tree: Any) -> Any:
    """(cost of the assigned tasks, number of the others)."""
    total, others = 0.0, 0
    for j in range(tree.left.size):
        if tree.left[j] == 1:
            total += pairs.cost[_only(pairs, tree, j)]
        else:
            others += 1
    return total, others


@helper
def _climb(pairs: Any, tree: Any, scratch: Any, most: Any, settled: Any) -> Any:
    """Improve the level's prices towards a proof; returns the best bound, whose prices stay at the level."""
    price, point, slope = tree.price[tree.at[0]], scratch.point, scratch.slope
    point[:] = price
    best, factor, idle = -np.inf, 1.0, 0
    for _ in range(STEPS):
        value = settled
        for j in range(point.size):
            slope[j] = 0.0
            if tree.left[j] > 1:
                value += point[j]
                slope[j] = 1.0
        for i in range(tree.room.size):
            value -= _earn(pairs, tree, scratch, i)
        if value > best:
            best, idle = value, 0
            price[:] = point
            if value > most:
                break
        else:
            idle += 1
            if idle == PATIENCE:
                factor *= 0.5
                idle = 0
        steep = 0.0
        for j in range(point.size):
            steep += slope[j] * slope[j]
        if steep == 0.0:
            break
        length = factor * (most + 0.5 - value) / steep
        for j in range(point.size):
            point[j] += length * slope[j]
    return best


@helper
def _tables(pairs: Any, tree: Any, scratch: Any, price: Any, i: Any) -> None:
    """Loss of profit of node i with each of its open pairs forced in, and forced out."""
    capacity, before, after = tree.room[i], scratch.before, scratch.after
    count = _open_items(pairs, tree, scratch.items, i)
    before[0, : capacity + 1] = 0.0
    after[count, : capacity + 1] = 0.0
    for n in range(count):
        p = scratch.items[n]
        put(before[n], before[n + 1], price[pairs.task[p]] - pairs.cost[p], pairs.size[p], capacity)
    for n in range(count - 1, -1, -1):
        p = scratch.items[n]
        put(after[n + 1], after[n], price[pairs.task[p]] - pairs.cost[p], pairs.size[p], capacity)
    most = before[count, capacity]
    for n in range(count):
        p = scratch.items[n]
        gain, rest = price[pairs.task[p]] - pairs.cost[p], capacity - pairs.size[p]
        scratch.lose_in[p] = most - gain - both(before[n], after[n + 1], rest)
        scratch.lose_out[p] = most - both(before[n], after[n + 1], capacity) if gain > 0.0 else 0.0


@helper
def _thin(pairs: Any, tree: Any, scratch: Any, value: Any, most: Any, is_dive: Any) -> Any:
    """Exclude pairs with a bound above the query; returns (whether each task keeps one, number excluded).

    Writes each open task's pair of least bound into `first`, and its branching score into `score`.
    """
    price = tree.price[tree.at[0]]
    for i in range(tree.room.size):
        _tables(pairs, tree, scratch, price, i)
    before = tree.trail[tree.trail.size - 1]
    for j in range(tree.left.size):
        if tree.left[j] == 1:
            continue
        out = value
        for n in range(pairs.first[j], pairs.first[j + 1]):
            p = pairs.of_task[n]
            if tree.alive[p]:
                out += scratch.lose_out[p]
        least, second = np.inf, np.inf
        for n in range(pairs.first[j], pairs.first[j + 1]):
            p = pairs.of_task[n]
            if not tree.alive[p]:
                continue
            floor = out - scratch.lose_out[p] + scratch.lose_in[p]
            scratch.lose_in[p] = floor
            if floor < least:
                least, second = floor, least
                scratch.first[j] = p
            elif floor < second:
                second = floor
        second = min(second, most + 1.0)
        scratch.score[j] = second - least if is_dive else (least - value + 1e-3) * (second - value + 1e-3)
    for p in range(pairs.task.size):
        is_beyond = tree.alive[p] and tree.left[pairs.task[p]] > 1 and scratch.lose_in[p] > most
        if is_beyond and not _strike(pairs, tree, scratch.queue, p):
            return False, 0
    return True, tree.trail[tree.trail.size - 1] - before


@helper
def _look(pairs: Any, tree: Any, scratch: Any, most: Any, is_dive: Any) -> Any:
    """Evaluate the current tree node: the number of open tasks, `REFUTED` or `SOLVED`."""
    for _ in range(ROUNDS):
        settled, others = _settled_cost(pairs, tree)
        if others == 0:
            break
        value = _climb(pairs, tree, scratch, most, settled)
        if value > most:
            return REFUTED
        is_possible, struck = _thin(pairs, tree, scratch, value, most, is_dive)
        if not is_possible:
            return REFUTED
        if struck * WORTHWHILE < others:
            break
    settled, others = _settled_cost(pairs, tree)
    if others > 0:
        return others
    if settled > most:
        return REFUTED
    for j in range(tree.left.size):
        tree.chosen[j] = _only(pairs, tree, j)
    return SOLVED


@helper
def _next(pairs: Any, tree: Any, scratch: Any) -> Any:
    """The branching pair of the open task with the highest score; −1 without open tasks."""
    best, chosen = -np.inf, -1
    for j in range(tree.left.size):
        if tree.left[j] > 1:
            p = scratch.first[j]
            score = scratch.score[j]
            if not tree.alive[p]:
                p, score = _only(pairs, tree, j), 0.0
            if score > best:
                best, chosen = score, p
    return chosen


@helper
def _enter(pairs: Any, tree: Any, scratch: Any, p: Any) -> Any:
    """Branch on a pair: exclude the others of its task; returns whether that is feasible."""
    level = tree.at[0] + 1
    tree.at[0] = level
    tree.mark[level], tree.tried[level] = tree.trail[tree.trail.size - 1], p
    tree.price[level, :] = tree.price[level - 1]
    j = pairs.task[p]
    for n in range(pairs.first[j], pairs.first[j + 1]):
        q = pairs.of_task[n]
        if q != p and tree.alive[q] and not _strike(pairs, tree, scratch.queue, q):
            return False
    return True


@helper
def _back(pairs: Any, tree: Any, scratch: Any) -> Any:
    """Backtrack and exclude the pair tried, while infeasible; returns whether a tree node is left."""
    while tree.at[0] > 0:
        level = tree.at[0]
        _undo(pairs, tree, tree.mark[level])
        tree.at[0] = level - 1
        if _strike(pairs, tree, scratch.queue, tree.tried[level]):
            return True
    return False


@kernel(nogil=True)
def explore(pairs: Any, tree: Any, scratch: Any, most: Any, points: Any, share: Any) -> Any:
    """Explore at most this many tree nodes; returns `OPEN`, `NO` or `YES`: does cost `most` have a solution?

    With a `share` above 0 it dives: each tree node assigns that fraction of the open tasks, the surest ones.
    """
    for _ in range(points):
        others = _look(pairs, tree, scratch, most, share > 0.0)
        if others == SOLVED:
            return YES
        is_possible = others != REFUTED
        tries = max(1, int(share * others)) if is_possible else 0
        for _ in range(tries):
            p = _next(pairs, tree, scratch)
            if p >= 0 and is_possible:
                is_possible = _enter(pairs, tree, scratch, p)
        if not is_possible and not _back(pairs, tree, scratch):
            return NO
    return OPEN
