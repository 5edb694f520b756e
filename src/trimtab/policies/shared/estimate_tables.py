"""The View's estimates as whole tables, for planners: many requests and nodes at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.domain.cluster import Floats
from trimtab.domain.view import View


def services_s(view: View, work: Any) -> Floats:
    """Estimated service seconds of each row of WORK on each node type [requests, types]; inf: not served."""
    c = work["class_idx"]
    return np.asarray(view.fixed_s[c] + view.unit_s[c] * work["units"][:, None], np.float64)


def loads_s(view: View, work: Any) -> Floats:
    """Seconds of loading that each node would need before it can serve each row of WORK [requests, nodes]."""
    total = np.zeros((len(work), len(view.nodes)))
    for item in (work["model_idx"], work["adapter_idx"]):
        needs = np.flatnonzero(item >= 0)
        if len(needs):
            m = item[needs]
            total[needs] += np.where(view.resident.T[m] == 0, view.load_s[m][:, view.nodes.type_idx], 0.0)
    return total


def remaining_s(view: View) -> Floats:
    """Estimated seconds of work left at each node, queued and running [nodes]."""
    nodes = view.nodes
    worked_off_s = nodes.running * (view.context.now_s - nodes.anchor_s)
    return np.asarray(np.maximum(0.0, nodes.backlog_s - worked_off_s), np.float64)
