"""Answers that all kinds of fake backends give: errors in the caller's form, faulty streams."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from aiohttp import web

from support.backends import wrong
from support.backends.faults import Fault
from support.backends.surroundings import LINK

FACTOR = "x-demo-factor"  # what a request's service is multiplied by, instead of a random factor
STRUCK: web.RequestKey[dict[str, Fault]] = web.RequestKey("struck", dict)
_ANTHROPIC_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
_ANTHROPIC_TYPES |= {429: "rate_limit_error", 529: "overloaded_error"}


def error(
    request: web.Request, status: int, message: str, code: str = "", retry_after_s: float = 0.0
) -> web.Response:
    """An error in the form of the path's dialect."""
    if request.path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(status, "api_error")
        content: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        kind = "invalid_request_error" if status < 500 else "server_error"
        content = {"error": {"message": message, "type": kind, "param": None, "code": code or None}}
    headers = {"Retry-After": str(math.ceil(retry_after_s))} if retry_after_s else None
    return web.json_response(content, status=status, headers=headers)


class Refused(Exception):  # noqa: N818 - reads as the sentence it makes
    """A request that is wrong: `status`, `message`, `code`."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(status, message, code)
        self.status, self.message, self.code = status, message, code


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body. Raises Refused where it is no JSON object."""
    try:
        body = json.loads(await request.app[LINK].read(request))
    except ValueError:
        raise Refused(400, "the body is no JSON", "invalid_json") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is no JSON object", "invalid_json")
    return body


class Stream:
    """A streamed body, sent chunk by chunk. The head goes out at once, as ASGI servers send it."""

    def __init__(self, request: web.Request, content_type: str = "text/event-stream") -> None:
        self._request = request
        self._struck: dict[str, Fault] = request[STRUCK]
        self._chunks = 0
        headers = {"Content-Type": content_type, "Cache-Control": "no-cache"}
        self.response = web.StreamResponse(headers=headers)

    async def open(self) -> None:
        """Send the head."""
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send a chunk. Raises Broken where a rule ended the connection."""
        await self._strike()
        await self.response.write(data)
        self._chunks += 1

    async def end(self) -> web.StreamResponse:
        """Send the end of the body. Raises Broken where a rule ended the connection."""
        await self._strike()
        truncate = self._struck.get("truncate")
        if truncate is not None:
            self._close(truncate)
        await self.response.write_eof()
        return self.response

    async def _strike(self) -> None:
        stall, closing, junk = (self._struck.get(fault) for fault in ("stall", "close", "garbage"))
        if stall is not None and stall.chunks == self._chunks:
            await asyncio.sleep(stall.seconds)
        if junk is not None and junk.chunks == self._chunks:
            wrong.garbage(self._request)
            raise wrong.Broken
        if closing is not None and closing.chunks == self._chunks:
            self._close(closing)

    def _close(self, fault: Fault) -> None:
        wrong.close(self._request, reset=fault.reset)
        raise wrong.Broken


def lead_s(request: web.Request) -> float:
    """Seconds that rules add before the first byte of output."""
    struck: dict[str, Fault] = request[STRUCK]
    return sum(struck[fault].seconds for fault in ("slow_prefill", "early_head") if fault in struck)


def stated_factor(request: web.Request) -> float | None:
    """The factor that a request brings with it; None where it has none. Raises Refused."""
    text = request.headers.get(FACTOR)
    try:
        factor = None if text is None else float(text)
    except ValueError:
        factor = math.nan
    if factor is not None and not 0.0 <= factor < math.inf:
        raise Refused(400, f"{FACTOR} `{text}` is no factor", "invalid_factor")
    return factor
