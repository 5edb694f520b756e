"""The data plane of one process: listen, drain, close."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from trimtab.gateway.http.client_connection import ClientConnection
from trimtab.gateway.http.connection_context import ConnectionContext, Local, Settings, TenantBudget
from trimtab.gateway.http.inbox import Inbox, Outbox
from trimtab.gateway.http.timeouts import TimeoutScanner
from trimtab.gateway.http.upstream_connection import Pools
from trimtab.gateway.model import Dispatcher, Observers, Refusal
from trimtab.gateway.stalled_streams import StallDetector
from trimtab.gateway.tenancy.admission import Admission

DRAIN_STEP_S = 0.02
SHUTDOWN_DELAY_S = 1.0
BACKLOG = 4096  # connections that wait to be accepted

_DRAINING = Refusal(503, "draining", "This gateway is about to end.", 1.0)


def make_context(
    loop: asyncio.AbstractEventLoop,
    settings: Settings,
    admission: Admission,
    dispatcher: Dispatcher,
    observers: Observers,
    local: Local,
    stall_detector: StallDetector | None = None,
) -> ConnectionContext:
    """Build the state that all connections share."""
    scanner, outbox = TimeoutScanner(loop, stall_detector), Outbox(loop)
    inbox = Inbox(loop, outbox)
    return ConnectionContext(
        loop=loop,
        settings=settings,
        admission=admission,
        dispatcher=dispatcher,
        observers=observers,
        local=local,
        scanner=scanner,
        inbox=inbox,
        outbox=outbox,
        pools=Pools(loop, scanner, inbox, outbox, settings.idle_per_node, settings.idle_upstream_s),
        retries=TenantBudget(settings.retry_budget_frac),
        hedges=TenantBudget(settings.hedge_max_frac, most=1.0),
    )


class DataPlane:
    """Serves clients on a socket that is already listening."""

    def __init__(self, context: ConnectionContext) -> None:
        self.context = context
        self._server: asyncio.Server | None = None
        self._listening: socket.socket | None = None

    @property
    def draining(self) -> bool:
        """Whether the process is about to end."""
        return self.context.draining

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections from now on."""
        context = self.context
        listening.setblocking(False)
        self._listening = listening.dup()
        self._server = await context.loop.create_server(self._new_connection, sock=listening, backlog=BACKLOG)

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(self.context)

    async def stop_accepting(self) -> None:
        """Leave new connections to the other replicas on this port. Connections in the backlog are accepted.

        Closing a listening socket resets the connections in its backlog. So the loop first stops accepting,
        then this method empties the backlog and closes the socket as soon as it is empty.
        """
        if self._server is None or self._listening is None:
            return
        self._server.close()
        await asyncio.sleep(0)  # an event loop may close its own descriptor a turn later
        waiting = []
        with self._listening, contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(self._listening.accept()[0])
        self._server = self._listening = None
        for connection in waiting:
            connection.setblocking(False)
            await self.context.loop.connect_accepted_socket(self._new_connection, connection)

    async def drain(self, timeout_s: float, delay_s: float = SHUTDOWN_DELAY_S) -> int:
        """Wait until every request is answered. Returns the number of unanswered requests after `timeout_s`.

        Requests are still served for `delay_s`, until load balancers and clients have noticed; responses say
        `Connection: close`. After that, requests are refused. If new connections are still accepted, their
        requests are refused too, until the end, so that no client waits without a response.
        """
        context = self.context
        context.draining = True
        now_s = context.loop.time()
        end_s, delay_end_s = now_s + timeout_s, now_s + min(timeout_s, delay_s)
        await self._until(lambda: self._server is None and not context.connections, delay_end_s)
        context.refusing = _DRAINING
        for connection in tuple(context.connections):
            connection.drain()
        await self._until(lambda: not context.exchanges, end_s)
        return context.exchanges

    async def _until(self, true: Callable[[], bool], end_s: float) -> None:
        while not true() and self.context.loop.time() < end_s:
            await asyncio.sleep(DRAIN_STEP_S)

    async def close(self) -> None:
        """End every connection at once."""
        context = self.context
        context.draining = True
        if self._server is not None and self._listening is not None:
            self._server.close()
            self._listening.close()
        for connection in tuple(context.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        context.pools.abort()
        for task in tuple(context.tasks):
            task.cancel()
        await asyncio.gather(*context.tasks, return_exceptions=True)
        context.scanner.close()
        await asyncio.sleep(0)
