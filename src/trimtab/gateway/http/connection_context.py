"""The state that all connections share: settings, budgets, and links to the rest of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trimtab.gateway.http.cached_answers import ResultCache
from trimtab.gateway.http.inbox import Inbox, Outbox
from trimtab.gateway.http.request import IncomingExchange, KnownHeads
from trimtab.gateway.http.timeouts import TimeoutScanner
from trimtab.gateway.http.tunnel import Closed
from trimtab.gateway.http.upstream_connection import Pools, UpstreamConnection
from trimtab.gateway.model import Attempt, Dispatcher, Exchange, ObserverCalls, Observers, Refusal
from trimtab.gateway.nodes.planned_outages import LinkMeter
from trimtab.gateway.tenancy.admission import Admission


class TenantBudget:
    """A token bucket for each tenant, so that one tenant's failures leave the others their retries.

    A tenant's unused tokens are saved, `most` over all tenants, so that the requests of a full node that
    fails can all be retried. A tenant without tokens borrows from a common reserve, at most as much as it
    leaves there: the only borrower gets half (`at_first`), the next one half of the rest. What they earn
    next pays that back.

    *Source*: the bound on what is borrowed is the dynamic threshold of A. K. Choudhury, E. L. Hahne, "Dynamic
    queue length thresholds for shared-memory packet switches", IEEE/ACM Trans. Networking 6(2), 1998.
    """

    __slots__ = ("_balances", "_frac", "_lent", "_most", "_reserve")

    def __init__(self, frac: float, most: float = 1000.0, at_first: float = 100.0) -> None:
        self._frac, self._most, self._reserve = frac, most, 2.0 * min(most, at_first)
        self._balances: dict[str, float] = {}  # by tenant; negative = borrowed
        self._lent = 0.0

    def become(self, frac: float) -> None:
        """Change the fraction. A different fraction resets the saved tokens."""
        if frac != self._frac:
            self._frac, self._lent = frac, 0.0
            self._balances.clear()

    def has_one(self, tenant: str) -> bool:
        """Whether `take` would return True."""
        before = self._balances.get(tenant, 0.0)
        if before >= 1.0 or self._frac <= 0.0:
            return before >= 1.0
        borrowed = 1.0 - before
        return borrowed <= self._reserve - (self._lent + borrowed - _debt(before))

    def earn(self, tenant: str) -> None:
        """Count a request that arrived."""
        balances = self._balances
        before = balances.get(tenant, 0.0)
        most = max(1.0, self._most / (len(balances) or 1))
        self._set(tenant, before, min(before + self._frac, most))

    def take(self, tenant: str) -> bool:
        """Take one of the tenant's tokens. Returns False if there is none."""
        if not self.has_one(tenant):
            return False
        before = self._balances.get(tenant, 0.0)
        self._set(tenant, before, before - 1.0)
        return True

    def _set(self, tenant: str, before: float, after: float) -> None:
        self._balances[tenant] = after
        if before < 0.0 or after < 0.0:
            self._lent += _debt(after) - _debt(before)


def _debt(balance: float) -> float:
    return max(0.0, -balance)


MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of one model, in seconds."""

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
    memory_body_bytes: int = MIB  # longer bodies are spooled to a file and can be sent only once
    buffered_bytes: int = 512 * MIB  # sum over all request bodies in memory
    connections: int = 16_384
    keep_alive_s: float = 75.0  # a client's connection without a request
    request_read_timeout_s: float = (
        15.0  # limit for a whole head; a body gets in addition its size / (1 KiB/s)
    )
    stalled_client_s: float = 120.0  # limit for a client that does not read its response
    timeouts: Timeouts = field(default_factory=Timeouts)
    model_timeouts: Mapping[str, Timeouts] = field(default_factory=dict)
    max_retries: int = 2
    retry_budget_frac: float = 0.2  # retries as a fraction of a tenant's requests
    hedge_delay_s: float = 0.0  # 0 = never
    hedge_max_frac: float = 0.05
    idle_per_node: int = 256  # connections kept open without a request
    idle_upstream_s: float = 30.0
    tunnel_idle_s: float = 600.0  # a WebSocket without a byte for this long is closed


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """A response that the gateway makes itself. A `Path` as body is sent as a file."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | Path = b""


Local = Callable[[IncomingExchange, bytes], Awaitable[LocalAnswer | Refusal]]


class Client(Protocol):
    """The receiver of an exchange's response: a client connection or the collector of a job."""

    transport: asyncio.Transport
    full: bool  # its write buffer is full
    full_since_s: float
    address: bytes  # for x-forwarded-for
    scheme: bytes  # for x-forwarded-proto

    def answered(self, answered: Exchange, close: bool) -> None:
        """The response is written. The client's next request may start."""

    def abort(self) -> None:
        """The response broke off: reset the connection."""

    def switch(self, connection: UpstreamConnection, rest: bytes, closed: Closed) -> None:
        """Become a tunnel to this upstream connection. The tunnel calls `closed` when it ends."""


