"""Ejection search: a misplaced task moves to its target node, and the tasks that it displaces move on.

Idea: with prices λ the cost of an assignment is the dual value plus regrets that are never negative: of each
task the excess of its reduced cost over its least one, of each node what its slack would fetch (λ a unit) or
its overload costs (a weight a unit). A chain begins at a task with regret: it takes a better node, a task of
that node makes room and takes another one, …; the last one goes where there is room (a path) or where the
first one was (a cycle). Rows are sorted by reduced cost, so that only the few columns are looked at whose
excess the chain can still pay for. Of each layer the best few chains are carried on (a beam); the first layer
that closes a chain with gain ends the search, and the chain is made at once, so that the next one sees it.
Source: ejection chains for this problem, Yagiura, Ibaraki and Glover, INFORMS J. Computing 16(2), 2004.
Deviations: regrets under the dual's prices in place of costs; the beam.
Cost: O(depth · breadth · tasks a node · columns within reach) a chain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.solvers.candidate_pairs import Floats, Ints
from trimtab.solvers.ejection_chains import LEAST_GAIN, move, relink, reweigh, worth

NO_OVERLOAD = 1e-9  # rounding in sums


class EjectionProblem(NamedTuple):
    """Constants: the pairs of `CandidatePairs`, reduced costs [tasks, width], prices [nodes + 1, resources].

    `reach` is the regret that the end of a chain may still save.
    """

    node: Ints
    cost: Floats
    reduced: Floats
    demand: Floats
    capacity: Floats
    price: Floats
    reach: float


class EjectionState(NamedTuple):
    """State: the position of the tasks.

    Attributes:
        choice: [tasks] column.
        load: [nodes + 1, resources].
        weight: [nodes + 1, resources] regret of a unit of overload.
        now: [nodes + 1] present regret of each node.
        head: [nodes + 1] first task of each node's list, −1 for none.
        after, before: [tasks] the lists.
        used: [tasks, resources] demand of each task on its node.
        other: [tasks] least rise of reduced cost by another node: most tasks are ruled out by it alone.
    """

    choice: Ints
    load: Floats
    weight: Floats
    now: Floats
    head: Ints
    after: Ints
    before: Ints
    used: Floats
    other: Floats


class Beam(NamedTuple):
    """Open chains [layers, breadth]: regret so far, the last task, its new column, the chain before it."""

    value: Floats
    task: Ints
    column: Ints
    parent: Ints


@helper(inline=True)
def _regret(board: Any, at: Any, i: Any, j: Any, k: Any, leaver: Any) -> Any:
    """Regret of node i with task j (column k) added and another task removed; −1 is no task."""
    total = 0.0
    for r in range(board.capacity.shape[1]):
        over = at.load[i, r] - board.capacity[i, r]
        if j >= 0:
            over += board.demand[j, k, r]
        if leaver >= 0:
            over -= at.used[leaver, r]
        total += at.weight[i, r] * over if over > NO_OVERLOAD else -board.price[i, r] * over
    return total


@helper
def _is_used(board: Any, at: Any, beam: Any, layer: Any, e: Any, i: Any) -> Any:
    """Whether the open chain e of a layer took a task from node i."""
    for up in range(layer, 0, -1):
        t = beam.task[up, e]
        if board.node[t, at.choice[t]] == i:
            return True
        e = beam.parent[up, e]
    return False


@helper
def _carry(beam: Any, layer: Any, count: Any, value: Any, task: Any, column: Any, parent: Any) -> Any:
    """Insert an open chain into its sorted layer if it is among the best; returns the layer's length."""
    breadth = beam.value.shape[1]
    if count == breadth and value >= beam.value[layer, count - 1]:
        return count
    p = min(count, breadth - 1)
    while p > 0 and beam.value[layer, p - 1] > value:
        beam.value[layer, p] = beam.value[layer, p - 1]
        beam.task[layer, p] = beam.task[layer, p - 1]
        beam.column[layer, p] = beam.column[layer, p - 1]
        beam.parent[layer, p] = beam.parent[layer, p - 1]
        p -= 1
    beam.value[layer, p], beam.parent[layer, p] = value, parent
    beam.task[layer, p], beam.column[layer, p] = task, column
    return min(count + 1, breadth)


@helper
def _begin(board: Any, at: Any, beam: Any, j: Any, gone: Any) -> Any:
    """Start chains with task j; returns (open chains, gain of the best closed one, its column or −1)."""
    own = at.choice[j]
    base = -board.reduced[j, own] - at.now[board.node[j, own]]
    count, best, best_k = 0, -LEAST_GAIN, -1
    for k in range(board.node.shape[1]):
        i = board.node[j, k]
        value = base + board.reduced[j, k]
        if i < 0 or value >= best + board.reach:
            break
        if k == own:
            continue
        total = value + gone + _regret(board, at, i, j, k, -1) - at.now[i]
        if total < best:
            best, best_k = total, k
        count = _carry(beam, 0, count, value, j, k, 0)
    return count, best, best_k


