"""What a worker process does: it serves clients, and does what the parent says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import ConfigError
from trimtab.gateway.channel import Channel, ChannelClosed
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.control import decider_figures
from trimtab.gateway.decide.loads import Loads, SharedLoads
from trimtab.gateway.gateway import Gateway
from trimtab.gateway.jobs.http import JobRequest
from trimtab.gateway.jobs.intake import Intake
from trimtab.gateway.jobs.results import Body
from trimtab.gateway.jobs.service import job_settings
from trimtab.gateway.memory import freeze, rss_bytes
from trimtab.gateway.model import Exchange, Observer, Refusal
from trimtab.gateway.nodes.spec import NodeSpec
from trimtab.gateway.observe.logs import set_up_logs
from trimtab.gateway.observe.usage import UsageObserver
from trimtab.gateway.record.recorder import Together
from trimtab.gateway.wire.context import LocalAnswer
from trimtab.gateway.wire.exchange import WireExchange
from trimtab.gateway.wire.server import Drain

logger = logging.getLogger(__name__)

REPORT_S: Final = 0.5
JOB_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    """How a worker begins: as the others are by now."""

    config: GatewayConfig
    workers: int
    added: tuple[NodeSpec, ...] = ()  # by the admin port
    drained: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # of the configuration's nodes
    recording: Together | None = None  # what all of them write, if they record


class Tally(Observer):
    """What the parent adds up: usage for the store, and how many requests each tenant has sent."""

    def __init__(self) -> None:
        self._usage: list[tuple[str, str, int, int, float]] = []
        self._requests: Counter[str] = Counter()

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        """One more request that was served."""
        self._usage.append((tenant, model, prompt_tokens, completion_tokens, service_s))

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Count them, refused or not: who is refused wants more."""
        self._requests.update([one.tenant.name for one in exchanges if one.tenant is not None])

    def take(self) -> dict[str, Any]:
        """What came since the last time."""
        taken = {"usage": self._usage, "requests": self._requests}
        self._usage, self._requests = [], Counter()
        return taken


class RemoteJobs:
    """Jobs live in the parent: requests for them go there, long bodies as files of the folder of jobs."""

    def __init__(self, channel: Channel, intake: Intake) -> None:
        self._channel, self._intake = channel, intake

    async def answer(self, exchange: WireExchange, body: bytes) -> LocalAnswer | Refusal:
        """A request for jobs, or one that is to become a job."""
        return await self._intake.answer(exchange, body, self._send)

    async def _send(self, request: JobRequest, body: Body) -> LocalAnswer | Refusal:
        try:
            _, answer = await self._channel.ask("job", None, pickle.dumps((request, body)), JOB_S)
        except ChannelClosed:
            return Refusal(503, "no_jobs", "Jobs cannot be reached now. Other requests are served.", 5.0)
        answered: LocalAnswer | Refusal = pickle.loads(answer)
        return answered


def run_worker(
    number: int, start: Start, end: socket.socket, clients: socket.socket, shared: SharedLoads
) -> int:
    """Serve until the parent says so or is gone; returns the exit status."""
    from trimtab.gateway.serve import new_runner

    set_up_logs(start.config.telemetry.log_format)
    with new_runner() as runner:
        runner.run(_Worker(number, start, shared).run(end, clients))
    return 0


class _Worker:
    def __init__(self, number: int, start: Start, shared: SharedLoads) -> None:
        self._number, self._start, self._shared = number, start, shared
        self._tally = Tally()
        self._told: asyncio.Event = asyncio.Event()
        self._dismissed: asyncio.Event = asyncio.Event()
        self._how = Drain(start.config.drain_s)  # if it is told by a signal, or its parent is gone
        self._drained: asyncio.Future[int] | None = None

    async def run(self, end: socket.socket, clients: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):  # the parent's matter
            signal.signal(ignored, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGTERM, self._told.set)
        self._drained = loop.create_future()
        self._gateway = gateway = Gateway(
            self._start.config,
            loop,
            worker=self._number,
            loads=Loads(self._shared, self._number),
            observers=(UsageObserver(self._tally), self._tally),
            recording=self._start.recording,
        )
        gateway.tenants.scale(1 / self._start.workers)
        self._follow_start()
        channel = await Channel.open(end, self._handle, self._orphaned)
        intake = Intake(job_settings(self._start.config))
        gateway.jobs_answer, gateway.front.jobs = RemoteJobs(channel, intake).answer, True
        try:
            await gateway.open(clients)
            freeze()
            channel.tell("ready")
            await self._serve(channel)
            self._drained.set_result(await gateway.drain(self._how))
            if not self._how.others:
                await self._dismissed.wait()
            await asyncio.sleep(0)  # the answer to "stop"
            with contextlib.suppress(ChannelClosed):
                channel.tell("report", self._tally.take())
        finally:
            await gateway.close()
            await channel.close()

    def _orphaned(self) -> None:
        self._told.set()
        self._dismissed.set()

    def _follow_start(self) -> None:
        fleet, start = self._gateway.fleet, self._start
        for name in start.removed:
            fleet.remove(name)
        for spec in start.added:
            fleet.add(spec, "admin")
        for name in start.drained:
            fleet.drain(name)

    async def _serve(self, channel: Channel) -> None:
        while not self._told.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self._told.wait()
            with contextlib.suppress(ChannelClosed):
                channel.tell("report", self._tally.take())

    # --- what the parent says

    async def _handle(self, what: str, said: Any, payload: bytes) -> tuple[Any, bytes]:
        gateway = self._gateway
        match what:
            case "figures":
                return self._figures(), gateway.metrics.snapshot()
            case "receipt":
                return gateway.receipts.find(said), b""
            case "shares":
                self._share(said)
            case "reload":
                await gateway.reload(pickle.loads(payload), is_compiled=True)
            case "add":
                gateway.fleet.add(pickle.loads(payload), "admin")
            case "drain":
                with contextlib.suppress(ConfigError):  # discovery may have taken it away here already
                    gateway.fleet.drain(said)
            case "undrain":
                with contextlib.suppress(ConfigError):
                    gateway.fleet.undrain(said)
            case "remove":
                with contextlib.suppress(ConfigError):
                    gateway.fleet.remove(said)
            case "stop":
                self._how = pickle.loads(payload)
                self._told.set()
                assert self._drained is not None
                return await asyncio.shield(self._drained), b""
            case "dismiss":
                self._dismissed.set()
        return None, b""

    def _share(self, shares: dict[str, float]) -> None:
        for tenant in self._gateway.tenants:
            frac = shares.get(tenant.name)
            if frac is not None:
                tenant.limits.scale(frac)

    def _figures(self) -> dict[str, Any]:
        gateway = self._gateway
        return {
            "worker": {
                "pid": os.getpid(),
                "rss_bytes": rss_bytes(),
                "cpu_s": sum(os.times()[:2]),
                "in_flight": gateway.plane.context.exchanges,
            },
            "ready": gateway.is_ready,
            "nodes": {
                node.name: [int(node.health), node.reason, node.last_byte_s]
                for node in gateway.fleet.present()
            },
            **decider_figures(gateway),
        }
