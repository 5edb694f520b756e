"""The admin port: HTTP routes over a `Control`, and the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection
from importlib.resources import files
from typing import Any, Final

import orjson
from aiohttp import web

from trimtab.errors import UsageError
from trimtab.gateway.admin.auth import SESSION_S, AdminAuth
from trimtab.gateway.admin.control import Control
from trimtab.gateway.admin.guard import COOKIE, guard, problem, set_safe_headers
from trimtab.gateway.observe.exposition import CONTENT_TYPE
from trimtab.jobs import StoreUnavailable

MOST_WATCHERS: Final = 32
_BEHIND: Final = 3  # events that a slow viewer may lag behind; further events are dropped


def encoded(status: Any) -> bytes:
    """JSON. Numbers that are not finite become null."""
    return orjson.dumps(status, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


class StatusStream:
    """Requests the gateway's status each `period_s`, only while there are viewers."""

    def __init__(self, control: Control, period_s: float = 1.0) -> None:
        self._control = control
        self._period_s = period_s
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of viewers is reached."""
        return len(self._watchers) >= MOST_WATCHERS

    async def serve(self, request: web.Request, response: web.StreamResponse) -> None:
        """Write events until the client leaves or the server stops. The first holds the whole history."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        self._watchers.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            await response.prepare(request)
            await response.write(_event(await self._control.status()))
            while (event := await queue.get()) is not None:
                await response.write(event)
        except ConnectionResetError:
            pass  # the client left
        finally:
            self._watchers.discard(queue)

    async def close(self) -> None:
        """End all streams."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for queue in self._watchers:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    async def _run(self) -> None:
        while self._watchers:
            await asyncio.sleep(self._period_s)
            status = await self._control.status()
            event = _event({**status, "history": status["history"][-1:]})
            for queue in self._watchers:
                if not queue.full():
                    queue.put_nowait(event)


def _event(status: Any) -> bytes:
    return b"event: status\ndata: " + encoded(status) + b"\n\n"


_BODY_BYTES: Final = 64 * 1024
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_STATIC: Final = files("trimtab.gateway.admin") / "static"


class AdminApp:
    """The handlers. `hosts`: allowed host names, in addition to addresses and localhost."""

    def __init__(
        self, control: Control, auth: AdminAuth, *, hosts: Collection[str] = (), period_s: float = 1.0
    ) -> None:
        self._control = control
        self._auth = auth
        self._stream = StatusStream(control, period_s)
        self.app = web.Application(middlewares=[guard(auth, hosts)], client_max_size=_BODY_BYTES)
        self.app.on_response_prepare.append(_on_prepare)
        self.app.on_shutdown.append(self._on_shutdown)
        self.app.add_routes(
            [
                web.get("/", self._dashboard),
                web.get("/static/{name}", self._static),
                web.get("/login", self._login_by_link),
                web.post("/login", self._login_by_key),
                web.post("/logout", self._logout),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/admin/status", self._status),
                web.get("/admin/stream", self._watch),
                web.get("/admin/nodes", self._nodes),
                web.post("/admin/nodes", self._add_node),
                web.post("/admin/nodes/{name}/drain", self._drain),
                web.post("/admin/nodes/{name}/undrain", self._undrain),
                web.delete("/admin/nodes/{name}", self._remove),
                web.get("/admin/usage", self._usage),
                web.get("/admin/keys", self._keys),
                web.post("/admin/keys", self._make_key),
                web.delete("/admin/keys/{name:.+}", self._revoke_key),
                web.post("/admin/reload", self._reload),
                web.get("/admin/requests/{id:.+}", self._receipt),
            ]
        )

    async def _on_shutdown(self, _app: web.Application) -> None:
        await self._stream.close()

    # --- pages and signing in

    async def _dashboard(self, _request: web.Request) -> web.Response:
        return _file("dashboard.html")

    async def _static(self, request: web.Request) -> web.Response:
        return _file(request.match_info["name"])

    async def _login_by_link(self, request: web.Request) -> web.Response:
        token = request.query.get("token")
        if token is None:
            return _login()
        if self._auth.use_link_token(token):
            return self._signed_in()
        return _login("This link was used before, or is older than ten minutes.", status=401)

    async def _login_by_key(self, request: web.Request) -> web.Response:
        key = (await request.post()).get("key")
        if isinstance(key, str) and self._auth.is_key(key.strip()):
            return self._signed_in()
        return _login("This is not an admin key.", status=401)

    def _signed_in(self) -> web.Response:
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(
            COOKIE,
            self._auth.open_session(),
            max_age=int(SESSION_S),
            httponly=True,
            samesite="Strict",
            path="/",
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self._auth.close_session(request.cookies.get(COOKIE, ""))
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(COOKIE, path="/", samesite="Strict", httponly=True)
        return response

    # --- reading

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._control.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(await self._control.status())

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self._stream.is_full:
            return problem(503, "too_many_watchers", "too many dashboards are open")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await self._stream.serve(request, response)
        return response

    async def _nodes(self, _request: web.Request) -> web.Response:
        return _json({"nodes": await self._control.nodes(), "changes": self._control.node_changes()})

    async def _receipt(self, request: web.Request) -> web.Response:
        found = await self._control.receipt(request.match_info["id"])
        if found is None:
            return problem(404, "unknown_request", "no such request, or it is too long ago")
        return _json(found)

    async def _usage(self, request: web.Request) -> web.Response:
        try:
            return _json({"usage": await self._control.usage(request.query.get("tenant"))})
        except StoreUnavailable as error:
            return problem(503, "store_unavailable", str(error))

    # --- changing

    async def _keys(self, _request: web.Request) -> web.Response:
        return _json({"keys": self._control.keys()})

    async def _make_key(self, request: web.Request) -> web.Response:
        spec = await _object(request, "bad_key", "a key is an object with a name")
        if isinstance(spec, web.Response):
            return spec
        try:
            return _json(await self._control.make_key(spec), status=201)
        except UsageError as error:
            return problem(400, "bad_key", str(error))
        except StoreUnavailable as error:
            return problem(503, "store_unavailable", str(error))

    async def _revoke_key(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            is_known = await self._control.revoke_key(name)
        except StoreUnavailable as error:
            return problem(503, "store_unavailable", str(error))
        if not is_known:
            return problem(404, "unknown_key", f"there is no key {name!r} that was made at run time")
        return _json({"name": name, "state": "revoked"})

    async def _add_node(self, request: web.Request) -> web.Response:
        spec = await _object(request, "bad_node", "a node is an object, as in `nodes` of gateway.yaml")
        if isinstance(spec, web.Response):
            return spec
        try:
            return _json(await self._control.add_node(spec), status=201)
        except UsageError as error:
            return problem(400, "bad_node", str(error))

    async def _drain(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _changed(name, "draining", await self._control.drain(name))

    async def _undrain(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _changed(name, "undrained", await self._control.undrain(name))

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _changed(name, "removing", await self._control.remove(name))

    async def _reload(self, _request: web.Request) -> web.Response:
        try:
            return _json(await self._control.reload())
        except UsageError as error:
            return problem(400, "bad_configuration", str(error))


async def _object(request: web.Request, code: str, expected: str) -> dict[str, Any] | web.Response:
    """The JSON object in a request's body, or the answer that refuses it."""
    try:
        found = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        return problem(400, "bad_json", f"the body is not JSON: {error}")
    return found if isinstance(found, dict) else problem(400, code, expected)


