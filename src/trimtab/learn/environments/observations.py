"""What an agent that dispatches requests sees: one row for each node, or for each pair of request and node.

The columns are those of `policies.shared.features`, then the ones below. All lie between -1 and 1.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.compiled.kernel import helper, plain
from trimtab.domain.view import View, can_take, missing_load_s, needs_of, own_s, service_s, type_of_node
from trimtab.engine.state import State
from trimtab.policies.shared.delivery import round_trip_s
from trimtab.policies.shared.features import (
    FEATURES,
    N_FEATURES,
    Feature,
    is_free,
    is_warm,
    note_group,
    note_node,
    note_request,
)
from trimtab.policies.shared.room import starts_now
from trimtab.policies.shared.waits import expected_wait_s

_SIZE = Feature(
    "size", "share of best and usual", "usual = a unit of the mean class on its best type", 0.0, 1.0
)
_LATER = Feature(
    "later",
    "share of later and best",
    "later = least completion at a busy node, each wait counted once for every held request",
    0.0,
    1.0,
)
NODE_COLUMNS: Final = (*FEATURES, _SIZE)
PAIR_COLUMNS: Final = (*NODE_COLUMNS, _LATER)
N_NODE_COLUMNS: Final = len(NODE_COLUMNS)
N_PAIR_COLUMNS: Final = len(PAIR_COLUMNS)

_HUGE: Final = 1e300  # seconds, of what cannot be
_LEAST_S: Final = 1e-9


@helper(inline=True)
def _note_row(view: View, needs: Any, out: Any, at: int, j: int, wait_s: float, fast: Any) -> None:
    """The columns of node j that do not depend on other nodes."""
    load_s, there_s = missing_load_s(view, needs, j), service_s(view, needs, j)
    note_group(out, at, needs.estimate_s, load_s, there_s, fast[type_of_node(view, j)])
    note_node(view, out, at, j, needs.estimate_s, wait_s)


@helper(inline=True)
def _size_of(estimate_s: float, usual_s: float) -> float:
    return estimate_s / (estimate_s + usual_s) if estimate_s < _HUGE else 1.0


@helper
def note_nodes(s: State, r: int, d: int, out: Any, mask: Any, fast: Any, slots: float, usual_s: float) -> int:
    """A row for each node about request r of dispatcher d; returns how many nodes can take it.

    out [nodes × N_NODE_COLUMNS], zero where a node cannot take it; mask [nodes, or more]: whether it can.
    """
    view, work = s.views[d], s.work[r]
    needs = needs_of(work)
    least_s, able, idle, warm = _HUGE, 0, 0, 0
    for j in range(view.context.n_nodes):
        at = j * N_NODE_COLUMNS
        if is_free(view, j):
            idle += 1
            warm += 1 if is_warm(view, needs, j) else 0
        mask[j] = can_take(view, needs, j)
        if not mask[j]:
            for k in range(N_NODE_COLUMNS):
                out[at + k] = 0.0
            continue
        wait_s = expected_wait_s(view, j)
        _note_row(view, needs, out, at, j, wait_s, fast)
        least_s = min(least_s, wait_s)
        able += 1
    for j in range(view.context.n_nodes):
        if mask[j]:
            note_request(view, work, out, j * N_NODE_COLUMNS, slots, idle, warm, least_s)
            out[j * N_NODE_COLUMNS + N_FEATURES] = _size_of(needs.estimate_s, usual_s)
    return able


@helper
def _is_known(view: View, needs: Any, pairs: Any, first: int, n: int, j: int) -> bool:
    """Whether one of the pairs from `first` on has a node that is now like node j for this work."""
    load_s, nodes = missing_load_s(view, needs, j), view.nodes
    for p in range(first, n):
        i = pairs[p, 1]
        is_alike = nodes.group_idx[i] == nodes.group_idx[j] and nodes.zone_idx[i] == nodes.zone_idx[j]
        is_alike = is_alike and nodes.in_flight[i] == nodes.in_flight[j]
        if is_alike and missing_load_s(view, needs, plain(i)) == load_s:
            return True
    return False


@helper
def note_pairs(
    s: State, r: int, d: int, out: Any, pairs: Any, n: int, fast: Any, slots: float, usual_s: float
) -> int:
    """Append the pairs of request r of dispatcher d with idle nodes to the first n; returns the new n.

    pairs [most, 2]: request and node; out [most × N_PAIR_COLUMNS]. Of idle nodes that are alike, the first.
    """
    view, work = s.views[d], s.work[r]
    needs, first, rivals = needs_of(work), n, 1.0 + view.context.n_held
    least_s, later_s, idle, warm = _HUGE, _HUGE, 0, 0
    for j in range(view.context.n_nodes):
        if is_free(view, j):
            idle += 1
            warm += 1 if is_warm(view, needs, j) else 0
        if not can_take(view, needs, j):
            continue
        wait_s = expected_wait_s(view, j)
        least_s = min(least_s, wait_s)
        if view.nodes.in_flight[j] >= view.nodes.slots[j]:
            later_s = min(later_s, rivals * wait_s + own_s(view, needs, j) + round_trip_s(view, needs, j))
        elif n < len(pairs) and starts_now(view, needs, j) and not _is_known(view, needs, pairs, first, n, j):
            pairs[n, 0], pairs[n, 1] = r, j
            _note_row(view, needs, out, n * N_PAIR_COLUMNS, j, wait_s, fast)
            n += 1
    best_s = max(needs.estimate_s, _LEAST_S)
    for p in range(first, n):
        at = p * N_PAIR_COLUMNS
        note_request(view, work, out, at, slots, idle, warm, least_s)
        out[at + N_FEATURES] = _size_of(needs.estimate_s, usual_s)
        out[at + N_FEATURES + 1] = later_s / (later_s + best_s) if later_s < _HUGE else 1.0
    return n