@helper
def _extend(board: Any, at: Any, beam: Any, layer: Any, e: Any, j: Any, gone: Any, found: Any) -> Any:
    """Extend one open chain; `found` is (open chains of the next layer, best, its chain, task, column)."""
    count, best, best_e, best_t, best_k = found
    a = board.node[j, at.choice[j]]
    entering, c = beam.task[layer, e], beam.column[layer, e]
    i = board.node[entering, c]
    is_last = layer + 2 >= beam.value.shape[0]
    t = at.head[i]
    while t >= 0:
        settled = beam.value[layer, e] - at.now[i] + _regret(board, at, i, entering, c, t)
        if settled + at.other[t] >= best + board.reach:
            t = at.after[t]
            continue
        base = settled - board.reduced[t, at.choice[t]]
        for k in range(board.node.shape[1]):
            i2 = board.node[t, k]
            value = base + board.reduced[t, k]
            if i2 < 0 or value >= best + board.reach:
                break
            if i2 == i:
                continue
            if i2 == a:
                total = value + _regret(board, at, a, t, k, j)
            elif _is_used(board, at, beam, layer, e, i2):
                continue
            else:
                total = value + gone + _regret(board, at, i2, t, k, -1) - at.now[i2]
                if not is_last:
                    count = _carry(beam, layer + 1, count, value, t, k, e)
            if total < best:
                best, best_e, best_t, best_k = total, e, t, k
        t = at.after[t]
    return count, best, best_e, best_t, best_k


@helper
def _note(board: Any, at: Any, j: Any) -> None:
    """Update `used` and `other` of task j."""
    own = at.choice[j]
    for r in range(at.used.shape[1]):
        at.used[j, r] = board.demand[j, own, r]
    k = 1 if own == 0 else 0
    has_other = k < board.node.shape[1] and board.node[j, k] >= 0
    at.other[j] = board.reduced[j, k] - board.reduced[j, own] if has_other else np.inf


@helper
def _move(board: Any, at: Any, j: Any, k: Any) -> None:
    """Give task j its column k."""
    old, new = board.node[j, at.choice[j]], board.node[j, k]
    move(board.node, board.demand, at.choice, at.load, at.head, at.after, at.before, j, k)
    _note(board, at, j)
    at.now[old] = _regret(board, at, old, -1, 0, -1)
    at.now[new] = _regret(board, at, new, -1, 0, -1)


@helper
def _chain_from(board: Any, at: Any, beam: Any, j: Any, least: Any) -> None:
    """Apply the best chain from task j, if one gains and the regret that it can remove is above `least`."""
    own = at.choice[j]
    a = board.node[j, own]
    if board.reduced[j, own] - board.reduced[j, 0] + at.now[a] <= least:
        return
    gone = _regret(board, at, a, -1, 0, j)
    count, best, k = _begin(board, at, beam, j, gone)
    layer, e, t = -1, 0, j
    while k < 0 and count > 0 and layer + 2 < beam.value.shape[0]:
        layer += 1
        found = 0, best, 0, j, -1
        for opened in range(count):
            found = _extend(board, at, beam, layer, opened, j, gone, found)
        count, best, e, t, k = found
    if k < 0:
        return
    _move(board, at, t, k)
    for up in range(layer, -1, -1):
        _move(board, at, beam.task[up, e], beam.column[up, e])
        e = beam.parent[up, e]


@kernel(nogil=True)
def eject_chains(board: Any, at: Any, beam: Any, order: Any, least: Any, harden: Any) -> Any:
    """Apply a chain from each task of `order` if one gains; returns (cost, weighted overload).

    Skips tasks whose regret, with that of their node, is at most `least`.
    Changes `at`: rebuilds loads and lists from its choice; weights of remaining overload rise by `harden`.
    """
    relink(board.node, board.demand, at.choice, at.load, at.head, at.after, at.before)
    for i in range(at.now.size):
        at.now[i] = _regret(board, at, i, -1, 0, -1)
    for j in range(at.choice.size):
        _note(board, at, j)
    for n in range(order.size):
        _chain_from(board, at, beam, order[n], least)
    relink(board.node, board.demand, at.choice, at.load, at.head, at.after, at.before)
    total, over = worth(board.node, board.cost, board.capacity, at.choice, at.load, at.weight)
    reweigh(at.load, board.capacity, at.weight, harden, 1.0)
    return total, over


def ejection_state_of(choice: Ints, weight: Floats) -> EjectionState:
    """The state over these two arrays, which the search changes."""
    nodes, (tasks, resources) = weight.shape[0], (choice.size, weight.shape[1])
    lists = np.empty(nodes, np.int32), np.empty(tasks, np.int32), np.empty(tasks, np.int32)
    used, other = np.empty((tasks, resources)), np.empty(tasks)
    return EjectionState(choice, np.empty(weight.shape), weight, np.empty(nodes), *lists, used, other)


def beam_of(depth: int, breadth: int) -> Beam:
    """Working arrays for chains of `layers` tasks, with `breadth` open chains in each layer."""
    columns = [np.zeros((depth, breadth), np.int32) for _ in range(3)]
    return Beam(np.zeros((depth, breadth)), *columns)


def crowded_tasks(node: Ints, capacity: Floats, at: EjectionState) -> Ints:
    """The tasks on overloaded nodes."""
    crowded = np.asarray((at.load > capacity + NO_OVERLOAD).any(axis=1))
    return np.flatnonzero(crowded[node[np.arange(at.choice.size), at.choice]]).astype(np.int32)
