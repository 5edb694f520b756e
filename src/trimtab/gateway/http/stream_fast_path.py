"""Fast path for the steady state of a stream: one unchanged chunk with one event per read.

Nearly all reads from nodes that generate text look like this, so they take a path with few steps. The path
still checks each chunk: its framing, that it holds exactly one event of content, and that it holds no usage.
All other input (partial chunks, several chunks, last chunks, other events, errors) takes the general path.
The general path gives the same result for the steady state. The only difference: the fast path reports its
counts up to a second later.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.gateway.api.sse import TYPE_BYTES, USAGE
from trimtab.gateway.http.response_observer import ResponseObserver

_MAX_DIGITS = 3
_MAX_BYTES = 0xFFF + _MAX_DIGITS + 4
_NEVER = b"-" * _MAX_BYTES  # no chunk of up to _MAX_BYTES bytes begins with it


def _size_lines() -> tuple[bytes, ...]:
    """The size line of a chunk, by the bytes of the whole chunk, in the form that the relay writes.

    Where no chunk with a size of two or three digits has that many bytes, the entry is `_NEVER`.
    """
    lines = [_NEVER] * (_MAX_BYTES + 1)
    for payload in range(0x10, 0xFFF + 1):
        line = b"%x\r\n" % payload
        lines[len(line) + payload + 2] = line
    return tuple(lines)


_SIZE_LINES = _size_lines()
_LONGER = (0xFF + 2 + 4).__lt__  # whether a chunk's size has three digits


class StreamFastPath:
    """Forwards the chunks of one stream on one connection while the stream is in its steady state."""

    __slots__ = ("_sizes", "_tell", "_watch", "_write", "content", "gaps_s")

    def __init__(
        self,
        observer: ResponseObserver,
        write: Callable[[bytes], None],
        tell: Callable[[ResponseObserver, int, list[float]], None],
    ) -> None:
        self._watch = observer
        self._write = write
        self._tell = tell  # gets the observer, with its chunks counted, the number of body bytes, and gaps
        self.content = observer.content
        self._sizes: list[int] = []  # bytes of the whole chunks that are not reported yet
        self.gaps_s: list[float] = []  # before each of them, as the connection measures

    @property
    def is_open(self) -> bool:
        """Whether the stream so far consists of whole events, so that the next chunk begins an event."""
        return self._watch.is_between_events

    def passes(self, data: bytes) -> bool:
        """Forward `data` if it is one whole chunk with one event that needs no change.

        False = it is not, and nothing was done. The code uses few bytecodes: each chunk finds the processor's
        caches cold, which makes every bytecode slow. It uses `find` instead of `in`, because `in` on bytes
        raises and clears an exception internally.
        """
        size = len(data)
        if (
            size > _MAX_BYTES
            or not data.startswith(_SIZE_LINES[size])
            or data.find(b"\r\n", _MAX_DIGITS + 1)
            != size - 2  # only the size line and the data end with CRLF
            or data.find(b"\n\n") != size - 4
            or data.find(self.content, 0, TYPE_BYTES) < 0
            or data.find(USAGE) >= 0
        ):
            return False
        self._write(data)  # directly: earlier bytes were written at the end of their turn
        self._sizes.append(size)
        return True

    def settle(self) -> None:
        """Report the counts."""
        sizes = self._sizes
        if sizes:
            chunks = len(sizes)
            payload_bytes = sum(sizes) - (2 + 4) * chunks - sum(map(_LONGER, sizes))
            sizes.clear()
            self._watch.chunks += chunks
            self._tell(self._watch, payload_bytes, self.gaps_s)
            self.gaps_s.clear()
