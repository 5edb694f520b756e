"""The gateway in a single process: data plane, admin port and jobs, from opening to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trimtab.domain.errors import UsageError
from trimtab.runtime.gateway.admin.app import AdminApp, serve_admin
from trimtab.runtime.gateway.admin.auth import AdminAuth
from trimtab.runtime.gateway.config import GatewayConfig
from trimtab.runtime.gateway.control import LocalControl, Reload
from trimtab.runtime.gateway.gateway import Gateway, UsageObserver
from trimtab.runtime.gateway.jobs.runner import Surroundings
from trimtab.runtime.gateway.jobs.service import JobService
from trimtab.runtime.gateway.observe.logs import set_up_logs

logger = logging.getLogger(__name__)


async def run_process(
    config: GatewayConfig,
    clients: socket.socket,
    admin: socket.socket,
    reload: Reload | None,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `ready` is told the token of a sign-in link."""
    set_up_logs(config.telemetry.log_format)
    loop = asyncio.get_running_loop()
    service = JobService(config)
    gateway = Gateway(config, loop, observers=(UsageObserver(service.usage),))
    async with _opened(gateway, service, clients):
        control = LocalControl(gateway, reload)
        auth = AdminAuth(
            [bytes.fromhex(digest) for digest in config.admin.digests(gateway.environ)],
            open_to_all=config.insecure_no_auth,
        )
        server = await serve_admin(AdminApp(control, auth), admin.dup())
        try:
            freeze()
            ready(auth.make_link_token())
            await _until_told(loop, control, reload)
            left = await gateway.drain(gateway.config.drain_s)
            if left:
                logger.warning("%d requests were not finished when the time to drain was up", left)
        finally:
            await server.close()


@asynccontextmanager
async def _opened(gateway: Gateway, service: JobService, clients: socket.socket) -> AsyncIterator[None]:
    around = Surroundings(
        node=gateway.fleet.find,
        declared=service.declared,
        tenant=gateway.tenants.named,
        endpoint=lambda method, path: gateway.front.endpoints.find(method, path),
    )
    try:
        await service.open(gateway.decider, around, gateway.plane.context.observers)
        gateway.jobs_answer, gateway.job_counts = service.answer, service.counts
        gateway.front.jobs = True
        await gateway.open(clients)
        yield
    finally:
        await service.close()
        await gateway.close()


async def _until_told(loop: asyncio.AbstractEventLoop, control: LocalControl, reload: Reload | None) -> None:
    """Wait for SIGTERM or SIGINT; SIGHUP reads the configuration again."""
    told = asyncio.Event()
    reloading: set[asyncio.Task[None]] = set()

    def begin_reload() -> None:
        task = loop.create_task(_reload(control))
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, begin_reload)
    try:
        await told.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)


async def _reload(control: LocalControl) -> None:
    try:
        done = await control.reload()
    except UsageError as error:
        logger.error("not reloaded, the old configuration stays: %s", error)
        return
    logger.info("reloaded: changed %s", ", ".join(done["changed"]) or "nothing")
    if done["needs_restart"]:
        logger.warning("takes force after a restart only: %s", ", ".join(done["needs_restart"]))


def freeze() -> None:
    """What is there now stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
