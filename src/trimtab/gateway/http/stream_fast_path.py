"""The steady state of a stream: chunks of one event each, which nobody changes, one at a time.

Nearly all that is read from nodes that generate text is this, so it has a way of its own with few steps. Each
chunk is still looked at: its framing, that it is one event of content, and that it says nothing of usage. All
else (pieces of chunks, several, the last ones, other events, errors) goes the usual way, which does the same
with these too; the one difference is that what was counted here is told to others up to a second later.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.gateway.api.sse import TYPE_BYTES, USAGE
from trimtab.gateway.http.response_observer import ResponseObserver

_MAX_DIGITS = 3
_MAX_BYTES = 0xFFF + _MAX_DIGITS + 4
_NEVER = b"-" * _MAX_BYTES  # nothing so short begins with it


def _size_lines() -> tuple[bytes, ...]:
    """By the bytes of a whole chunk, the size line that it has where that is written as the relay would.

    Where no chunk of two or three digits has so many bytes, it is what none begins with.
    """
    lines = [_NEVER] * (_MAX_BYTES + 1)
    for payload in range(0x10, 0xFFF + 1):
        line = b"%x\r\n" % payload
        lines[len(line) + payload + 2] = line
    return tuple(lines)


_SIZE_LINES = _size_lines()
_LONGER = (0xFF + 2 + 4).__lt__  # than chunks of two digits


class StreamFastPath:
    """Hands on what one connection reads of one stream, as far as it is in its steady state."""

    __slots__ = ("_sizes", "_tell", "_watch", "_write", "content")

    def __init__(
        self,
        observer: ResponseObserver,
        write: Callable[[bytes], None],
        tell: Callable[[ResponseObserver, int], None],
    ) -> None:
        self._watch = observer
        self._write = write
        self._tell = tell  # is told body bytes, with the chunks counted
        self.content = observer.content
        self._sizes: list[int] = []  # of whole chunks that were not told yet

    @property
    def is_open(self) -> bool:
        """Whether all before was whole events: the next chunk begins one."""
        return self._watch.is_between_events

    def passes(self, data: bytes) -> bool:
        """Hand on what was read, where it is one whole chunk of one event that stays as it is.

        False = it is not, and nothing was done. Written for few bytecodes: each chunk finds the processor's
        caches cold, so that one takes some 50 ns; `in` would cost an exception, which `find` does not.
        """
        size = len(data)
        if (
            size > _MAX_BYTES
            or not data.startswith(_SIZE_LINES[size])
            or data.find(b"\r\n", _MAX_DIGITS + 1)
            != size - 2  # no line ends with it but the size and the data
            or data.find(b"\n\n") != size - 4
            or data.find(self.content, 0, TYPE_BYTES) < 0
            or data.find(USAGE) >= 0
        ):
            return False
        self._write(data)  # at once: what went before was written as its turn ended
        self._sizes.append(size)
        return True

    def settle(self) -> None:
        """Tell what was counted."""
        sizes = self._sizes
        if sizes:
            chunks = len(sizes)
            payload_bytes = sum(sizes) - (2 + 4) * chunks - sum(map(_LONGER, sizes))
            sizes.clear()
            self._watch.chunks += chunks
            self._tell(self._watch, payload_bytes)
