"""Several processes that serve: the parent starts them, replaces them, asks them and tells them.

Each worker has its own queue, its own fairness and its own part of every tenant's limits. Parts follow the
use: every second the parent gives a tenant's limits to the workers that its requests come to. The bound on
requests at a time is at least 1 in each worker, so the sum may lie above the limit by one per worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.gateway.channel import Channel, ChannelClosed
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.decide.loads import SharedLoads
from trimtab.gateway.gateway import Gateway
from trimtab.gateway.jobs.service import JobService
from trimtab.gateway.nodes.condition import Hold
from trimtab.gateway.nodes.spec import NodeSpec
from trimtab.gateway.nursery import Nursery
from trimtab.gateway.observe.book import Book
from trimtab.gateway.observe.families import FAMILIES, Merge, Type
from trimtab.gateway.wire.server import Drain
from trimtab.gateway.worker import Start

logger = logging.getLogger(__name__)

FIRST_START_S: Final = 120.0
KEEP_S: Final = 5.0  # how old the counts may be that survive a worker's sudden death
SHARE_S: Final = 1.0
EVEN_FRAC: Final = 0.2  # of a limit that is spread evenly, so that no worker begins with nothing
LEAST_CHANGE_FRAC: Final = 0.02
SHORT_LIFE_S: Final = 5.0  # who dies younger is replaced after a pause
PAUSE_S: Final = 1.0
STOP_MARGIN_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Worker:
    """One of them, from outside."""

    number: int
    pid: int
    began_s: float
    channel: Channel | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)
    figures: dict[str, Any] | None = None  # what it said last
    book: bytes = b""
    requests: dict[str, float] = field(default_factory=dict)  # lately, by tenant
    shares: dict[str, float] = field(default_factory=dict)
    cpu: tuple[float, float] = (0.0, 0.0)  # when it was looked at, and its seconds of CPU then

    def cpu_frac(self, cpu_s: float) -> float | None:
        """Of one core, since it was looked at before; None at first."""
        (before_s, before_cpu_s), now_s = self.cpu, time.monotonic()
        self.cpu = (now_s, cpu_s)
        return (cpu_s - before_cpu_s) / (now_s - before_s) if before_s and now_s > before_s else None


class Workers:
    """All workers. `gateway` and `service` are the parent's own, which runs jobs."""

    def __init__(
        self, count: int, nursery: Nursery, shared: SharedLoads, gateway: Gateway, service: JobService
    ) -> None:
        self.count = count
        self._nursery, self._shared = nursery, shared
        self._gateway, self._service = gateway, service
        self._workers: dict[int, Worker] = {}
        self._past = Book()  # what workers had counted that are gone
        self._forking = asyncio.Lock()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life

    async def open(self) -> None:
        """Start all and wait until they serve. Raises UsageError where one does not."""
        for number in range(self.count):
            await self._begin(number)
        try:
            async with asyncio.timeout(FIRST_START_S):
                for worker in tuple(self._workers.values()):
                    await _first(worker.is_ready, worker.is_gone)
        except TimeoutError:
            raise UsageError("the workers did not start in time", field="workers") from None
        if any(worker.is_gone.is_set() for worker in self._workers.values()):
            raise UsageError("a worker ended at its start; what it said is above", field="workers")
        for number in range(self.count):
            self._spawn(self._keep(number))
        self._spawn(self._keep_counts())
        self._spawn(self._keep_shares())

    async def stop(self, how: Drain) -> int:
        """Let all finish what they have; returns how many requests were not done in time.

        Where nobody else accepts connections they go on with refusing them, until `dismiss`.
        """
        self._stopping = True
        return sum(await asyncio.gather(*(self._stop(worker, how) for worker in self._workers.values())))

    async def dismiss(self) -> None:
        """End those that have finished."""
        for worker in self.alive:
            if worker.channel is not None:
                with contextlib.suppress(ChannelClosed):
                    worker.channel.tell("dismiss")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_MARGIN_S):
                for worker in tuple(self._workers.values()):
                    await worker.is_gone.wait()

    async def close(self) -> None:
        """End all, by force where they do not end."""
        self._stopping = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in tuple(self._workers.values()):
            await self._bury(worker)
        await asyncio.to_thread(self._nursery.close)

    async def _stop(self, worker: Worker, how: Drain) -> int:
        with contextlib.suppress(ChannelClosed, UsageError):
            within_s = how.timeout_s + STOP_MARGIN_S
            said, _ = await self._ask(worker, "stop", None, pickle.dumps(how), within_s)
            return int(said)
        return 0

    async def _begin(self, number: int) -> Worker:
        async with self._forking:
            pid, end = await asyncio.to_thread(self._nursery.fork, number, self._start())
        worker = self._workers[number] = Worker(number, pid, time.monotonic())

        async def handle(what: str, said: Any, payload: bytes) -> tuple[Any, bytes]:
            return await self._handle(worker, what, said, payload)

        worker.channel = await Channel.open(end, handle, worker.is_gone.set)
        return worker

    def _start(self) -> Start:
        """How a worker begins that is to be like the others."""
        fleet, config = self._gateway.fleet, self._gateway.config
        present = {node.name: fleet.condition(node) for node in fleet.present()}
        stays = {name: c for name, c in present.items() if c.remove_by_s == float("inf")}
        return Start(
            config,
            self.count,
            added=tuple(c.spec for c in stays.values() if c.source == "admin"),
            drained=tuple(name for name, c in stays.items() if Hold.DRAINING in c.holds),
            removed=tuple(node.name for node in config.nodes if node.name not in stays),
            recording=None if self._gateway.recorder is None else self._gateway.recorder.shared,
        )

    async def _keep(self, number: int) -> None:
        """Put another in the place of a worker that ends."""
        while True:
            worker = self._workers[number]
            await worker.is_gone.wait()
            if self._stopping:
                return
            status = await self._bury(worker)
            logger.error("worker %d (process %d) ended with %d; it is replaced", number, worker.pid, status)
            if time.monotonic() - worker.began_s < SHORT_LIFE_S:
                await asyncio.sleep(PAUSE_S)
            try:
                await self._begin(number)
            except OSError as error:
                logger.critical("workers cannot be replaced: %s", error)
                return

    async def _bury(self, worker: Worker) -> int:
        """It is dead after this; its requests are no load any more, its counts stay."""
        if self._workers.get(worker.number) is not worker:
            return 0
        if worker.channel is not None:
            await worker.channel.close()
        status = 0
        with contextlib.suppress(OSError):
            async with self._forking:
                status = await asyncio.to_thread(self._nursery.bury, worker.pid)
        del self._workers[worker.number]
        self._shared.zero(worker.number)
        if worker.book:
            self._past.merge(_counted(Book.from_bytes(worker.book)))
        return status

    # --- asking and telling

    @property
    def alive(self) -> list[Worker]:
        """Those that serve."""
        return [w for w in self._workers.values() if w.is_ready.is_set() and not w.is_gone.is_set()]

    async def look(self) -> list[dict[str, Any]]:
        """The figures of all that answer, with their counts taken in."""
        await asyncio.gather(*(self._look_at(worker) for worker in self.alive))
        return [worker.figures for worker in self.alive if worker.figures is not None]

    async def _look_at(self, worker: Worker) -> None:
        with contextlib.suppress(ChannelClosed, UsageError):
            figures, worker.book = await self._ask(worker, "figures")
            figures["worker"]["cpu_frac"] = worker.cpu_frac(figures["worker"].pop("cpu_s"))
            worker.figures = figures

    def book(self, own: Book) -> Book:
        """The counts of all: `own` is the parent's, which is added to. `look` renews what it adds."""
        books = [Book.from_bytes(worker.book) for worker in self.alive if worker.book]
        for book in (self._past, *books):
            own.merge(book)
        own.set("trimtab_workers", len(self.alive))
        return own

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        """Of a request, from whoever had it."""
        for answer in await self._ask_all("receipt", request_id):
            if answer is not None:
                return dict(answer)
        return None

    async def reload(self, config: GatewayConfig) -> None:
        """Another configuration, which the parent has found to be right. Who cannot take it is replaced."""
        payload = pickle.dumps(config)
        for worker in self.alive:
            try:
                await self._ask(worker, "reload", None, payload, FIRST_START_S)
            except (ChannelClosed, UsageError) as error:
                logger.error("worker %d did not reload (%s): it is replaced", worker.number, error)
                if worker.channel is not None:
                    await worker.channel.close()

    async def add_node(self, spec: NodeSpec) -> None:
        """A node more, vetted and pinned by the parent."""
        await self._ask_all("add", None, pickle.dumps(spec))

    async def on_node(self, what: str, name: str) -> bool:
        """`drain`, `undrain` or `remove` a node; returns True."""
        await self._ask_all(what, name)
        return True

    async def _ask(
        self, worker: Worker, what: str, said: Any = None, payload: bytes = b"", timeout_s: float = 10.0
    ) -> tuple[Any, bytes]:
        if worker.channel is None:
            raise ChannelClosed("it has not begun")
        return await worker.channel.ask(what, said, payload, timeout_s)

    async def _ask_all(self, what: str, said: Any = None, payload: bytes = b"") -> list[Any]:
        alive = self.alive
        asked = [self._ask(worker, what, said, payload) for worker in alive]
        answers: list[Any] = []
        for worker, answer in zip(alive, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                logger.warning("worker %d: %s: %s", worker.number, what, answer)
            else:
                answers.append(answer[0])
        return answers

    # --- what workers say

    async def _handle(self, worker: Worker, what: str, said: Any, payload: bytes) -> tuple[Any, bytes]:
        if what == "ready":
            worker.is_ready.set()
        elif what == "report":
            for served in said["usage"]:
                self._service.usage.add(*served)
            for tenant, count in said["requests"].items():
                worker.requests[tenant] = worker.requests.get(tenant, 0.0) + count
        elif what == "job":
            request, body = pickle.loads(payload)
            return None, pickle.dumps(await self._service.answer_request(request, body))
        return None, b""

    # --- from time to time

    async def _keep_counts(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await self.look()
            self._past.forget(self._gateway.loop.time())

    async def _keep_shares(self) -> None:
        while True:
            await asyncio.sleep(SHARE_S)
            alive = self.alive
            for worker, shares in zip(alive, shares_of([w.requests for w in alive]), strict=True):
                changed = {
                    name: frac
                    for name, frac in shares.items()
                    if abs(frac - worker.shares.get(name, 1 / self.count)) >= LEAST_CHANGE_FRAC
                }
                if changed and worker.channel is not None:
                    worker.shares |= changed
                    with contextlib.suppress(ChannelClosed):
                        worker.channel.tell("shares", changed)
            for worker in alive:
                worker.requests = {name: n / 2 for name, n in worker.requests.items() if n >= 0.1}

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def shares_of(requests: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Each worker's fraction of every tenant's limits, from the requests that came to each; they sum to 1."""
    names = {name for one in requests for name in one}
    sums = {name: sum(one.get(name, 0.0) for one in requests) for name in names}
    even = EVEN_FRAC / max(1, len(requests))
    return [
        {name: even + (1 - EVEN_FRAC) * one.get(name, 0.0) / sums[name] for name in names if sums[name]}
        for one in requests
    ]


def _counted(book: Book) -> Book:
    """What stays of a process that is gone: what it had counted, not the state it was in."""
    tables = {
        name: table
        for name, table in book.tables.items()
        if FAMILIES[name].merge is Merge.SUM and FAMILIES[name].type is not Type.GAUGE
    }
    return Book(tables, book.seconds, {})


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
