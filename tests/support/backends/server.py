"""The server of a fake backend: its routes, the faults before and after them, and its own control paths."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections import deque
from dataclasses import asdict
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from support.backends import figures, wrong
from support.backends.answers import STRUCK, Refused, error, read_json
from support.backends.chat import Chat
from support.backends.faults import Fault, Faults, faults_from, faults_from_text
from support.backends.images import Images
from support.backends.options import Options
from support.backends.service import Service
from support.backends.speech import Speech
from support.backends.surroundings import LINK, Link
from support.backends.videos import Videos

MAX_BODY_BYTES = 256 * 2**20
LOGGED = 20_000  # requests remembered
OPEN_PATHS = ("/health", "/metrics", "/machine", "/_demo/")  # no key is asked for


class Room(Protocol):
    """The handlers of one kind of backend."""

    def routes(self) -> list[web.RouteDef]: ...


class Backend:
    """A fake backend: what it serves, its faults, and a log of what it got."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.service = Service(options)
        self.faults = Faults(faults_from_text(options.faults), options.seed)
        self.log: deque[dict[str, Any]] = deque(maxlen=LOGGED)
        self._key = os.environ.get(options.api_key_env, "") if options.api_key_env else ""

    def app(self) -> web.Application:
        """The application to be served."""
        app = web.Application(
            middlewares=[self._logged, self._keyed, self._far, self._faulty, _refusing],
            client_max_size=MAX_BODY_BYTES,
        )
        app[LINK] = Link(self.options.link_mib_per_s)
        app.add_routes([*self._room(app).routes(), *self._own_routes()])
        return app

    def _room(self, app: web.Application) -> Room:
        options, service = self.options, self.service
        match options.kind:
            case "chat":
                return Chat(options, service)
            case "image":
                return Images(options, service)
            case "speech":
                return Speech(options, service)
        videos = Videos(options, service)

        async def close(_: web.Application) -> None:
            await videos.close()

        app.on_shutdown.append(close)
        return videos

    def _own_routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/metrics", self._metrics),
            web.get("/machine", self._machine),
            web.get("/_demo/faults", self._show_faults),
            web.post("/_demo/faults", self._set_faults),
            web.get("/_demo/stats", self._stats),
            web.get("/_demo/requests", self._requests),
        ]

    # What surrounds every request

    @web.middleware
    async def _logged(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/_demo/"):
            return await handler(request)
        entry = _entry(request)
        self.log.append(entry)
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            entry["outcome"] = "aborted"
            raise
        except Exception:
            entry["outcome"] = "failed"
            raise
        entry |= {"outcome": "done", "status": response.status}
        return response

    @web.middleware
    async def _keyed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        is_open = not self._key or request.path.startswith(OPEN_PATHS)
        if is_open or hmac.compare_digest(given.encode(), self._key.encode()):
            return await handler(request)
        return error(request, 401, "Incorrect API key provided.", "invalid_api_key")

    @web.middleware
    async def _far(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The way here and back, all of it before the request is read."""
        if self.options.away_s and not request.path.startswith(("/_demo/", "/machine", "/metrics")):
            await asyncio.sleep(self.options.away_s)
        return await handler(request)

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        struck = {} if request.path.startswith("/_demo/") else self.faults.striking(request.path)
        request[STRUCK] = struck
        if not struck:
            return await handler(request)
        try:
            return await self._struck(request, handler, struck)
        except wrong.Broken:
            return wrong.Said()

    async def _struck(
        self, request: web.Request, handler: Handler, struck: dict[str, Fault]
    ) -> web.StreamResponse:
        """Answer a request that some rules have struck."""
        if "delay" in struck:
            await asyncio.sleep(struck["delay"].seconds)
        if "status" in struck:
            rule = struck["status"]
            return error(request, rule.status, "a fault of the demo", "demo_fault", rule.retry_after_s)
        if "garbage" in struck and not struck["garbage"].chunks:
            wrong.garbage(request)
            return wrong.Said()
        closing = struck.get("close")
        if closing is not None and not closing.chunks and not closing.bytes:
            wrong.close(request, reset=closing.reset)
            return wrong.Said()
        if "early_head" in struck and not await _asks_for_stream(request):
            return await _early(request, handler)
        response = await handler(request)
        whole = isinstance(response, web.Response)
        if whole and struck.keys() & {"truncate", "wrong_length", "stall", "close"}:
            return await wrong.broken(request, response, struck)  # type: ignore[arg-type]  # it is whole
        return response

    # Its own paths

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _models(self, request: web.Request) -> web.Response:
        data = [
            {"id": model, "object": "model", "created": 0, "owned_by": "trimtab"}
            for model in self.options.served_models
        ]
        return web.json_response({"object": "list", "data": data})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = figures.page(self.options, self.service)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _machine(self, request: web.Request) -> web.Response:
        return web.Response(text=self.service.others.page(asyncio.get_running_loop().time()))

    async def _show_faults(self, request: web.Request) -> web.Response:
        return web.json_response({"faults": self.faults.shown()})

    async def _set_faults(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        try:
            rules = faults_from(body.get("faults"))
        except (ValueError, TypeError) as problem:
            raise Refused(400, str(problem), "invalid_faults") from problem
        self.faults = Faults(rules, self.options.seed)
        return await self._show_faults(request)

    async def _stats(self, request: web.Request) -> web.Response:
        now = {"running": self.service.running, "waiting": self.service.waiting}
        return web.json_response({"name": self.options.shown_name, **now, **asdict(self.service.counts)})

    async def _requests(self, request: web.Request) -> web.Response:
        return web.json_response({"requests": list(self.log)})


def _entry(request: web.Request) -> dict[str, Any]:
    """What is remembered of a request: its id and the names of its headers, none of its values or content."""
    return {
        "id": request.headers.get("x-request-id", ""),
        "method": request.method,
        "path": request.path,
        "headers": sorted(name.lower() for name in request.headers),
        "outcome": "running",
        "status": 0,
    }


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        return error(request, refused.status, refused.message, refused.code)


async def _asks_for_stream(request: web.Request) -> bool:
    return b'"stream":true' in (await request.read()).replace(b" ", b"")


async def _early(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send the head now and the body when it is made."""
    early = web.StreamResponse(headers={"Content-Type": "application/json"})
    await early.prepare(request)
    response = await handler(request)
    body = response.body if isinstance(response, web.Response) else None
    await early.write(bytes(body) if isinstance(body, (bytes, bytearray)) else b"")
    await early.write_eof()
    return early
