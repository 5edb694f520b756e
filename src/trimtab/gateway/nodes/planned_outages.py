"""Planned outages of nodes: windows of the maintenance calendar, and the drain at their time.

A node gets no new requests from the begin of a window to its end. Requests that run then go on, as long as
the machine does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.periodic import PeriodicTask

WEEK_S: Final = 7 * 86_400.0
LOOK_S: Final = 0.5  # between two looks at the calendar
SHOWN: Final = 2  # next occurrences of a window that policies see


class Window(NamedTuple):
    """A planned outage, in seconds since 1970."""

    node: str
    start_s: float
    end_s: float
    is_weekly: bool = False  # the first of many, one each week

    def next(self, utc_s: float) -> list[tuple[float, float]]:
        """The next occurrences that are not over, the present one included: (start, end)."""
        if not self.is_weekly:
            return [(self.start_s, self.end_s)]
        first = max(0, math.floor((utc_s - self.end_s) / WEEK_S) + 1)
        return [(self.start_s + k * WEEK_S, self.end_s + k * WEEK_S) for k in range(first, first + SHOWN)]


class Maintenance:
    """Holds nodes back in their windows. `changed()` is called when one begins or ends."""

    def __init__(
        self,
        fleet: Fleet,
        windows: Sequence[Window],
        changed: Callable[[], None],
        utc_s: Callable[[], float] = time.time,
    ) -> None:
        self.windows = windows
        self._fleet, self._changed, self._utc_s = fleet, changed, utc_s
        self._task = PeriodicTask("maintenance calendar", self._look, LOOK_S, jitter_frac=0.0)

    def start(self) -> None:
        """Follow the calendar."""
        self._task.start()

    async def close(self) -> None:
        """Stop."""
        await self._task.close()

    def look(self) -> None:
        """Hold and release nodes as of now."""
        ends_s, now_s = self._ends_s(), self._utc_s()
        has_changed = False
        for node in self._fleet.present():
            is_held = Hold.MAINTENANCE in self._fleet.state(node).holds
            end_s = ends_s.get(node.name, -math.inf)
            if (end_s > now_s) is is_held:
                continue
            has_changed = True
            if is_held:
                self._fleet.release(node, Hold.MAINTENANCE)
            else:
                until = datetime.fromtimestamp(end_s, UTC).isoformat(timespec="seconds")
                self._fleet.hold(node, Hold.MAINTENANCE, f"maintenance until {until}")
        if has_changed:
            self._changed()

    async def _look(self) -> None:
        self.look()

    def _ends_s(self) -> dict[str, float]:
        """Nodes in a window now → its end; of several the last."""
        now_s, ends_s = self._utc_s(), dict[str, float]()
        for window in self.windows:
            for start_s, end_s in window.next(now_s):
                if start_s <= now_s < end_s:
                    ends_s[window.node] = max(end_s, ends_s.get(window.node, end_s))
        return ends_s
