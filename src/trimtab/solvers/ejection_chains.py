"""Ejection chains: sequences of tasks that displace each other, applied while they gain.

Idea: task j1 takes the place of j2, which takes the place of j3, …; the last one takes the place of j1 (a
cycle) or goes where it displaces none (a path). The change in cost plus weighted overload of a chain is the
sum of its links' changes, since no node is in it twice, so the best chains are found like shortest paths:
layer by layer, of every task the best chain that displaced it last. A chain that gains has a start from which
all its beginnings gain, so that only those are followed.
Source: cyclic and path exchange neighbourhoods of Thompson and Orlin (MIT OR 200-89, 1989) and Ahuja, Orlin
and Sharma (Mathematical Programming 91, 2001); for this problem ejection chains with adaptive overload
weights by Yagiura, Ibaraki and Glover (INFORMS J. Computing 16(2), 2004).
Deviations: one best label a task and layer; several chains that share no node are applied at once.
Cost: O(depth · pairs · tasks a node) a round, most of it pruned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel

LEAST_GAIN = 1e-7


@helper(inline=True)
def overload(
    load: Any, capacity: Any, weight: Any, i: Any, demand: Any, j: Any, k: Any, j2: Any, k2: Any
) -> Any:
    """Weighted overload of node i with task j (column k) added and j2 (column k2) removed; −1 is no task."""
    total = 0.0
    for r in range(capacity.shape[1]):
        over = load[i, r] - capacity[i, r]
        if j >= 0:
            over += demand[j, k, r]
        if j2 >= 0:
            over -= demand[j2, k2, r]
        if over > 1e-9:
            total += weight[i, r] * over
    return total


@helper
def link(head: Any, after: Any, before: Any, i: Any, j: Any) -> None:
    """Insert task j at the head of node i's list."""
    after[j] = head[i]
    before[j] = -1
    if head[i] >= 0:
        before[head[i]] = j
    head[i] = j


@helper
def unlink(head: Any, after: Any, before: Any, i: Any, j: Any) -> None:
    """Remove task j from node i's list."""
    if before[j] >= 0:
        after[before[j]] = after[j]
    else:
        head[i] = after[j]
    if after[j] >= 0:
        before[after[j]] = before[j]


@helper
def move(
    node: Any, demand: Any, choice: Any, load: Any, head: Any, after: Any, before: Any, j: Any, k: Any
) -> None:
    """Move task j to its column k."""
    old, new = node[j, choice[j]], node[j, k]
    unlink(head, after, before, old, j)
    link(head, after, before, new, j)
    for r in range(load.shape[1]):
        load[old, r] -= demand[j, choice[j], r]
        load[new, r] += demand[j, k, r]
    choice[j] = k


@helper
def _extend(
    node: Any,
    cost: Any,
    demand: Any,
    capacity: Any,
    width: Any,
    choice: Any,
    load: Any,
    weight: Any,
    now: Any,
    head: Any,
    after: Any,
    gain: Any,
    parent: Any,
    column: Any,
    origin: Any,
    layer: Any,
    j: Any,
    is_last: Any,
    best: Any,
    best_at: Any,
) -> None:
    """Extend the chain that displaced task j in this layer by every link; closed chains go into `best`."""
    s = origin[layer, j]
    home = node[s, choice[s]]
    released = overload(load, capacity, weight, home, demand, -1, 0, s, choice[s]) - now[home]
    base = gain[layer, j] - cost[j, choice[j]]
    for k in range(width):
        i = node[j, k]
        if i < 0:
            break
        if k == choice[j]:
            continue
        reached = base + cost[j, k] - now[i]
        if reached > -LEAST_GAIN:
            continue  # what is overloaded afterwards only adds to it
        if i == home:
            if layer > 0:
                total = reached + overload(load, capacity, weight, i, demand, j, k, s, choice[s])
                total -= min(released, 0.0)
                if total < best[s]:
                    best[s] = total
                    best_at[s, 0], best_at[s, 1], best_at[s, 2] = layer, j, k
            continue
        t, is_there = j, False
        for back in range(layer, 0, -1):
            is_there = is_there or node[t, choice[t]] == i
            t = parent[back, t]
        if is_there:
            continue
        total = reached + overload(load, capacity, weight, i, demand, j, k, -1, 0) + max(released, 0.0)
        if total < best[s]:
            best[s] = total
            best_at[s, 0], best_at[s, 1], best_at[s, 2] = layer, j, k
        if is_last:
            continue
        j2 = head[i]
        while j2 >= 0:
            total = reached + overload(load, capacity, weight, i, demand, j, k, j2, choice[j2])
            if total < gain[layer + 1, j2] and total < -LEAST_GAIN:
                gain[layer + 1, j2] = total
                parent[layer + 1, j2] = j
                column[layer + 1, j2] = k
                origin[layer + 1, j2] = s
            j2 = after[j2]


@helper
def _apply(
    node: Any,
    demand: Any,
    choice: Any,
    load: Any,
    head: Any,
    after: Any,
    before: Any,
    parent: Any,
    column: Any,
    s: Any,
    best_at: Any,
    touched: Any,
    stamp: Any,
) -> Any:
    """Apply the best chain from s, unless one of its nodes has changed; returns whether it did."""
    layer, last, k = best_at[s, 0], best_at[s, 1], best_at[s, 2]
    is_free = touched[node[last, k]] != stamp
    t = last
    for back in range(layer, -1, -1):
        is_free = is_free and touched[node[t, choice[t]]] != stamp
        t = parent[back, t] if back > 0 else t
    if not is_free:
        return False
    t = last
    for back in range(layer, -1, -1):
        touched[node[t, choice[t]]] = stamp
        touched[node[t, k]] = stamp
        previous, previous_k = (parent[back, t], column[back, t]) if back > 0 else (t, k)
        move(node, demand, choice, load, head, after, before, t, k)
        t, k = previous, previous_k
    return True


