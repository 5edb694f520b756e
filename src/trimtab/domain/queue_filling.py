"""Who is served next under queues: work granted unit by unit down the tree, and taken back.

The next unit goes to the child that is below its guarantee, least first, else to the one with the least share
for its weight, and so on down to a leaf. A share is that of the first resource, or where `is_dominant` that
of hierarchical dominant-resource fairness, H-DRF (Bhattacharya, Culler, Friedman, Ghodsi, Shenker, Stoica:
Hierarchical Scheduling for Diverse Datacenter Workloads, SoCC 2013, section 4: dynamic version). There the
children of a queue count rescaled to the least of their shares, blocked ones as they are, and resources of
which nobody can get more do not count in inner queues.

Beyond the source: guarantees and limits, several kinds of units in a leaf, and units that do not fit. These
last keep what is free for their leaf while it is behind a sibling; else smaller ones pass them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.queue_tree import Amounts, Flags, Floats, Ints, QueueOrder, QueueTree, TreeShape

SLACK = 1e-9
_FAIR = int(QueueOrder.FAIR)


class Filling(NamedTuple):
    """What is held and granted so far."""

    used: Floats  # [queues, resources]
    free: Floats  # [resources]
    blocked: Flags  # [queues] nothing more can be granted in it
    share: Floats  # [queues] that is compared; of a dominant resource as H-DRF has it
    vector: Floats  # [queues, resources] parts of the capacity, rescaled as H-DRF does
    live: Flags  # [resources] of which some leaf that is not blocked wants more
    running: Ints  # [queues] units that begin something
    tenant_used: Floats  # [tenants, resources]
    pool_free: Floats  # [pools] of the first resource, in each kind of places


class Rules(NamedTuple):
    """What holds, for kernels."""

    shape: TreeShape
    amounts: Amounts
    is_dominant: bool
    order: Ints  # [queues] QueueOrder
    most_running: Ints  # [queues]
    tenant_most: Floats  # [tenants, resources] by the user limit of its leaf


class Units(NamedTuple):
    """Work by leaf, in the leaf's order. A unit is granted whole."""

    first: Ints  # [leaves + 1] units of leaf k are first[k] … first[k + 1] − 1
    amount: Floats  # [units, resources]
    tenant: Ints  # [units]
    base: Ints  # [units] the unit that must be granted before; itself = it begins something
    granted: Flags  # [units]
    pools: Flags  # [units, pools] where it may be
    pool: Floats  # [units, pools] where it is, of the first resource
    kind: Ints  # [pools] a unit is placed in pools of one kind


def rules_of(tree: QueueTree, capacity: Floats, leaf_of: Ints) -> Rules:
    """For tenants of these leaves, [tenants]; `capacity` [resources]."""
    amounts = tree.amounts(capacity)
    rows = tree.shape.leaf_row[leaf_of]
    tenant_most = amounts.limit[rows] * tree.user_limit[rows, None]
    return Rules(tree.shape, amounts, tree.is_dominant, tree.order, tree.most_running, tenant_most)


def units_of(
    first: Ints,
    amount: Floats,
    tenant: Ints,
    base: Ints | None = None,
    pools: Flags | None = None,
    kind: Ints | None = None,
) -> Units:
    """Units that are not granted; without pools there is one for all, without kinds all are of one."""
    n = len(amount)
    base = np.arange(n) if base is None else base
    pools = np.ones((n, 1), np.bool_) if pools is None else pools
    kind = np.zeros(pools.shape[1], np.int64) if kind is None else kind
    return Units(first, amount, tenant, base, np.zeros(n, np.bool_), pools, np.zeros(pools.shape), kind)


def empty_filling(rules: Rules, pool_size: Floats | None = None) -> Filling:
    """Nothing is held; `pool_size` [pools] of the first resource, None = one pool of all."""
    n, resources = rules.amounts.guarantee.shape
    return Filling(
        used=np.zeros((n, resources)),
        free=rules.amounts.capacity.copy(),
        blocked=np.zeros(n, np.bool_),
        share=np.zeros(n),
        vector=np.zeros((n, resources)),
        live=np.ones(resources, np.bool_),
        running=np.zeros(n, np.int64),
        tenant_used=np.zeros_like(rules.tenant_most),
        pool_free=rules.amounts.capacity[:1].copy() if pool_size is None else pool_size.astype(np.float64),
    )


@helper
def dominant_share(rules: Any, amount: Any) -> float:
    """The share of an amount [resources]: of the first resource, or the largest."""
    capacity = rules.amounts.capacity
    share = 0.0
    for r in range(len(amount) if rules.is_dominant else 1):
        if capacity[r] > 0:
            share = max(share, amount[r] / capacity[r])
    return share


