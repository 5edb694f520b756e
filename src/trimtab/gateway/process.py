"""The gateway's first process, from opening to the last answer: admin port, jobs, and clients or workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trimtab.errors import UsageError
from trimtab.gateway.admin.app import AdminApp, serve_admin
from trimtab.gateway.admin.auth import AdminAuth
from trimtab.gateway.admin.control import Control
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.control import LocalControl, PooledControl, Reload
from trimtab.gateway.decide.loads import Loads, SharedLoads
from trimtab.gateway.gateway import Gateway
from trimtab.gateway.jobs.runner import Surroundings
from trimtab.gateway.jobs.service import JobService
from trimtab.gateway.memory import freeze
from trimtab.gateway.nursery import Nursery
from trimtab.gateway.observe.logs import set_up_logs
from trimtab.gateway.observe.usage import UsageObserver
from trimtab.gateway.upgrade import replace
from trimtab.gateway.wire.server import LINGER_S, Drain
from trimtab.gateway.workers import Workers

logger = logging.getLogger(__name__)

Draining = Callable[[Drain], Awaitable[int]]  # returns what was not done in time


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where this process listens already."""

    clients: socket.socket
    admin: socket.socket


@dataclass(frozen=True, slots=True)
class Crew:
    """What several processes need, made before there was a loop or a thread."""

    nursery: Nursery
    shared: SharedLoads  # a row for each worker, and the last for the parent's jobs


async def run_process(
    config: GatewayConfig,
    sockets: Sockets,
    reload: Reload | None,
    ready: Callable[[str], None],
    crew: Crew | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `ready` is told the token of a sign-in link.

    With a crew, workers serve the clients; this process runs jobs and the admin port.
    """
    set_up_logs(config.telemetry.log_format)
    loop = asyncio.get_running_loop()
    service = JobService(config)
    gateway = Gateway(
        config,
        loop,
        worker=0 if crew is None else config.workers,
        loads=None if crew is None else Loads(crew.shared, config.workers),
        observers=(UsageObserver(service.usage),),
    )
    async with _opened(gateway, service, sockets.clients if crew is None else None):
        local = LocalControl(gateway, reload, service)
        if crew is None:
            await _serve(local, gateway, sockets, reload, ready, _with_jobs(gateway.drain, service))
            return
        workers = Workers(config.workers, crew.nursery, crew.shared, gateway, service)
        try:
            await workers.open()
            pooled = PooledControl(local, gateway, workers)
            await _serve(pooled, gateway, sockets, reload, ready, _with_jobs(workers.stop, service))
            await workers.dismiss()
        finally:
            await workers.close()


def _with_jobs(drain: Draining, service: JobService) -> Draining:
    """Let clients' requests and jobs end at the same time."""

    async def both(how: Drain) -> int:
        return sum(await asyncio.gather(drain(how), service.drain(how.timeout_s)))

    return both


async def _serve(
    control: Control,
    gateway: Gateway,
    sockets: Sockets,
    reload: Reload | None,
    ready: Callable[[str], None],
    drain: Draining,
) -> None:
    config = gateway.config
    auth = AdminAuth(_admin_keys(gateway, config), open_to_all=config.insecure_no_auth)
    gateway.on_reloaded.append(lambda config: auth.replace_keys(_admin_keys(gateway, config)))
    server = await serve_admin(AdminApp(control, auth, hosts=config.admin.hosts), sockets.admin.dup())
    try:
        freeze()
        ready(auth.make_link_token())
        is_replaced = await _until_told(control, sockets, reload)
        drain_s = gateway.config.drain_s
        how = Drain(drain_s, others=False)
        if is_replaced:
            await server.close()  # the successor answers there now
            how = Drain(drain_s, LINGER_S)
        gateway.plane.context.draining = True
        left = await drain(how)
        if left:
            logger.warning("%d requests were not finished when the time to drain was up", left)
    finally:
        await server.close()


def _admin_keys(gateway: Gateway, config: GatewayConfig) -> list[bytes]:
    return [bytes.fromhex(digest) for digest in config.admin.digests(gateway.environ)]


@asynccontextmanager
async def _opened(
    gateway: Gateway, service: JobService, clients: socket.socket | None
) -> AsyncIterator[None]:
    try:
        around = surroundings(gateway, service)
        await service.open(gateway.decider, around, gateway.plane.context.observers)
        gateway.jobs_answer, gateway.job_counts = service.answer, service.counts
        gateway.front.jobs = True
        gateway.on_reloaded.append(service.declare)
        await gateway.open(clients)
        yield
    finally:
        await service.close()
        await gateway.close()


def surroundings(gateway: Gateway, service: JobService) -> Surroundings:
    """Where jobs find what they name."""
    return Surroundings(
        node=gateway.fleet.find,
        declared=service.declared,
        tenant=gateway.tenant_named,
        endpoint=lambda method, path: gateway.front.endpoints.find(method, path),
    )


async def _until_told(control: Control, sockets: Sockets, reload: Reload | None) -> bool:
    """Wait for SIGTERM or SIGINT; True = a successor serves already, as SIGUSR2 asks for.

    SIGHUP reads the configuration again.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[bool] = loop.create_future()
    tasks: set[asyncio.Task[None]] = set()

    def tell(is_replaced: bool) -> None:
        if not told.done():
            told.set_result(is_replaced)

    def begin(work: Callable[[], Coroutine[None, None, None]]) -> None:
        if not tasks:  # one thing at a time
            task = loop.create_task(work())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def upgrade() -> None:
        if reload is None:
            logger.error("no successor: without a configuration file it would have other keys and backends")
        elif await replace(sockets.clients, sockets.admin):
            tell(True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, False)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, begin, lambda: _reload(control))
    loop.add_signal_handler(signal.SIGUSR2, begin, upgrade)
    try:
        return await told
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)


async def _reload(control: Control) -> None:
    try:
        done = await control.reload()
    except UsageError as error:
        logger.error("not reloaded, the old configuration stays: %s", error)
        return
    logger.info("reloaded: changed %s", ", ".join(done["changed"]) or "nothing")
    if done["needs_restart"]:
        logger.warning("takes force after a restart only: %s", ", ".join(done["needs_restart"]))
