"""The data plane of one process: listens, drains, ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from trimtab.gateway.front import Front
from trimtab.gateway.model import Dispatcher, Observers
from trimtab.gateway.pulse import Pulse
from trimtab.gateway.wire.client import ClientConnection
from trimtab.gateway.wire.context import Budget, Context, Local, Settings
from trimtab.gateway.wire.inbox import Inbox
from trimtab.gateway.wire.outbox import Outbox
from trimtab.gateway.wire.sweep import Sweep
from trimtab.gateway.wire.upstream import Pools

DRAIN_STEP_S = 0.02
IDLE_DRAIN_S = 1.0
BACKLOG = 4096  # connections that wait to be accepted


def make_context(
    loop: asyncio.AbstractEventLoop,
    settings: Settings,
    front: Front,
    dispatcher: Dispatcher,
    observers: Observers,
    local: Local,
    pulse: Pulse | None = None,
) -> Context:
    """Everything that connections share."""
    sweep, outbox = Sweep(loop, pulse), Outbox(loop)
    inbox = Inbox(loop, outbox)
    return Context(
        loop=loop,
        settings=settings,
        front=front,
        dispatcher=dispatcher,
        observers=observers,
        local=local,
        sweep=sweep,
        inbox=inbox,
        outbox=outbox,
        pools=Pools(loop, sweep, inbox, outbox, settings.idle_per_node, settings.idle_upstream_s),
        retries=Budget(settings.retry_budget_frac),
        hedges=Budget(settings.hedge_max_frac, most=1.0),
    )


class DataPlane:
    """Serves clients on a socket that listens already."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._servers: list[asyncio.Server] = []

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections from now on."""
        context = self.context
        listening.setblocking(False)
        server = await context.loop.create_server(
            lambda: ClientConnection(context), sock=listening, backlog=BACKLOG
        )
        self._servers.append(server)

    def stop_accepting(self) -> None:
        """Take no new connections; answers say `Connection: close`."""
        self.context.draining = True
        for server in self._servers:
            server.close()

    async def drain(self, timeout_s: float, idle_s: float = IDLE_DRAIN_S) -> int:
        """Wait until every request is answered; return how many were not when the time was up.

        A connection without a request stays open for `idle_s`: one may be on its way. After that requests are
        refused. New connections are accepted, and refused likewise, to the end: none waits in vain.
        """
        context = self.context
        context.draining = True
        now_s = context.loop.time()
        end_s, idle_end_s = now_s + timeout_s, now_s + min(timeout_s, idle_s)
        await self._until(lambda: not context.connections, idle_end_s)
        context.refusing = True
        for connection in tuple(context.connections):
            connection.drain()
        await self._until(lambda: not context.exchanges, end_s)
        return context.exchanges

    async def _until(self, true: Callable[[], bool], end_s: float) -> None:
        while not true() and self.context.loop.time() < end_s:
            await asyncio.sleep(DRAIN_STEP_S)

    async def close(self) -> None:
        """End every connection at once."""
        self.stop_accepting()
        context = self.context
        for connection in tuple(context.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        context.pools.abort()
        for task in tuple(context.tasks):
            task.cancel()
        await asyncio.gather(*context.tasks, return_exceptions=True)
        context.sweep.close()
        await asyncio.sleep(0)