@kernel
def hold(rules: Any, filling: Any, units: Any, unit: int, leaf: int, sign: float) -> None:
    """Count a unit as held, or with sign −1 as not held any more; its pools are in `units.pool`."""
    amount = units.amount[unit]
    units.granted[unit] = sign > 0
    for r in range(len(amount)):
        filling.free[r] -= sign * amount[r]
        filling.tenant_used[units.tenant[unit], r] += sign * amount[r]
    for p in range(len(filling.pool_free)):
        filling.pool_free[p] -= sign * units.pool[unit, p]
    q = rules.shape.leaf_row[leaf]
    while q >= 0:
        for r in range(len(amount)):
            filling.used[q, r] += sign * amount[r]
        if units.base[unit] == unit:
            filling.running[q] += int(sign)
        q = rules.shape.parent[q]


@kernel
def update_shares(rules: Any, filling: Any) -> None:
    """The shares that siblings are compared by."""
    shape, capacity, n_resources = rules.shape, rules.amounts.capacity, len(filling.free)
    for q in range(len(shape.parent) - 1, -1, -1):
        if not rules.is_dominant or shape.end[q] == q + 1:
            filling.share[q] = dominant_share(rules, filling.used[q])
            for r in range(n_resources):
                filling.vector[q, r] = filling.used[q, r] / capacity[r] if capacity[r] > 0 else 0.0
            continue
        least = np.inf
        child = q + 1
        while child < shape.end[q]:
            if not filling.blocked[child]:
                least = min(least, filling.share[child] / shape.weight[child])
            child = shape.end[child]
        for r in range(n_resources):
            filling.vector[q, r] = 0.0
        child = q + 1
        while child < shape.end[q]:
            factor = 1.0
            if not filling.blocked[child] and filling.share[child] > 0:
                factor = least * shape.weight[child] / filling.share[child]
            for r in range(n_resources):
                filling.vector[q, r] += factor * filling.vector[child, r]
            child = shape.end[child]
        share = 0.0
        for r in range(n_resources):
            if filling.live[r]:
                share = max(share, filling.vector[q, r])
        filling.share[q] = share


@kernel
def next_leaf(rules: Any, filling: Any) -> int:
    """The leaf that is served next by `share`, or −1 if all are blocked. Ties go to the first."""
    shape, q = rules.shape, 0
    if filling.blocked[0]:
        return -1
    while shape.end[q] > q + 1:
        best, best_group, best_ratio = -1, 2, np.inf
        child = q + 1
        while child < shape.end[q]:
            if not filling.blocked[child]:
                guarantee = dominant_share(rules, rules.amounts.guarantee[child])
                held = dominant_share(rules, filling.used[child])
                group = 0 if held < guarantee - SLACK else 1
                ratio = held / guarantee if group == 0 else filling.share[child] / shape.weight[child]
                if best < 0 or group < best_group or (group == best_group and ratio < best_ratio - SLACK):
                    best, best_group, best_ratio = child, group, ratio
            child = shape.end[child]
        q = best
    return int(shape.first_leaf[q])


@kernel
def block(rules: Any, filling: Any, leaf: int) -> None:
    """Nothing more can be granted in this leaf: neither in queues of which all children are blocked."""
    shape = rules.shape
    q = shape.leaf_row[leaf]
    filling.blocked[q] = True
    while shape.parent[q] >= 0:
        q = shape.parent[q]
        child, is_open = q + 1, False
        while child < shape.end[q]:
            is_open |= not filling.blocked[child]
            child = shape.end[child]
        if is_open:
            return
        filling.blocked[q] = True


@helper
def _may(rules: Any, filling: Any, units: Any, unit: int, leaf: int) -> bool:
    """Whether limits allow a unit, whatever is free."""
    base, tenant = units.base[unit], units.tenant[unit]
    if base != unit and not units.granted[base]:
        return False
    for r in range(len(filling.free)):
        more = units.amount[unit, r] - SLACK
        most = rules.tenant_most[tenant, r] - filling.tenant_used[tenant, r]
        if more > min(rules.amounts.capacity[r], most):
            return False
    q = rules.shape.leaf_row[leaf]
    while q >= 0:
        if base == unit and filling.running[q] >= rules.most_running[q]:
            return False
        for r in range(len(filling.free)):
            over = filling.used[q, r] + units.amount[unit, r] - rules.amounts.limit[q, r]
            if q > 0 and over > SLACK:  # the root's limit is what is free
                return False
        q = rules.shape.parent[q]
    return True


