"""Planned outages as policies see them: `view.outages`, in the time of the pools.

The first rows are one for each node, for what withholds it now and is no fault: an operator's drain, a pause
that it asked for. So policies that count failures count none. The calendar's windows follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.view import OUTAGE
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import FAULTS
from trimtab.gateway.nodes.planned_outages import Window


def outage_rows(fleet: Fleet, windows: Sequence[Window], now_s: float, utc_s: float) -> NDArray[Any]:
    """OUTAGE [outages]. `now_s` and `utc_s`: the same time for the pools, and since 1970."""
    since_1970_s = utc_s - now_s
    rows: list[tuple[float, float, int]] = []
    for node in fleet.nodes:
        holds = fleet.state(node).holds.keys()
        is_withheld = bool(holds) and not holds & FAULTS
        rows.append((now_s, np.inf if is_withheld else now_s, node.idx))
    for window in windows:
        found = fleet.find(window.node)
        if found is not None:
            rows += [(a - since_1970_s, b - since_1970_s, found.idx) for a, b in window.next(utc_s)]
    return np.array(rows, OUTAGE)
