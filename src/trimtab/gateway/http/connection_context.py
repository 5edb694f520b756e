"""What connections need of the rest of the gateway, and the settings they obey."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trimtab.gateway.admission import Admission
from trimtab.gateway.http.inbox import Inbox
from trimtab.gateway.http.incoming_exchange import IncomingExchange
from trimtab.gateway.http.outbox import Outbox
from trimtab.gateway.http.request import KnownHeads
from trimtab.gateway.http.timeouts import TimeoutScanner
from trimtab.gateway.http.tunnel import Closed
from trimtab.gateway.http.upstream_connection import Pools, UpstreamConnection
from trimtab.gateway.model import (
    Attempt,
    Dispatcher,
    Exchange,
    Observer,
    Observers,
    Refusal,
)

MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Of one model, in seconds."""

    connect_s: float = 5.0
    first_byte_s: float = 300.0  # from the start of the attempt to the first byte of the body
    idle_s: float = 120.0  # between two bytes
    total_s: float = 3600.0  # from the arrival


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and timeouts of the data plane."""

    head_bytes: int = 32_768
    header_count: int = 100
    body_bytes: int = 512 * MIB
    memory_body_bytes: int = MIB  # longer ones are spooled to a file and sent once only
    buffered_bytes: int = 512 * MIB  # of all request bodies in memory
    connections: int = 16_384
    keep_alive_s: float = 75.0  # a client's connection without a request
    slow_client_s: float = 15.0  # for a whole head; and for a body, on top of a rate of 1 KiB/s
    stalled_client_s: float = 120.0  # a client that does not read its answer
    timeouts: Timeouts = field(default_factory=Timeouts)
    model_timeouts: Mapping[str, Timeouts] = field(default_factory=dict)
    max_retries: int = 2
    retry_budget_frac: float = 0.2  # retries of all requests
    hedge_after_s: float = 0.0  # 0 = never
    hedge_max_frac: float = 0.05
    idle_per_node: int = 256  # connections kept open without a request
    idle_upstream_s: float = 30.0
    tunnel_idle_s: float = 600.0  # a WebSocket without a byte


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """An answer of the gateway itself; a path is sent as a file."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | Path = b""


Local = Callable[[IncomingExchange, bytes], Awaitable[LocalAnswer | Refusal]]


class Client(Protocol):
    """Where an exchange's answer goes: a connection, or the collector of a job."""

    transport: asyncio.Transport
    full: bool  # does not take more for now
    full_since_s: float
    address: bytes  # for x-forwarded-for
    scheme: bytes  # for x-forwarded-proto

    def answered(self, answered: Exchange, close: bool) -> None:
        """The answer is written; the client's next request may come."""

    def abort(self) -> None:
        """The answer broke off."""

    def switch(self, connection: UpstreamConnection, rest: bytes, closed: Closed) -> None:
        """It is a tunnel to this connection from here on; `closed` is called at its end."""


class Connection(Protocol):
    """A client's connection, as the data plane sees it."""

    transport: asyncio.Transport

    def drain(self) -> None:
        """Close it now if it is idle; a busy one closes with its answer."""


class Beginning(Protocol):
    """An attempt that is to begin."""

    over: bool

    def begin(self) -> None:
        """Send the request."""


