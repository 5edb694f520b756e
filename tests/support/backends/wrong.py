"""Responses that break the protocol: written to the transport by hand, behind the server's back."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from aiohttp import web

from support.backends.faults import Fault

NO_HTTP = b"\x00\xff\x16\x03 this is no HTTP \r\r\n\n\x80" * 8


class Broken(Exception):  # noqa: N818 - reads as the sentence it makes
    """The connection was broken on purpose: nothing more is to be written."""


class Said(web.StreamResponse):
    """Tells the server that the response has been written already, and that the connection may be kept."""

    @property
    def keep_alive(self) -> bool | None:
        """The server closes nothing: whoever wrote the response has done so where it was wanted."""
        return True

    async def prepare(self, request: web.BaseRequest) -> Any:
        """Write no head."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Write no end."""


def transport_of(request: web.Request) -> asyncio.Transport:
    """The connection's transport. Raises Broken where the caller has gone already."""
    transport = request.transport
    if transport is None:
        raise Broken
    return transport


def close(request: web.Request, *, reset: bool) -> None:
    """Close the connection, by a reset where one is wanted."""
    transport = transport_of(request)
    if not reset:
        transport.close()
        return
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def garbage(request: web.Request) -> None:
    """Write bytes that are no HTTP, and close."""
    transport_of(request).write(NO_HTTP)
    close(request, reset=False)


async def broken(request: web.Request, response: web.Response, struck: dict[str, Fault]) -> Said:
    """Write a whole response as the rules that struck it want it: cut, of a wrong length, with a pause."""
    body = bytes(response.body) if isinstance(response.body, (bytes, bytearray)) else b""
    declared = len(body) + (struck["wrong_length"].bytes if "wrong_length" in struck else 0)
    ending = struck.get("close") or struck.get("truncate")
    if "truncate" in struck:
        body = body[: len(body) // 2]
    if "close" in struck:
        body = body[: struck["close"].bytes]
    transport = transport_of(request)
    transport.write(_head(response, declared) + body[: len(body) // 2])
    if "stall" in struck:
        await asyncio.sleep(struck["stall"].seconds)
    transport.write(body[len(body) // 2 :])
    if ending is not None:
        close(request, reset=ending.reset)
    return Said()


def _head(response: web.Response, declared: int) -> bytes:
    lines = (
        f"HTTP/1.1 {response.status} {response.reason}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {max(0, declared)}",
    )
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
