"""What learned weights know of a node and a request: the same numbers in training, environments and hosts.

Every feature is a rational function of seconds and counts with values from -1 to 1, so that no library's
logarithm changes its last bit: x / (x + best) of a time or count, (x - best) / (x + best) of a ratio, where
`best` is the request's estimated service on the best type of node. The first `OF_GROUP` features are equal
for all nodes of one type that lack the same models; the next `OF_NODE` are of the single node; the rest are
equal for all nodes at one decision.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.view import View, can_take, missing_load_s, needs_of, service_s, type_of_node
from trimtab.policies.shared.waits import expected_wait_s

FEATURES_VERSION: Final = 1  # of this file's functions; weights of another version are refused
OF_GROUP, OF_NODE = 3, 2


class Feature(NamedTuple):
    """One number that learned weights see."""

    name: str
    unit: str
    meaning: str
    least: float
    most: float


FEATURES: Final = (
    Feature("load", "share of load and best", "seconds to load what the node lacks", 0.0, 1.0),
    Feature("slower", "difference over sum", "estimated service there, against the best type", 0.0, 1.0),
    Feature("fast", "difference over sum", "capacity a slot of the type, against the cluster's", -1.0, 1.0),
    Feature("wait", "share of wait and best", "expected wait for a slot of the node", 0.0, 1.0),
    Feature("queue", "share of in flight and slots", "requests in flight at the node", 0.0, 1.0),
    Feature("crowding", "q / (1 + q)", "q = requests held in the central queue per slot", 0.0, 1.0),
    Feature("waited", "share of waited and best", "seconds since the request came", 0.0, 1.0),
    Feature("idle", "share of nodes", "nodes that have a slot free", 0.0, 1.0),
    Feature("warm", "share of these", "that need not load the request's model", 0.0, 1.0),
    Feature("pressure", "share of wait and best", "least wait of the nodes that can take it", 0.0, 1.0),
    Feature("rivals", "h / (h + 10)", "h = held requests for its model; 0 = it needs no loading", 0.0, 1.0),
)
N_FEATURES: Final = len(FEATURES)
_LEAST_S: Final = 1e-9  # of the best service
_MANY_RIVALS: Final = 10.0
_HUGE: Final = 1e300  # seconds, of what cannot be


def features_memory(cluster: Cluster, rows: int) -> Floats:
    """Room for so many rows of features, after the feature `fast` of each type of node, [types]."""
    n = len(cluster.type_names)
    slots = np.bincount(cluster.type_idx, cluster.slots, n)
    per_slot = np.bincount(cluster.type_idx, cluster.weight, n) / np.maximum(slots, 1.0)
    mean = cluster.weight.sum() / cluster.slots.sum()
    return np.concatenate([(per_slot - mean) / (per_slot + mean), np.zeros(rows * N_FEATURES)])


@helper(inline=True)
def _share(x: float, best: float) -> float:
    return x / (x + best) if x < _HUGE else 1.0


@helper(inline=True)
def note_group(floats: Any, at: int, best_s: float, load_s: float, there_s: float, fast: float) -> None:
    """The features that nodes of one type share which lack the same models."""
    best_s = max(best_s, _LEAST_S)
    floats[at] = _share(load_s, best_s)
    floats[at + 1] = (there_s - best_s) / (there_s + best_s)
    floats[at + 2] = fast


@helper(inline=True)
def note_node(view: View, floats: Any, at: int, j: int, best_s: float, wait_s: float) -> None:
    """The features of a single node."""
    in_flight = float(view.nodes.in_flight[j])
    floats[at + OF_GROUP] = _share(wait_s, max(best_s, _LEAST_S))
    floats[at + OF_GROUP + 1] = _share(in_flight, max(1.0, float(view.nodes.slots[j])))


@helper(inline=True)
def note_request(
    view: View, work: Any, floats: Any, at: int, slots: float, idle: int, warm: int, wait_s: float
) -> None:
    """The features that all nodes share at one decision.

    `slots` of the cluster; `idle` nodes have one free, `warm` of these need not load the model; `wait_s`: of
    the node that waits least.
    """
    best_s = max(work.estimate_s, _LEAST_S)
    at = at + OF_GROUP + OF_NODE
    floats[at] = _share(float(view.context.n_held), slots)
    floats[at + 1] = _share(max(0.0, view.context.now_s - work.arrival_s), best_s)
    floats[at + 2] = idle / max(1, view.context.n_nodes)
    floats[at + 3] = warm / max(1, idle)
    floats[at + 4] = _share(wait_s, best_s)
    floats[at + 5] = _share(_rivals(view, work), _MANY_RIVALS)


@helper(inline=True)
def _rivals(view: View, work: Any) -> float:
    """Held requests for the work's model; 0 where no type of node has to load it."""
    if work.model_idx < 0:
        return 0.0
    m = plain(work.model_idx)
    for t in range(view.load_s.shape[1]):
        if view.load_s[m, t] > 0.0:
            return float(view.held_of_item[m])
    return 0.0


@helper(inline=True)
def is_free(view: View, j: int) -> bool:
    """Whether node j is up and has room and a slot free, for whatever class."""
    nodes = view.nodes
    return bool((nodes.up[j] == 1) & (nodes.room[j] > 0) & (nodes.in_flight[j] < nodes.slots[j]))


@helper(inline=True)
def is_warm(view: View, work: Any, j: int) -> bool:
    """Whether node j would serve the work without loading its model."""
    if work.model_idx < 0:
        return True
    m = plain(work.model_idx)
    return bool(view.resident[j, m] != 0 or view.load_s[m, type_of_node(view, j)] == 0.0)


@helper
def fill_features(view: View, work: Any, floats: Any, at: int, slots: float) -> int:
    """Write the features of every node for this work; returns how many nodes can take it.

    `floats` has `features_memory` of a row for each node from `at` on. The row of a node that can't take the
    work is all zero. `slots` are those of the cluster.
    """
    needs, rows = needs_of(work), at + view.fixed_s.shape[1]
    best_s, least_s, able, idle, warm = needs.estimate_s, _HUGE, 0, 0, 0
    for j in range(view.context.n_nodes):
        row = rows + j * N_FEATURES
        if is_free(view, j):
            idle += 1
            warm += 1 if is_warm(view, needs, j) else 0
        if not can_take(view, needs, j):
            for k in range(N_FEATURES):
                floats[row + k] = 0.0
            continue
        wait_s, fast = expected_wait_s(view, j), floats[at + type_of_node(view, j)]
        note_group(floats, row, best_s, missing_load_s(view, needs, j), service_s(view, needs, j), fast)
        note_node(view, floats, row, j, best_s, wait_s)
        least_s = min(least_s, wait_s)
        able += 1
    for j in range(view.context.n_nodes):
        if can_take(view, needs, j):
            row = rows + j * N_FEATURES
            note_request(view, work, floats, row, slots, idle, warm, least_s)
    return able
