"""What `/health` and `/ready` answer, also while the gateway starts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

import orjson

from trimtab.gateway.admission import Admission
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.http.connection_context import LocalAnswer, Settings
from trimtab.gateway.http.data_plane import DataPlane, make_context
from trimtab.gateway.http.incoming_exchange import IncomingExchange
from trimtab.gateway.model import Dispatcher, Kind, Refusal, Tenant
from trimtab.gateway.model_list import JSON

HEALTHY: Final = LocalAnswer(200, JSON, b'{"status":"ok"}')
_ANYONE: Final = Tenant("", 0)


def readiness(reason: str) -> LocalAnswer:
    """The answer of `/ready`. `reason`: why the gateway cannot serve now; "" = it can."""
    if not reason:
        return LocalAnswer(200, JSON, b'{"ready":true}')
    return LocalAnswer(503, JSON, orjson.dumps({"ready": False, "reason": reason}))


@asynccontextmanager
async def not_ready(listening: socket.socket, settings: Settings, reason: str) -> AsyncIterator[None]:
    """Answer clients on this socket that the process lives but is not ready; the socket stays open."""

    async def local(exchange: IncomingExchange, body: bytes) -> LocalAnswer | Refusal:
        is_health = exchange.endpoint is not None and exchange.endpoint.kind is Kind.HEALTH
        return HEALTHY if is_health else readiness(reason)

    # Whose key it is cannot be known yet, and does not matter: everybody is told to come again.
    admission = Admission(Endpoints(), lambda digest: _ANYONE)
    context = make_context(
        asyncio.get_running_loop(), settings, admission, cast(Dispatcher, _NoDispatcher()), (), local
    )
    context.refusing = Refusal(503, "starting", f"This gateway is not ready: {reason}.", 1.0)
    plane = DataPlane(context)
    await plane.serve(listening.dup())
    try:
        yield
    finally:
        await plane.close()


class _NoDispatcher:
    """Nothing is ever submitted."""

    def decide(self) -> None:
        """No requests wait."""
