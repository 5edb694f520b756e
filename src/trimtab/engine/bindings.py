"""Bindings of a plan: a bound request gets the next free place of one node before all other requests.

A binding is carried out when the node's true state has a place that no request holds or is in transfer to. A
binding without effect is stale: it has expired, or its request is no longer held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.domain.view import Plan
from trimtab.engine.nodes import accepts
from trimtab.engine.shares import has_tree, is_within_limits
from trimtab.engine.state import State

_HELD = int(Status.HELD)


def located(plan: Plan, held: Any, work: Any) -> Plan:
    """The plan with the rows of its bound requests, for a plan that takes force now; −1 = not held.

    `held`: rows of `work` that the central queue holds.
    """
    serials = work["serial"][held]
    by_serial = np.argsort(serials)
    binding = plan.binding.copy()
    at = np.searchsorted(serials, binding["serial"], sorter=by_serial)
    rows = np.append(held[by_serial], -1)[at]
    is_held = np.append(serials[by_serial], -1)[at] == binding["serial"]
    binding["row_idx"] = np.where(is_held, rows, -1)
    return plan._replace(binding=binding)


@helper
def next_bound(s: State, plan: Plan, now_s: float) -> int:
    """Position of the first binding of a `located` plan that can be carried out; -1 = none. O(bindings)."""
    binding, nodes = plan.binding, s.nodes
    for i in range(len(binding.serial)):
        r, j = binding.row_idx[i], binding.node_idx[i]
        if r < 0 or now_s > binding.expires_s[i] or nodes.in_flight[j] >= nodes.slots[j]:
            continue
        if has_tree(s) and not is_within_limits(s, r):
            continue
        if s.requests.status[r] == _HELD and s.work.serial[r] == binding.serial[i] and accepts(s, r, j):
            return i
    return -1
