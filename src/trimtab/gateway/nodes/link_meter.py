"""Bandwidth of the links to nodes: declared, or measured on large bodies; and transfers under way."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from typing import Final

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
