"""Transfer time of a request's payload to a node over shared links."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.view import View, plain, zone_of_node


@helper(inline=True)
def _link_s(view: View, payload_gib: float, link: int) -> float:
    """Seconds on one link if its present transfers stay, and all share the link equally."""
    gib_per_s = view.link_gib_per_s[link]
    return float(payload_gib * (view.link_active[link] + 1) / gib_per_s) if gib_per_s < np.inf else 0.0


@helper(inline=True)
def round_trip_s(view: View, work: Any, j: int) -> float:
    """Round trip between the work's zone and node j's."""
    return float(view.rtt_s[work.zone_idx, zone_of_node(view, j)])


@helper(inline=True)
def transfer_s(view: View, work: Any, j: int) -> float:
    """Seconds until the work's payload is at node j: a round trip, the link into its zone, the node's own."""
    zone_idx, seconds = zone_of_node(view, j), round_trip_s(view, work, j)
    if work.payload_gib > 0.0:
        gib = work.payload_gib
        if len(view.input_gib) > 0:  # a stage: the node may hold some of its inputs
            gib = max(0.0, gib - view.input_gib[j])
        if zone_idx != work.zone_idx:
            seconds += _link_s(view, gib, zone_idx)
        seconds += _link_s(view, gib, plain(view.rtt_s.shape[0] + j))
    return seconds
