"""What the gateway answers by itself: `/health` and `/ready`, also while it starts, and `GET /v1/models`."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TextIO, cast

import orjson

from trimtab.engine.calls import is_ready
from trimtab.engine.compilation import compile_kernels
from trimtab.engine.policy_errors import Fallback
from trimtab.errors import UsageError
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.config.routes import Resolved
from trimtab.gateway.http.connection_context import LocalAnswer, Settings
from trimtab.gateway.http.data_plane import DataPlane, make_context
from trimtab.gateway.http.request import IncomingExchange
from trimtab.gateway.model import Dispatcher, Kind, Refusal, Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.tenancy.admission import Admission
from trimtab.policies.catalogue import find

COMPILE_TIMEOUT_S = 300.0
JSON = (("content-type", "application/json"),)


def compile_here(policies: Iterable[str]) -> None:
    """Compile all kernels of a gateway with these policies, or load cached ones. Raises PolicyError.

    Prints a line of progress now and then if the loop must be compiled.
    """
    compile_kernels([Fallback(), *policies], notice=partial(print, "trimtab:", flush=True))


def are_compiled(policies: Iterable[str]) -> bool:
    """Whether the kernel cache has all that a gateway with these policies needs."""
    return is_ready(Fallback()) and all(is_ready(*find(spec)) for spec in policies)


async def compile_first(policies: Sequence[str], *, quiet: bool) -> None:
    """Fill the kernel cache in another process, because the compiler would leave much memory in use here.

    Progress goes to stderr. Kernels that do not compile are reported when they are loaded.
    """
    await _compile_apart(policies, stdout=subprocess.DEVNULL if quiet else sys.stderr)


async def compile_elsewhere(policies: Sequence[str]) -> None:
    """Fill the kernel cache in another process, because compilation here would delay the event loop.

    Raises UsageError if a policy does not compile.
    """
    async with asyncio.timeout(COMPILE_TIMEOUT_S):
        status, complaint = await _compile_apart(policies, stderr=subprocess.PIPE)
    if status:
        lines = complaint.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {status}"
        raise UsageError(f"does not compile: {reason}", field="policy")


async def _compile_apart(
    policies: Sequence[str],
    stdout: int | TextIO = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> tuple[int | None, bytes]:
    """Exit status and stderr of the process that compiles."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _COMPILE,
        *policies,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        _, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, complaint or b""


_COMPILE: Final = f"import sys; from {__name__} import compile_here; compile_here(sys.argv[1:])"


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


def model_rows(fleet: Fleet, routes: Mapping[str, Resolved], created: int) -> dict[str, dict[str, Any]]:
    """Name → row. An adapter has its model as `parent`, an alias its target as `root`."""
    rows: dict[str, dict[str, Any]] = {}
    for node in fleet.present():
        for name in node.models:
            rows.setdefault(name, _model_row(name, created))
        for name, base in fleet.state(node).adapters.items():
            rows.setdefault(name, {**_model_row(name, created), "root": base or name, "parent": base or None})
    for route in routes.values():
        if route.models and route.name not in rows:
            rows[route.name] = {**_model_row(route.name, created), "root": route.models[0]}
    return dict(sorted(rows.items()))


def _model_row(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "trimtab"}


def models_answer(rows: Mapping[str, dict[str, Any]], name: str = "") -> LocalAnswer | Refusal:
    """The whole list, or one model."""
    if not name:
        return LocalAnswer(200, JSON, orjson.dumps({"object": "list", "data": list(rows.values())}))
    if name not in rows:
        return Refusal(404, "model_not_found", f"The model `{name[:200]}` does not exist.", param="model")
    return LocalAnswer(200, JSON, orjson.dumps(rows[name]))