class Budget:
    """Allows something for a fraction of all requests, saved up for the day when a full node dies at once."""

    __slots__ = ("_at_first", "_frac", "_left", "_most")

    def __init__(self, frac: float, most: float = 1000.0, at_first: float = 100.0) -> None:
        self._most, self._at_first = most, min(most, at_first)
        self._frac = self._left = 0.0
        self.become(frac)

    def become(self, frac: float) -> None:
        """Allow another fraction from now on; it begins anew, unless it is the same."""
        if frac != self._frac:
            self._frac = frac
            self._left = self._at_first if frac > 0.0 else 0.0

    @property
    def is_empty(self) -> bool:
        """Whether `take` would refuse."""
        return self._left < 1.0

    def earn(self) -> None:
        """A request came."""
        left = self._left + self._frac
        self._left = left if left < self._most else self._most

    def take(self) -> bool:
        """Use one up, if there is one."""
        if self.is_empty:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """One process's data plane: `serve` puts it together, every connection holds it."""

    loop: asyncio.AbstractEventLoop
    settings: Settings
    admission: Admission
    dispatcher: Dispatcher
    observers: Observers
    local: Local
    scanner: TimeoutScanner
    inbox: Inbox
    outbox: Outbox
    pools: Pools
    retries: Budget
    hedges: Budget
    connections: set[Connection] = field(default_factory=set)
    exchanges: int = 0  # in the hands of this process, from head to end
    buffered_bytes: int = 0
    draining: bool = False
    refusing: bool = False  # the time for requests on their way is over too
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    known_heads: KnownHeads = field(default_factory=KnownHeads)
    on_arrived: tuple[Callable[[Exchange], None], ...] = field(init=False)
    on_started: tuple[Callable[[Exchange, Attempt], None], ...] = field(init=False)
    on_lost: tuple[Callable[[Exchange, Attempt], None], ...] = field(init=False)
    on_ended: tuple[Callable[[Sequence[Exchange]], None], ...] = field(init=False)
    _beginning: list[Beginning] = field(default_factory=list)  # which begin as this turn ends
    _done: list[IncomingExchange] = field(default_factory=list)  # and the dispatcher has not heard of it yet
    _ended: list[Exchange] = field(default_factory=list)  # and observers have not heard of it yet

    def __post_init__(self) -> None:
        self.observe(self.observers)
        self.inbox.answered = self._end_done
        self.inbox.decide = self._decide
        self.inbox.then = self._tell_ended

    def observe(self, observers: Observers) -> None:
        """Tell these from now on. What an observer takes over from `Observer` unchanged is not called."""
        self.observers = observers
        self.on_arrived = tuple(one.arrived for one in observers if _is_own(one, "arrived"))
        self.on_started = tuple(one.started for one in observers if _is_own(one, "started"))
        self.on_lost = tuple(one.lost for one in observers if _is_own(one, "lost"))
        self.on_ended = tuple(one.ended for one in observers if _is_own(one, "ended"))

    def send(self, upstream: Beginning) -> None:
        """Send a request to a node: in a turn of several reads once all of its decisions are made."""
        if self.outbox.is_awaited and not self.outbox.is_direct:
            self._beginning.append(upstream)
        else:
            self._try(upstream.begin)

    def _decide(self) -> None:
        try:
            self.dispatcher.decide()
        finally:
            for upstream in self._beginning:  # with those that come meanwhile
                if not upstream.over:
                    self._try(upstream.begin)
            self._beginning.clear()

    def done(self, exchange: IncomingExchange) -> None:
        """A whole response is with the client: in a turn, what follows is done for all of them together."""
        self._done.append(exchange)
        if self.inbox.is_answered:
            self._end_done()

    def _end_done(self) -> None:
        done = self._done
        if done:
            self._done = []
            for exchange in done:
                self._try(exchange.read_usage)
            try:
                self.dispatcher.done(done)
            finally:
                for exchange in done:
                    self._try(exchange.end)

    def _try(self, step: Callable[[], None]) -> None:
        """A fault with one request is its own."""
        try:
            step()
        except Exception as error:
            self.loop.call_exception_handler({"message": "a step of a request failed", "exception": error})

    def tell_ended(self, exchange: Exchange) -> None:
        """An exchange is over: observers are told as this turn of the loop ends, of all that ended in it."""
        if not self._ended and not self.outbox.is_awaited:
            self.loop.call_soon(self._tell_ended)
        self._ended.append(exchange)

    def _tell_ended(self) -> None:
        ended = self._ended
        if ended:
            self._ended = []
            for tell in self.on_ended:
                tell(ended)

    def obey(self, settings: Settings) -> None:
        """Other limits and timeouts, for what comes from now on."""
        self.settings = settings
        self.retries.become(settings.retry_budget_frac)
        self.hedges.become(settings.hedge_max_frac)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it as a task that somebody holds on to."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def timeouts(self, model: str) -> Timeouts:
        """Those of a model."""
        return self.settings.model_timeouts.get(model, self.settings.timeouts)


def _is_own(observer: Observer, name: str) -> bool:
    """Whether its class has a method of its own for this event."""
    return getattr(type(observer), name, None) is not getattr(Observer, name)