def _changed(name: str, state: str, known: bool) -> web.Response:
    if not known:
        return problem(404, "unknown_node", f"there is no node {name!r}")
    return _json({"node": name, "state": state}, status=202)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=encoded(value), status=status, content_type="application/json")


def _file(name: str) -> web.Response:
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or "/" in name or not (_STATIC / name).is_file():
        return problem(404, "not_found", "there is no such page")
    return web.Response(text=(_STATIC / name).read_text(encoding="utf-8"), content_type=kind, charset="utf-8")


def _login(alert: str = "", status: int = 200) -> web.Response:
    page = (_STATIC / "login.html").read_text(encoding="utf-8")
    if alert:
        page = page.replace("<!-- alert -->", f'<p class="alert" role="alert">{alert}</p>')
    return web.Response(text=page, status=status, content_type="text/html", charset="utf-8")


async def _on_prepare(_request: web.Request, response: web.StreamResponse) -> None:
    set_safe_headers(response)


class AdminServer:
    """The running server of the admin port."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def close(self) -> None:
        """End streams and connections, and close the port."""
        await self._runner.cleanup()


async def serve_admin(app: AdminApp, listening: socket.socket) -> AdminServer:
    """Serve on a listening socket. The server closes the socket at its end."""
    runner = web.AppRunner(app.app, access_log=None, shutdown_timeout=2.0, handle_signals=False)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    return AdminServer(runner, int(listening.getsockname()[1]))
