"""Copies of models: how many slots each model will need, and which nodes are to load it ahead.

A model's copies are the nodes that hold it. What the nodes hold already is used first: each model takes the
free slots of its copies, those with the fewest copies for their need first. Only a model whose copies are too
few is placed anew, on nodes that have slots to spare, and there it takes the room of models that no slot was
given to. So a plan evicts nothing that is needed, and changes nothing while needs stay as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Floats
from trimtab.domain.view import View

Mask = NDArray[np.uint8]
_LEAST_SLOTS = 0.5  # a new copy is worth a load from that on
_SLACK_GIB = 1e-9


def slots_needed(rate_per_s: float, mean_s: float, scv: float, wait_frac: float) -> int:
    """Fewest servers at which the mean wait of M/G/c is at most `wait_frac` mean services; by bisection."""
    from trimtab.forecast.queueing import mgc  # with the first plan: it takes a moment

    def is_enough(servers: int) -> bool:
        return mgc(servers, rate_per_s, mean_s, scv).wait_s <= wait_frac * mean_s

    few, enough = int(rate_per_s * mean_s), int(rate_per_s * mean_s) + 1
    while not is_enough(enough):
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if is_enough(middle) else (middle, enough)
    return enough


class Staffing(NamedTuple):
    """Slots of nodes that each model is given, and what nodes are to hold."""

    slots: Floats  # [items, nodes]
    placement: Mask  # [nodes, items]


def services_of_models_s(view: View, work: Any) -> Floats:
    """Mean estimate of the past requests for each model on each node [items, nodes]; inf: not served."""
    n_items = view.resident.shape[1]
    of = work[work["model_idx"] >= 0]
    at = of["class_idx"]
    service_s = view.fixed_s[at] + view.unit_s[at] * of["units"][:, None]  # [requests, types]
    mean_s = np.full((n_items, service_s.shape[1]), np.inf)
    for m in np.unique(of["model_idx"]):
        mean_s[m] = service_s[of["model_idx"] == m].mean(axis=0)
    return np.asarray(mean_s[:, view.nodes.type_idx], np.float64)


def staffed(view: View, need_slots: Floats, service_s: Floats, memory_gib: Floats) -> Staffing:
    """Give each model the slots that it needs [items], on the nodes that hold it and then on others."""
    nodes, resident = view.nodes, np.asarray(view.resident)
    can = np.isfinite(service_s) & (nodes.up == 1)
    free = np.where(nodes.up == 1, nodes.slots, 0).astype(np.float64)
    given = np.zeros(service_s.shape)
    left = np.where(can.any(axis=1), need_slots, 0.0)
    holds = (resident.T == 1) & can
    supply = (holds * free).sum(axis=1)
    for m in sorted(np.flatnonzero(left > 0.0), key=lambda m: (supply[m] / left[m], m)):
        for j in sorted(np.flatnonzero(holds[m]), key=lambda j: (service_s[m, j], j)):
            share = min(free[j], left[m])
            given[m, j], free[j], left[m] = share, free[j] - share, left[m] - share
    _place_short(view, given, free, left, can, service_s, memory_gib)
    return Staffing(given, (given.T > 0.0).astype(np.uint8))


def _place_short(
    view: View, given: Floats, free: Floats, left: Floats, can: Any, service_s: Floats, memory_gib: Floats
) -> None:
    """Give the models that lack slots new copies, the largest lack first, where these serve soonest."""
    gib, load_s = np.asarray(view.item_gib), np.asarray(view.load_s)
    kept_gib = ((given.T > 0.0) * gib).sum(axis=1)
    for m in sorted(np.flatnonzero(left >= _LEAST_SLOTS), key=lambda m: (-left[m], m)):
        lacks = can[m] & (view.resident[:, m] == 0) & (free >= _LEAST_SLOTS)
        lacks &= kept_gib + gib[m] <= memory_gib + _SLACK_GIB
        cost_s = service_s[m] + load_s[m, view.nodes.type_idx]
        for j in sorted(np.flatnonzero(lacks), key=lambda j: (cost_s[j], -free[j], j)):
            if left[m] < _LEAST_SLOTS:
                break
            share = min(free[j], left[m])
            given[m, j], free[j], left[m] = share, free[j] - share, left[m] - share
            kept_gib[j] += gib[m]
