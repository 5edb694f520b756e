"""Planned outages of nodes: windows of the maintenance calendar, and the drain at their time.

A node gets no new requests from the begin of a window to its end. Requests that run then go on, as long as
the machine does.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Final, NamedTuple

from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.periodic import PeriodicTask

GIB: Final = float(1 << 30)
LARGE_BYTES: Final = 1 << 20  # smaller bodies fit the buffers of the sockets and are no transfers
MEASURED_BYTES: Final = 8 << 20  # of a body from which a bandwidth can be told
BUFFERED_BYTES: Final = 4 << 20  # what buffers may take at once: the time of this part says nothing
KEPT: Final = 8  # measurements of a node


class Transfer:
    """A large body on its way to a node. The data plane reports its progress."""

    __slots__ = ("_buffered_s", "_meter", "_shared", "node_idx", "sent_bytes", "size")

    def __init__(self, meter: LinkMeter, node_idx: int, size: int) -> None:
        self._meter, self.node_idx, self.size = meter, node_idx, size
        self.sent_bytes, self._buffered_s = 0, -1.0
        self._shared = meter.active[node_idx]  # transfers that share the link, this one included

    def sent(self, n_bytes: int, now_s: float) -> None:
        """So many more bytes were written."""
        self.sent_bytes += n_bytes
        self._shared = max(self._shared, self._meter.active[self.node_idx])
        if self._buffered_s < 0.0 and self.sent_bytes >= BUFFERED_BYTES:
            self._buffered_s, self.sent_bytes = now_s, 0
            self.size -= BUFFERED_BYTES

    def end(self, now_s: float, *, is_whole: bool) -> None:
        """The body was written, or its attempt is over."""
        passed_s = now_s - self._buffered_s
        if is_whole and self._buffered_s >= 0.0 and self.size >= MEASURED_BYTES and passed_s > 0.0:
            self._meter.measured(self.node_idx, self._shared * self.sent_bytes / passed_s / GIB)
        self._meter.ended(self.node_idx)


class LinkMeter:
    """Counts and measures transfers. `changed(node_idx)` is called whenever a number has changed."""

    def __init__(self, changed: Callable[[int], None] = lambda node_idx: None) -> None:
        self.changed = changed
        self.active: defaultdict[int, int] = defaultdict(int)
        self._measured: dict[int, deque[float]] = {}

    def begin(self, node_idx: int, size: int) -> Transfer | None:
        """A body of this size is about to be sent; None = it is too small to matter."""
        if size < LARGE_BYTES:
            return None
        self.active[node_idx] += 1
        self.changed(node_idx)
        return Transfer(self, node_idx, size)

    def ended(self, node_idx: int) -> None:
        """A transfer is over."""
        self.active[node_idx] -= 1
        self.changed(node_idx)

    def measured(self, node_idx: int, gib_per_s: float) -> None:
        """A transfer had this bandwidth, that of its sharers included."""
        self._measured.setdefault(node_idx, deque(maxlen=KEPT)).append(gib_per_s)

    def of_node(self, node_idx: int) -> float | None:
        """Measured bandwidth of the link to a node: the median of the last ones; None = not measured."""
        kept = self._measured.get(node_idx)
        return median(kept) if kept else None


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
