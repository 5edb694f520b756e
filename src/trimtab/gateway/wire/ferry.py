"""Takes streams in their steady state over from the event loop, and gives them back when that ends.

While a stream is aboard its node's transport reads nothing, and its client's writes nothing: `crossing.carry`
reads and sends in a thread that holds no lock of Python's, so a chunk wakes neither the loop nor Python. The
client's transport still reads, so a client that leaves is noticed as ever.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from trimtab.compiled.kernel import compile_kernel, forget_source, is_compiled
from trimtab.engine.facade import Columns
from trimtab.gateway.api.sse import USAGE
from trimtab.gateway.wire import crossing
from trimtab.gateway.wire.crossing import ABOARD, ASHORE, CARRY, GONE, LANDED, NOTHING, carry

IS_POSSIBLE = sys.platform == "linux"


class Passenger(Protocol):
    """One stream in its steady state."""

    content: bytes  # what marks an event of content

    def heard(self, at_s: float) -> None:
        """Its node sent something then, or earlier than is known already."""

    def landed(self, unsent: bytes, unread: bytes) -> None:
        """It is the loop's again: `unsent` is for the client, `unread` came from the node."""


def compile_ferry() -> None:
    """Compile what hands chunks on, or load it from the cache; nothing where the system has no epoll."""
    if IS_POSSIBLE and not carry.signatures:  # type: ignore[attr-defined]
        forget_source(compile_kernel(carry, CARRY))


def is_ferry_ready() -> bool:
    """Whether nothing of it is left to compile."""
    return not IS_POSSIBLE or is_compiled(carry)


def open_ferry(loop: asyncio.AbstractEventLoop) -> Ferry | None:
    """A ferry, where it is compiled already."""
    if not IS_POSSIBLE or not is_ferry_ready():
        return None
    compile_ferry()
    return Ferry(loop)


class Ferry:
    """Streams by the descriptor of their node's socket; the thread begins with the first of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._passengers: dict[int, Passenger] = {}
        self._thread: threading.Thread | None = None
        self._poll = select.epoll()
        self._bell, self._end = os.eventfd(0), os.eventfd(0)
        self._places = np.zeros(crossing.ROWS, crossing.PLACE)
        self._columns = Columns(self._places)
        self._rests = np.zeros((crossing.ROWS, crossing.SPACE), np.uint8)  # pages are there once written to
        self._landed = np.zeros(crossing.ROWS, np.int64)
        self._numbers = np.zeros(crossing.NUMBERS, np.int64)
        self._numbers[crossing.ONE] = 1
        self._numbers[crossing.USAGE_AT] = _address(USAGE)
        library = ctypes.CDLL(None)
        self._lock, self._unlock = library.pthread_mutex_lock, library.pthread_mutex_unlock
        self._lock_at = ctypes.c_void_p(self._numbers.ctypes.data + 8 * crossing.LOCK)

    def takes(self, node: asyncio.Transport, client: asyncio.Transport) -> bool:
        """Whether streams between these two may come aboard: both are plain sockets."""
        return 0 <= _descriptor(node) < crossing.ROWS and _descriptor(client) >= 0

    def board(self, passenger: Passenger, node: asyncio.Transport, client: asyncio.Transport) -> int:
        """Take it over until it lands; returns its row. -1 = not now: nothing was done.

        Not before its client has taken all that was written, nor where the row is still to be taken back.
        """
        row, columns = _descriptor(node), self._columns
        if client.get_write_buffer_size() or node.is_closing() or columns.state[row] != ASHORE:
            return -1
        node.pause_reading()
        self._passengers[row] = passenger
        columns.client[row] = _descriptor(client)
        columns.content_at[row] = _address(passenger.content)
        columns.content_bytes[row] = len(passenger.content)
        columns.chunks[row] = columns.payload_bytes[row] = 0
        columns.got_bytes[row] = columns.sent_bytes[row] = 0
        columns.last_s[row] = 0.0
        columns.state[row] = ABOARD
        if self._thread is None:
            self._begin()
        self._poll.register(row, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        return row

    def counts(self, row: int) -> tuple[int, int, float]:
        """Chunks since it came aboard, bytes of their payloads, and when the last of them came."""
        columns = self._columns
        return columns.chunks[row], columns.payload_bytes[row], columns.last_s[row]

    def leave(self, row: int) -> bytes:
        """Take it back at once, for its connections are about to end; returns what is for the client yet."""
        with self._locked():
            has_landed = self._columns.state[row] == LANDED
            self._columns.state[row] = GONE if has_landed else ASHORE
        return self._take_out(row)[0]

    def hear(self) -> bool:
        """For a beat of the pulse, before those who judge nodes: tell when nodes were last heard of."""
        last_s = self._columns.last_s
        for row, passenger in self._passengers.items():
            passenger.heard(last_s[row])
        return False

    def close(self) -> None:
        """End the thread; nothing is aboard any more."""
        if self._thread is not None:
            os.eventfd_write(self._end, 1)
            self._thread.join()
            self._thread = None
            self._loop.remove_reader(self._bell)
        self._poll.close()
        os.close(self._bell)
        os.close(self._end)

    def _begin(self) -> None:
        self._poll.register(self._end, select.EPOLLIN)
        self._loop.add_reader(self._bell, self._land)
        events = np.zeros(crossing.EVENTS * crossing.EVENT_WORDS, np.int32)
        descriptors = self._poll.fileno(), self._bell, self._end
        buffer = np.zeros(crossing.SPACE, np.uint8)
        arrays = self._numbers, events, self._places, buffer, self._rests, self._landed
        self._thread = threading.Thread(target=carry, args=(*descriptors, *arrays), name="ferry", daemon=True)
        self._thread.start()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While the thread waits."""
        self._lock(self._lock_at)
        try:
            yield
        finally:
            self._unlock(self._lock_at)

    def _land(self) -> None:
        """The bell rang: give back what has landed."""
        os.eventfd_read(self._bell)
        with self._locked():
            rows = self._landed[: self._numbers[crossing.LANDINGS]].tolist()
            self._numbers[crossing.LANDINGS] = 0
        state = self._columns.state
        for row in rows:
            if state[row] == LANDED:
                passenger = self._passengers[row]
                rest = self._take_out(row)
                state[row] = ASHORE
                try:
                    passenger.landed(*rest)
                except Exception as error:  # a fault with one stream is its own
                    said = {"message": "going on with a stream failed", "exception": error}
                    self._loop.call_exception_handler(said)
            else:
                state[row] = ASHORE  # it left meanwhile

    def _take_out(self, row: int) -> tuple[bytes, bytes]:
        """What is for the client yet, and what came from the node and nobody has looked at."""
        self._poll.unregister(row)
        del self._passengers[row]
        got, sent = self._columns.got_bytes[row], self._columns.sent_bytes[row]
        if sent == NOTHING:
            return b"", self._rests[row, :got].tobytes()
        return self._rests[row, sent:got].tobytes(), b""


def _descriptor(transport: asyncio.Transport) -> int:
    """Of its socket; -1 where it has none, or sends something else than what is written to it (TLS)."""
    found = transport.get_extra_info("socket")
    is_plain = found is not None and transport.get_extra_info("sslcontext") is None
    return int(found.fileno()) if is_plain else -1


def _address(kept: bytes) -> int:
    """Where these bytes are, for as long as somebody keeps them."""
    return ctypes.cast(ctypes.c_char_p(kept), ctypes.c_void_p).value or 0