@helper
def descend(
    node: Any,
    cost: Any,
    demand: Any,
    capacity: Any,
    width: Any,
    depth: Any,
    choice: Any,
    load: Any,
    weight: Any,
    head: Any,
    after: Any,
    before: Any,
    rounds: Any,
    work: Any,
) -> Any:
    """Apply chains of at most `depth` tasks until none gains or the rounds end; returns the rounds made."""
    gain, parent, column, origin, best, best_at, touched, stamps, now = work
    tasks, nodes = node.shape[0], capacity.shape[0]
    for made in range(rounds):
        for i in range(nodes):
            now[i] = overload(load, capacity, weight, i, demand, -1, 0, -1, 0)
        best[:] = -LEAST_GAIN
        for j in range(tasks):
            i = node[j, choice[j]]
            released = overload(load, capacity, weight, i, demand, -1, 0, j, choice[j]) - now[i]
            gain[0, j], origin[0, j] = min(released, 0.0), j
        layer, has_any = 0, False
        while layer < depth and not has_any:
            is_last = layer == depth - 1
            if not is_last:
                gain[layer + 1, :] = 0.0
            for j in range(tasks):
                if layer == 0 or gain[layer, j] < 0.0:
                    _extend(
                        node, cost, demand, capacity, width, choice, load, weight, now, head, after,
                        gain, parent, column, origin, layer, j, is_last, best, best_at,
                    )  # fmt: skip
            layer += 1
            has_any = best.min() < -LEAST_GAIN
        if not has_any:
            return made
        stamps[0] += 1
        order = np.argsort(best)
        for at in range(tasks):
            s = order[at]
            if best[s] >= -LEAST_GAIN:
                break
            _apply(
                node, demand, choice, load, head, after, before, parent, column,
                s, best_at, touched, stamps[0],
            )  # fmt: skip
    return rounds


@helper
def relink(node: Any, demand: Any, choice: Any, load: Any, head: Any, after: Any, before: Any) -> None:
    """Rebuild lists and loads."""
    head[:] = -1
    load[:] = 0.0
    for j in range(choice.size):
        link(head, after, before, node[j, choice[j]], j)
        for r in range(load.shape[1]):
            load[node[j, choice[j]], r] += demand[j, choice[j], r]


@helper
def worth(node: Any, cost: Any, capacity: Any, choice: Any, load: Any, weight: Any) -> Any:
    """(cost, weighted overload) of a choice."""
    total, over = 0.0, 0.0
    for j in range(choice.size):
        total += cost[j, choice[j]]
    for i in range(capacity.shape[0]):
        for r in range(capacity.shape[1]):
            excess = load[i, r] - capacity[i, r]
            if excess > 1e-9:
                over += weight[i, r] * excess
    return total, over


@helper
def reweigh(load: Any, capacity: Any, weight: Any, harden: Any, ease: Any) -> None:
    """Raise the weights of overloaded resources, and multiply the other weights by `ease`."""
    for i in range(capacity.shape[0]):
        for r in range(capacity.shape[1]):
            weight[i, r] *= harden if load[i, r] > capacity[i, r] + 1e-9 else ease


@kernel(nogil=True)
def search(
    node: Any,
    cost: Any,
    demand: Any,
    capacity: Any,
    width: Any,
    depth: Any,
    kicks: Any,
    reach: Any,
    ease: Any,
    harden: Any,
    tolerance: Any,
    current: Any,
    best_choice: Any,
    best_cost: Any,
    weight: Any,
    draws: Any,
    rounds: Any,
) -> Any:
    """Iterated local search: perturb, descend, accept or undo; weights fall if feasible, rise on overload.

    `current` and `best_choice` [tasks] and `weight` [nodes, resources] change in place; each turn uses a
    row of `draws` [turns, 2 kicks]. `best_cost` is that of `best_choice`, infinite for none. Returns the cost
    of the best choice without overload.
    """
    tasks, nodes = node.shape[0], capacity.shape[0]
    load = np.zeros(capacity.shape)
    head, after, before = np.empty(nodes, np.int32), np.empty(tasks, np.int32), np.empty(tasks, np.int32)
    work = (
        np.zeros((depth, tasks)),
        np.zeros((depth, tasks), np.int32),
        np.zeros((depth, tasks), np.int32),
        np.zeros((depth, tasks), np.int32),
        np.zeros(tasks),
        np.zeros((tasks, 3), np.int32),
        np.zeros(nodes, np.int64),
        np.zeros(1, np.int64),
        np.zeros(nodes),
    )
    choice = current.copy()
    for turn in range(draws.shape[0]):
        choice[:] = current
        relink(node, demand, choice, load, head, after, before)
        for n in range(kicks):
            j = int(draws[turn, 2 * n] * tasks)
            k = int(draws[turn, 2 * n + 1] * reach)
            if node[j, k] >= 0 and k != choice[j]:
                move(node, demand, choice, load, head, after, before, j, k)
        descend(
            node, cost, demand, capacity, width, depth, choice, load, weight,
            head, after, before, rounds, work,
        )  # fmt: skip
        total, over = worth(node, cost, capacity, choice, load, weight)
        if over == 0.0 and total < best_cost - LEAST_GAIN:
            best_cost = total
            best_choice[:] = choice
        relink(node, demand, current, load, head, after, before)
        old_total, old_over = worth(node, cost, capacity, current, load, weight)
        if total + over <= old_total + old_over + tolerance:
            current[:] = choice
            relink(node, demand, current, load, head, after, before)
            old_over = over
        reweigh(load, capacity, weight, harden, ease if old_over == 0.0 else 1.0)
    return best_cost