class Group(Protocol):
    """A group that serves an exchange in its place."""

    def left(self, outer: Any) -> None:
        """The exchange is over: nothing is served for it any more."""


class Grouping(Protocol):
    """Splits and batches requests."""

    def take(self, exchange: Any) -> bool:
        """Serve the request in parts or in a batch; False = it goes to the dispatcher as it is."""


class Connection(Protocol):
    """A client's connection, as the data plane sees it."""

    transport: asyncio.Transport

    def drain(self) -> None:
        """Close an idle connection now. A busy connection closes with its response."""


class Beginning(Protocol):
    """An attempt that is about to begin."""

    over: bool

    def begin(self) -> None:
        """Send the request."""


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """The state of one process's data plane. `make_context` builds it; every connection holds it."""

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
    retries: TenantBudget
    hedges: TenantBudget
    connections: set[Connection] = field(default_factory=set)
    exchanges: int = 0  # open exchanges of this process, from request head to end
    buffered_bytes: int = 0
    draining: bool = False
    refusing: Refusal | None = None  # of all requests but health checks, while the process starts or ends
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    known_heads: KnownHeads = field(default_factory=KnownHeads)
    results: ResultCache | None = None  # where a route has one
    grouping: Grouping | None = None  # where a model's requests may be split or batched
    links: LinkMeter = field(default_factory=LinkMeter)  # meters large bodies on their way to nodes
    on_arrived: tuple[Callable[[Exchange], None], ...] = field(init=False)
    on_started: tuple[Callable[[Exchange, Attempt], None], ...] = field(init=False)
    on_lost: tuple[Callable[[Exchange, Attempt], None], ...] = field(init=False)
    on_ended: tuple[Callable[[Sequence[Exchange]], None], ...] = field(init=False)
    on_inner_ended: tuple[Callable[[Sequence[Exchange]], None], ...] = field(init=False)
    _beginning: list[Beginning] = field(default_factory=list)  # begin at the end of this turn
    _done: list[IncomingExchange] = field(default_factory=list)  # not yet reported to the dispatcher
    _ended: list[Exchange] = field(default_factory=list)  # not yet reported to observers

    def __post_init__(self) -> None:
        self.observe(self.observers)
        self.inbox.answered = self._end_done
        self.inbox.decide = self._decide
        self.inbox.then = self._tell_ended

    def observe(self, observers: Observers) -> None:
        """Set the observers."""
        self.observers = observers
        calls = ObserverCalls.of(observers)
        self.on_arrived, self.on_started, self.on_lost, self.on_ended, self.on_inner_ended = calls

    def send(self, upstream: Beginning) -> None:
        """Send a request to a node. In a turn with several reads, all decisions of the turn come first."""
        if self.outbox.is_awaited and not self.outbox.is_direct:
            self._beginning.append(upstream)
        else:
            self._try(upstream.begin)

    def _decide(self) -> None:
        try:
            self.dispatcher.decide()
        finally:
            for upstream in self._beginning:  # the list may grow during the loop
                if not upstream.over:
                    self._try(upstream.begin)
            self._beginning.clear()

    def done(self, exchange: IncomingExchange) -> None:
        """A whole response is written. The follow-up work of a turn is done for all responses together."""
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
        """Run `step`. An exception in one request must not affect others."""
        try:
            step()
        except Exception as error:
            self.loop.call_exception_handler({"message": "a step of a request failed", "exception": error})

    def tell_ended(self, exchange: Exchange) -> None:
        """Report an ended exchange. Observers get all exchanges of a turn together, at the turn's end."""
        if not self._ended and not self.outbox.is_awaited:
            self.loop.call_soon(self._tell_ended)
        self._ended.append(exchange)

    def _tell_ended(self) -> None:
        ended = self._ended
        if ended:
            self._ended = []
            if self.grouping is not None:
                ended = self._tell_inner_ended(ended)
            for tell in self.on_ended:
                tell(ended)

    def _tell_inner_ended(self, ended: list[Exchange]) -> list[Exchange]:
        """Report the requests that went to nodes for others; returns the requests of clients."""
        inner = [exchange for exchange in ended if exchange.is_inner]
        if inner:
            for tell in self.on_inner_ended:
                tell(inner)
        return [exchange for exchange in ended if not exchange.is_inner]

    def obey(self, settings: Settings) -> None:
        """Apply new limits and timeouts to everything that starts from now on."""
        self.settings = settings
        self.retries.become(settings.retry_budget_frac)
        self.hedges.become(settings.hedge_max_frac)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task. The context keeps a reference, so that it is not garbage-collected."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def timeouts(self, model: str) -> Timeouts:
        """Timeouts of a model."""
        return self.settings.model_timeouts.get(model, self.settings.timeouts)
