"""Preemption between queues: a queue that was below its guarantee for its notice takes back what is its.

A queue claims the units that wait in it and fit into its guarantee. After the notice, units of others make
place for them: of the queue that holds most for its weight, the last first, and never so that a queue falls
below its own guarantee (as YARN's Capacity Scheduler, whose preemption stops at guarantees too).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.queue_filling import (
    SLACK,
    Filling,
    Rules,
    Units,
    dominant_share,
    fill,
    find_place,
    hold,
)
from trimtab.domain.queue_tree import Flags, Floats, Ints


def noted(short_since_s: Floats, is_short: Flags, now_s: float) -> Floats:
    """Since when queues are below their guarantee while work waits in them, [queues]; nan = they are not."""
    return np.where(is_short, np.where(np.isnan(short_since_s), now_s, short_since_s), np.nan)


def claimed(rules: Rules, filling: Filling, units: Units, row: int) -> Ints:
    """The units that wait in a queue and with which it is within its guarantee, in the order of the leaf."""
    shape, guarantee = rules.shape, rules.amounts.guarantee[row]
    if not guarantee.any():
        return np.zeros(0, np.int64)
    limit = np.zeros_like(rules.amounts.limit)
    limit[row : shape.end[row]] = rules.amounts.limit[row : shape.end[row]]
    limit[row] = np.where(guarantee > 0, guarantee, np.inf)
    above = row
    while above > 0:
        above = shape.parent[above]
        limit[above] = np.inf
    inside = rules._replace(amounts=rules.amounts._replace(limit=limit))
    tried = Filling._make(column.copy() for column in filling)
    tried.free[:], tried.pool_free[:] = np.inf, np.inf
    granted = units._replace(granted=units.granted.copy(), pool=units.pool.copy())
    fill(inside, tried, granted, np.zeros((len(shape.leaf_row), len(filling.pool_free))))
    return np.flatnonzero(granted.granted & ~units.granted)


@kernel
def take_back(rules: Any, filling: Any, units: Any, removable: Any, row: int, wanted: Any) -> Any:
    """Grant the wanted units of a queue; others make place. Returns which of those were taken, [units].

    Args:
        rules: what holds.
        filling: what is held, changed.
        units: the work, `granted` and `pool` changed.
        removable: [units] whether each may lose its place.
        row: the queue.
        wanted: units of it; one for which not enough can be taken takes nothing.
    """
    taken = np.zeros(len(units.granted), np.bool_)
    leaf_of = np.zeros(len(units.granted), np.int64)
    for leaf in range(len(units.first) - 1):
        leaf_of[units.first[leaf] : units.first[leaf + 1]] = leaf
    for unit in wanted:
        if not units.granted[units.base[unit]] and units.base[unit] != unit:
            continue
        since = np.zeros(len(taken), np.bool_)  # what made place for this unit
        fits = find_place(filling, units, unit)
        while not fits:
            victim = _victim(rules, filling, units, removable, row, unit, leaf_of)
            if victim < 0:
                break
            hold(rules, filling, units, victim, leaf_of[victim], -1.0)
            since[victim] = True
            fits = find_place(filling, units, unit)
        if fits:
            hold(rules, filling, units, unit, leaf_of[unit], 1.0)
            taken |= since
        else:
            for k in range(len(since)):
                if since[k]:
                    hold(rules, filling, units, k, leaf_of[k], 1.0)
    return taken


@helper
def _victim(rules: Any, filling: Any, units: Any, removable: Any, row: int, wanted: int, leaf_of: Any) -> int:
    """The unit that gives way, or −1: of the sibling with most for its weight, then of its fullest leaf."""
    shape = rules.shape
    best, best_top, best_leaf = -1, -1.0, -1.0
    is_base = np.zeros(len(units.granted), np.bool_)
    for unit in range(len(units.granted)):
        if units.granted[unit] and units.base[unit] != unit:
            is_base[units.base[unit]] = True
    for unit in range(len(units.granted)):
        if not units.granted[unit] or not removable[unit] or is_base[unit]:
            continue
        leaf_row = shape.leaf_row[leaf_of[unit]]
        if row <= leaf_row < shape.end[row] or not _helps(filling, units, unit, wanted):
            continue
        q, top, is_safe = leaf_row, leaf_row, True
        while not q <= row < shape.end[q]:  # up to the first queue that both are in
            held, less = filling.used[q], np.zeros(len(filling.free))
            for r in range(len(less)):
                less[r] = held[r] - units.amount[unit, r]
            is_safe &= (
                dominant_share(rules, less) >= dominant_share(rules, rules.amounts.guarantee[q]) - SLACK
            )
            top, q = q, shape.parent[q]
        if not is_safe:
            continue
        level = dominant_share(rules, filling.used[top]) / shape.weight[top]
        leaf_level = dominant_share(rules, filling.used[leaf_row]) / shape.weight[leaf_row]
        if level > best_top + SLACK or (level > best_top - SLACK and leaf_level >= best_leaf - SLACK):
            best, best_top, best_leaf = unit, level, leaf_level
    return best


@helper
def _helps(filling: Any, units: Any, unit: int, wanted: int) -> bool:
    """Whether what a unit holds is something that the wanted one lacks."""
    for r in range(1, len(filling.free)):
        if units.amount[wanted, r] > filling.free[r] + SLACK and units.amount[unit, r] > 0:
            return True
    lacks, held = units.amount[wanted, 0], 0.0
    for p in range(len(filling.pool_free)):
        if units.pools[wanted, p]:
            lacks -= filling.pool_free[p]
            held += units.pool[unit, p]
    return lacks > SLACK and held > 0