@helper
def find_place(filling: Any, units: Any, unit: int) -> bool:
    """Find pools of one kind for a unit, as they come; False = not so much is free."""
    needs, n_pools = units.amount[unit, 0], len(filling.pool_free)
    for r in range(len(filling.free)):
        if units.amount[unit, r] > filling.free[r] + SLACK:
            return False
    for p in range(n_pools):
        there = 0.0
        for other in range(n_pools):
            if units.pools[unit, other] and units.kind[other] == units.kind[p]:
                there += filling.pool_free[other]
        if there >= needs - SLACK:
            for other in range(n_pools):
                may = units.pools[unit, other] and units.kind[other] == units.kind[p]
                takes = max(min(needs, filling.pool_free[other]), 0.0) if may else 0.0
                units.pool[unit, other] = takes
                needs -= takes
            return True
    return False


@helper
def _is_behind(rules: Any, filling: Any, unit_amount: Any, leaf: int) -> bool:
    """Whether with this unit the leaf, or a queue above it, is within its guarantee or a sibling's level."""
    shape = rules.shape
    q = shape.leaf_row[leaf]
    more = dominant_share(rules, unit_amount)
    while q > 0:
        after = dominant_share(rules, filling.used[q]) + more
        if after <= dominant_share(rules, rules.amounts.guarantee[q]) + SLACK:
            return True
        above = shape.parent[q]
        child = above + 1
        while child < shape.end[above]:
            level = dominant_share(rules, filling.used[child]) / shape.weight[child]
            if child != q and after / shape.weight[q] <= level + SLACK:
                return True
            child = shape.end[child]
        q = above
    return False


@helper
def _next_unit(rules: Any, filling: Any, units: Any, leaf: int, passed: Any) -> int:
    """The unit that the leaf's order has next, of those not passed; −1 = none."""
    is_fair = rules.order[rules.shape.leaf_row[leaf]] == _FAIR
    best, best_share = -1, np.inf
    for unit in range(units.first[leaf], units.first[leaf + 1]):
        if units.granted[unit] or passed[unit] or not _may(rules, filling, units, unit, leaf):
            continue
        if not is_fair:
            return unit
        share = dominant_share(rules, filling.tenant_used[units.tenant[unit]])
        if share < best_share - SLACK:
            best, best_share = unit, share
    return best


@helper
def _update_live(filling: Any, units: Any, rules: Any, passed: Any) -> None:
    """Which resources some leaf that is not blocked wants more of."""
    filling.live[:] = False
    for leaf in range(len(units.first) - 1):
        if filling.blocked[rules.shape.leaf_row[leaf]]:
            continue
        for unit in range(units.first[leaf], units.first[leaf + 1]):
            if not units.granted[unit] and not passed[unit]:
                for r in range(len(filling.free)):
                    filling.live[r] |= units.amount[unit, r] > 0


@kernel
def fill(rules: Any, filling: Any, units: Any, set_aside: Any) -> None:
    """Grant units until no leaf can have more.

    Args:
        rules: what holds.
        filling: what is held, changed.
        units: the work, `granted` and `pool` changed; what is held already is granted.
        set_aside: [leaves, pools] free amounts of the first resource that are kept for a leaf, changed.
    """
    passed = np.zeros(len(units.granted), np.bool_)
    filling.blocked[:] = False
    _update_live(filling, units, rules, passed)
    while True:
        if rules.is_dominant:  # H-DRF blocks leaves as soon as nothing of theirs fits
            for leaf in range(len(units.first) - 1):
                if not filling.blocked[rules.shape.leaf_row[leaf]]:
                    _fitting(rules, filling, units, leaf, passed, set_aside)
        update_shares(rules, filling)
        leaf = next_leaf(rules, filling)
        if leaf < 0:
            return
        unit = _fitting(rules, filling, units, leaf, passed, set_aside)
        if unit >= 0:
            hold(rules, filling, units, unit, leaf, 1.0)


@helper
def _fitting(rules: Any, filling: Any, units: Any, leaf: int, passed: Any, set_aside: Any) -> int:
    """The leaf's next unit that fits, or −1: then the leaf is blocked."""
    while True:
        unit = _next_unit(rules, filling, units, leaf, passed)
        if unit >= 0 and find_place(filling, units, unit):
            return unit
        if unit >= 0:
            passed[unit] = True
            if units.base[unit] != unit or not _is_behind(rules, filling, units.amount[unit], leaf):
                continue
            _keep_for(filling, units, unit, set_aside[leaf])
        block(rules, filling, leaf)
        _update_live(filling, units, rules, passed)
        return -1


@helper
def _keep_for(filling: Any, units: Any, unit: int, set_aside: Any) -> None:
    """Keep what is free for a unit that does not fit yet."""
    left = units.amount[unit, 0]
    for r in range(1, len(filling.free)):
        filling.free[r] -= min(filling.free[r], units.amount[unit, r])
    for p in range(len(filling.pool_free)):
        kept = min(left, filling.pool_free[p]) if units.pools[unit, p] else 0.0
        kept = max(kept, 0.0)
        set_aside[p] += kept
        filling.pool_free[p] -= kept
        filling.free[0] -= kept
        left -= kept
