"""The lifecycle of a gateway process: open jobs and ports, serve until a signal arrives, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trimtab.errors import UsageError
from trimtab.gateway.admin.admin_app import AdminApp, serve_admin
from trimtab.gateway.admin.auth import AdminAuth
from trimtab.gateway.admin.control import Control
from trimtab.gateway.app.assembly import GatewayCore, Plane
from trimtab.gateway.app.config_mapping import prices_of
from trimtab.gateway.app.gateway_control import GatewayControl, Reload
from trimtab.gateway.app.node_changes import NodeChanges
from trimtab.gateway.app.process_memory import freeze
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.job_api.job_service import JobService
from trimtab.gateway.job_api.node_runner import Surroundings
from trimtab.gateway.observe.logs import LoopErrors, set_up_logs
from trimtab.gateway.tenancy.run_time_keys import RunTimeKeys
from trimtab.gateway.tenancy.shared_limits import SharedLimits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets on which the process already listens."""

    clients: socket.socket
    admin: socket.socket


async def run_process(
    config: GatewayConfig,
    sockets: Sockets,
    plane: Callable[[GatewayCore], Plane],
    reload: Reload | None,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `ready` is called with the token of a sign-in link."""
    set_up_logs(config.telemetry.log_format)
    asyncio.get_running_loop().set_exception_handler(LoopErrors())
    service = JobService(config)
    gateway = GatewayCore(config, asyncio.get_running_loop(), plane, jobs=service)
    async with opened(gateway, service, sockets.clients) as (changes, keys):
        control = GatewayControl(gateway, reload, service, changes, keys)
        auth = AdminAuth(_admin_keys(gateway, config), open_to_all=config.insecure_no_auth)
        gateway.on_reloaded.append(lambda config: auth.replace_keys(_admin_keys(gateway, config)))
        server = await serve_admin(
            AdminApp(control, auth, hosts=config.admin.allowed_hosts), sockets.admin.dup()
        )
        try:
            freeze()
            ready(auth.make_link_token())
            await _drain(gateway, service, await _until_stopped(control, reload))
        finally:
            await server.close()


async def _drain(gateway: GatewayCore, service: JobService, number: signal.Signals) -> None:
    """Wait for clients' requests and jobs, at the same time. Ctrl-C skips the delay for load balancers."""
    timeout_s = gateway.config.drain_s
    delay_s = gateway.config.shutdown_delay_s if number is signal.SIGTERM else 0.0
    left = sum(await asyncio.gather(gateway.plane.drain(timeout_s, delay_s), service.drain(timeout_s)))
    if left:
        logger.warning("%d requests were not finished when the time to drain was up", left)


def _admin_keys(gateway: GatewayCore, config: GatewayConfig) -> list[bytes]:
    return [bytes.fromhex(digest) for digest in config.admin.digests(gateway.environ)]


@asynccontextmanager
async def opened(
    gateway: GatewayCore, service: JobService, clients: socket.socket
) -> AsyncIterator[tuple[NodeChanges, RunTimeKeys]]:
    """Open the gateway on this socket, and its jobs; close both at the end of the block."""
    changes = NodeChanges(
        service.store, gateway.fleet, register=gateway.register, reconcile=gateway.reconcile_nodes
    )
    keys = RunTimeKeys(
        service.store,
        gateway.tenants,
        prices=lambda: prices_of(gateway.config),
        changed=lambda: gateway.dispatcher.make_room_for_tenants(len(gateway.tenants)),
    )
    shared = SharedLimits(service.store, gateway.tenants, gateway.loop.time)
    try:
        around = surroundings(gateway, service)
        await service.open(gateway.dispatcher, around, gateway.admission, gateway.observers)
        await changes.open()
        await keys.open()
        if gateway.config.limits.shared:
            await shared.open()
        await gateway.open(clients)
        yield changes, keys
    finally:
        await shared.close()
        await keys.close()
        await changes.close()
        await service.close()
        await gateway.close()


def surroundings(gateway: GatewayCore, service: JobService) -> Surroundings:
    """The parts of the gateway that jobs use."""
    return Surroundings(
        node=gateway.fleet.find,
        declared=service.declared,
        tenant=gateway.tenant_named,
        endpoint=lambda method, path: gateway.admission.endpoints.find(method, path),
    )


async def _until_stopped(control: Control, reload: Reload | None) -> signal.Signals:
    """Wait for SIGTERM or SIGINT and return it. SIGHUP reloads the configuration."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[signal.Signals] = loop.create_future()

    def stop(number: signal.Signals) -> None:
        if not stopped.done():
            stopped.set_result(number)

    reloads: set[asyncio.Task[None]] = set()

    def begin_reload() -> None:
        if not reloads:  # one at a time
            task = loop.create_task(_reload(control))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, begin_reload)
    try:
        return await stopped
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
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
