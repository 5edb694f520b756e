"""A data plane between raw backends and raw clients, for tests."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from support.gateway.stub_dispatcher import Notes, RoundRobin, node_at
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.http.connection_context import LocalAnswer, Settings
from trimtab.gateway.http.data_plane import DataPlane, make_context
from trimtab.gateway.model import Exchange, Tenant
from trimtab.gateway.tenancy.admission import Admission

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
KEY_DIGEST = hashlib.sha256(b"k").digest()
TENANT = Tenant("t", 0)
WAIT_S = 60.0  # against hanging only: nothing here takes long on any machine


def listening() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    return sock


async def local(exchange: Exchange, body: bytes) -> LocalAnswer:
    return LocalAnswer(200, (("content-type", "text/plain"),), b"local " + body)


def admission(**fields: Any) -> Admission:
    return Admission(Endpoints(), lambda digest: TENANT if digest == KEY_DIGEST else None, **fields)


class Plane:
    """What a test holds: the gateway's port, what the dispatcher and an observer saw, what backends got."""

    def __init__(self, plane: DataPlane, port: int, dispatcher: RoundRobin, notes: Notes) -> None:
        self.plane = plane
        self.context = plane.context
        self.port = port
        self.dispatcher = dispatcher
        self.notes = notes

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes, timeout_s: float = WAIT_S) -> bytes:
        """Send bytes; everything that comes back until the gateway closes."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), timeout_s)
        finally:
            await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def gateway(
    *backends: Serve,
    settings: Settings | None = None,
    look: Admission | None = None,
    ports: tuple[int, ...] = (),
) -> AsyncIterator[Plane]:
    servers = [await asyncio.start_server(one_of(serve), "127.0.0.1", 0) for serve in backends]
    all_ports = [server.sockets[0].getsockname()[1] for server in servers] + list(ports)
    dispatcher = RoundRobin([node_at(port, f"n{i}", i) for i, port in enumerate(all_ports)])
    notes = Notes()
    loop = asyncio.get_running_loop()
    context = make_context(loop, settings or Settings(), look or admission(), dispatcher, (notes,), local)
    plane = DataPlane(context)
    sock = listening()
    await plane.serve(sock)
    made = Plane(plane, sock.getsockname()[1], dispatcher, notes)
    try:
        yield made
    finally:
        await plane.close()
        for server in servers:
            server.close()
        await asyncio.sleep(0.02)
    assert context.exchanges == 0, "an exchange never ended"
    assert context.buffered_bytes == 0, "bytes of a body were never given back"
    assert not context.connections


def one_of(serve: Serve) -> Serve:
    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            await closed(writer)

    return run


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request, as a backend gets it."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head, await reader.readexactly(int(length[1])) if length else b""


def answers(response: bytes, seen: list[tuple[bytes, bytes]] | None = None, close: bool = False) -> Serve:
    """A backend that always answers with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            if seen is not None:
                seen.append(request)
            writer.write(response)
            await writer.drain()
            if close:
                return

    return serve


def ok(body: bytes, content_type: bytes = b"application/json", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
        content_type,
        more,
        len(body),
        body,
    )


def post(
    body: bytes = CHAT, path: bytes = b"/v1/chat/completions", more: bytes = b"", close: bool = True
) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: g\r\nauthorization: Bearer k\r\ncontent-type: application/json\r\n%b%b"
        b"content-length: %d\r\n\r\n%b"
        % (path, b"connection: close\r\n" if close else b"", more, len(body), body)
    )


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 3 * WAIT_S))
