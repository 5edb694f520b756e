"""An event loop of virtual time, and transports in memory: neither sockets nor waiting."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from trimtab.live.clock import Rank, _IdleSelector

T = TypeVar("T")
Received = Callable[["Wire", bytes], None]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can run, then jumps to what is due next, one callback at a time.

    Equal times go by (rank, serial): completions, then timers in the order of their making, then arrivals.
    `peers` answers connections: (host, port) → what gets the bytes that are sent there.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._due: list[tuple[float, Rank, int, int, asyncio.TimerHandle]] = []
        self._calls = itertools.count()
        self.peers: dict[tuple[str, int], Received] = {}
        super().__init__(_IdleSelector(self._jump))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """A timer."""
        return self.call_ranked(when, Rank.TIMER, 0, callback, *args, context=context)

    def call_ranked(
        self,
        when: float,
        rank: Rank,
        serial: int,
        callback: Callable[..., object],
        *args: Any,
        context: Any = None,
    ) -> asyncio.TimerHandle:
        """A callback with its place among others of the same time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._due, (when, rank, serial, next(self._calls), handle))
        return handle

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to a peer in memory."""
        protocol = factory()
        wire = Wire(self, protocol, self.peers[host, port])
        protocol.connection_made(wire)
        return wire, protocol

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call at once: time stands still meanwhile."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except OSError as error:
            future.set_exception(error)
        return future

    def _jump(self) -> None:
        while self._due:
            when, *_, handle = heapq.heappop(self._due)
            if not handle.cancelled():
                self._now_s = max(self._now_s, when)
                self._ready.append(handle)  # type: ignore[attr-defined]
                return
        raise RuntimeError(f"deadlock at {self._now_s:.6f} s of virtual time: nothing is due")


class Wire(asyncio.Transport):
    """The near end of a connection in memory: what is written goes to `received` at once."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, received: Received
    ) -> None:
        super().__init__({"peername": ("memory", 0)})
        self._loop, self.protocol, self._received = loop, protocol, received
        self._closing = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if not self._closing:
            self._received(self, bytes(data))

    def answer(self, data: bytes) -> None:
        """The far end sends."""
        if not self._closing:
            self.protocol.data_received(data)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
