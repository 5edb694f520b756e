"""Round-trip times between zones: declared, or measured by health checks.

A node's round trip is the shortest of its last checks: what a check takes longer than that is the server's
own time, or this process's. A zone's is the median of its nodes. All requests pass this gateway, so between
two zones of which neither is its own, the times of both from here add up, unless they are declared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from trimtab.domain.cluster import Floats
from trimtab.gateway.decide.declared import Declared

KEPT: Final = 16  # checks of a node


class RoundTrips:
    """Measured round trips from this gateway to nodes."""

    def __init__(self) -> None:
        self._of_node: dict[int, deque[float]] = {}

    def note(self, node_idx: int, seconds: float) -> None:
        """A check of the node took this long."""
        self._of_node.setdefault(node_idx, deque(maxlen=KEPT)).append(seconds)

    def forget(self, node_idx: int) -> None:
        """The node is gone; another may have its index later."""
        self._of_node.pop(node_idx, None)

    def of_node(self, node_idx: int) -> float | None:
        """Seconds of a round trip to a node; None = not measured."""
        kept = self._of_node.get(node_idx)
        return min(kept) if kept else None

    def between(self, zones: Sequence[str], node_zones: Sequence[str], declared: Declared) -> Floats:
        """Seconds of a round trip [zones, zones]. `node_zones`: of each node, by index."""
        from_here = [self._to_zone(zone, node_zones, declared) for zone in zones]
        is_own = [zone == declared.zone for zone in zones]
        out = np.zeros((len(zones), len(zones)))
        for a, first in enumerate(zones):
            for b, second in enumerate(zones):
                known = _declared(first, second, declared)
                via_here = (0.0 if is_own[a] else from_here[a]) + from_here[b]
                out[a, b] = via_here if known is None else known
        return out

    def _to_zone(self, zone: str, node_zones: Sequence[str], declared: Declared) -> float:
        known = _declared(declared.zone, zone, declared)
        if known is not None:
            return known
        measured = [
            seconds
            for j, of in enumerate(node_zones)
            if of == zone and (seconds := self.of_node(j)) is not None
        ]
        return median(measured) if measured else 0.0


def _declared(a: str, b: str, declared: Declared) -> float | None:
    known = declared.rtt_s.get((a, b))
    return declared.rtt_s.get((b, a)) if known is None else known
