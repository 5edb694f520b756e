"""A planner's history of nodes from plan to plan: failures and time in service, kept in `plan.params`.

A node that was up at the last plan and is down now has failed, unless an outage was planned for it. A failure
that is repaired between two plans is not seen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab.domain.cluster import Floats
from trimtab.domain.view import View
from trimtab.forecast.availability import hazards_per_s, next_outages_s

_ROWS = 3  # of numbers kept for each node


class Watch(NamedTuple):
    """Counts since the start, and the time of the last look."""

    seen_s: float
    was_up: Floats  # [nodes]
    failures: Floats  # [nodes]
    up_s: Floats  # [nodes]

    @classmethod
    def read(cls, params: Floats, n_nodes: int) -> Watch:
        """From the last plan; nothing seen where there was none."""
        if len(params) != 1 + _ROWS * n_nodes:
            return cls(0.0, np.ones(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes))
        return cls(float(params[0]), *params[1:].reshape(_ROWS, n_nodes))

    def after(self, view: View, begin_s: Floats) -> Watch:
        """With what the view shows now; `begin_s` of planned outages [nodes]."""
        now_s, is_up = float(view.context.now_s), (view.nodes.up == 1).astype(np.float64)
        has_failed = (self.was_up == 1.0) & (is_up == 0.0) & (begin_s > now_s)
        served_s = np.where(self.was_up == 1.0, max(0.0, now_s - self.seen_s), 0.0)
        return Watch(now_s, is_up, self.failures + has_failed, self.up_s + served_s)

    def written(self) -> Floats:
        """As `plan.params`."""
        return np.concatenate([[self.seen_s], self.was_up, self.failures, self.up_s])


def availability(view: View, params: Floats) -> tuple[Floats, Floats]:
    """`plan.price` [nodes, 3]: failures per second, begin and end of the next outage; and `plan.params`."""
    n_nodes = len(view.nodes)
    begin_s, end_s = next_outages_s(view.outages, n_nodes, float(view.context.now_s))
    watch = Watch.read(params, n_nodes).after(view, begin_s)
    hazard = hazards_per_s(watch.failures, watch.up_s, view.nodes.type_idx)
    return np.stack([hazard, begin_s, end_s], axis=1), watch.written()
