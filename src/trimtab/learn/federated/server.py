"""A federation over HTTP: sites ask what to learn next and send their updates; it goes on after a kill.

    POST /v1/join           what a site is of: refused by name where its protocol or problem differs
    GET  /v1/problem        what is learned
    GET  /v1/ask?known=K    the round's question, for a site that knows the sums of K rounds
                            (204 = nothing for this site now, 410 = it is over)
    POST /v1/answers/N      the update of round N
    GET  /v1/result         the file that was learned
    GET  /v1/status         how far it is

Every accepted update is on the disk before it is answered, so a server that was killed goes on with the same
result. A site is who its key says, or the name (CN) of its certificate; where both are asked for they agree.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from trimtab.gateway.admin.auth import digest
from trimtab.gateway.admin.guard import problem
from trimtab.learn.federated.learning_problem import PROTOCOL
from trimtab.learn.federated.rounds import Federation, RoundReport
from trimtab.learn.federated.settings import FederationConfig, site_digests
from trimtab.version import __version__

CHECKPOINT, STATUS = "federation.safetensors", "status.json"
PROTOCOL_HEADER: Final = "x-trimtab-federation"
WAIT_S: Final = 10.0  # longest time that a question waits for the next round
LINGER_S: Final = 15.0  # for sites that have not fetched the result
_ROOM: Final = 1 << 16  # bytes of an update beside its numbers

Told = Callable[[RoundReport, int], None]  # a round that ended, of how many
Write = Callable[[Path, bytes], Path]  # a file as a whole, or not at all


class FederationServer:
    """A federation, its folder, and the sites that speak with it."""

    def __init__(self, config: FederationConfig, federation: Federation, folder: Path, write: Write) -> None:
        """Goes on from the folder's checkpoint. Raises UsageError where that is of another federation."""
        self.config, self.folder, self._write_file = config, folder, write
        self.federation = federation
        self.refused: dict[str, str] = {}  # site → why it cannot take part
        self._digests = site_digests(config)
        self._is_signed = config.tls is not None and config.tls.client_ca is not None
        self._changed = asyncio.Condition()
        self._fetched: set[str] = set()
        self._asked: set[str] = set()
        checkpoint = folder / CHECKPOINT
        if checkpoint.exists():
            self.federation.restore(checkpoint.read_bytes(), str(checkpoint))

    async def run(self, listening: socket.socket, told: Told) -> Path:
        """Serve on a listening socket until all rounds have ended; returns the file that was learned.

        Raises UsageError where the folder cannot be written.
        """
        tls = None if self.config.tls is None else self.config.tls.context("tls")
        self._write()
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=2.0, handle_signals=False)
        await runner.setup()
        try:
            await web.SockSite(runner, listening, ssl_context=tls).start()
            while not self.federation.is_over:
                await self._round()
                told(self.federation.reports[-1], self.federation.problem.rounds())
            name, content = self.federation.result()
            path = self._write_file(self.folder / name, content)
            async with self._changed:
                self._changed.notify_all()
            await self._linger()
            return path
        finally:
            await runner.cleanup()

    def status(self) -> dict[str, Any]:
        """How far it is, for displays."""
        federation = self.federation
        under_way = None
        if not federation.is_over:
            drawn = federation.drawn()
            under_way = {
                "number": federation.number,
                "drawn": list(drawn),
                "answered": sorted(federation.answers),
                "waits_for": list(federation.waited_for()),
                "needs": federation.terms.sites_min,
            }
        return {
            "state": "over" if federation.is_over else "learning",
            "problem": federation.problem.told(),
            "rounds": federation.problem.rounds(),
            "ended": [report._asdict() for report in federation.reports],
            "round": under_way,
            "absent": sorted(federation.absent),
            "refused": {**self.refused, **federation.refused},
        }

    async def _round(self) -> None:
        """Wait until the round may end, and end it."""
        loop, federation = asyncio.get_running_loop(), self.federation
        until_s = loop.time() + self.config.rounds.deadline_s
        async with self._changed:
            while not (federation.has_enough and (not federation.waited_for() or loop.time() >= until_s)):
                left_s = until_s - loop.time()
                try:
                    await asyncio.wait_for(self._changed.wait(), left_s if left_s > 0.0 else None)
                except TimeoutError:
                    continue
            federation.end_round()
            self._write()  # before a site hears of it
            self._changed.notify_all()

    async def _linger(self) -> None:
        """Until all sites that were heard of have the result, or for a while."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LINGER_S
        async with self._changed:
            while not self._fetched >= self._asked and loop.time() < until_s:
                try:
                    await asyncio.wait_for(self._changed.wait(), until_s - loop.time())
                except TimeoutError:
                    return

    def _write(self) -> None:
        self._write_file(self.folder / CHECKPOINT, self.federation.checkpoint())
        self._write_file(self.folder / STATUS, (json.dumps(self.status(), indent=1) + "\n").encode())

    def _app(self) -> web.Application:
        room = _ROOM + self.federation.update_bytes()
        app = web.Application(middlewares=[self._guard], client_max_size=4 * room)
        app.add_routes(
            [
                web.get("/v1/problem", self._problem),
                web.post("/v1/join", self._join),
                web.get("/v1/ask", self._ask),
                web.post("/v1/answers/{round:[0-9]{1,6}}", self._answer),
                web.get("/v1/result", self._result),
                web.get("/v1/status", self._status),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        site = self._site_of(request)
        if site is None:
            return problem(401, "not_authorised", "needs the key or the certificate of a site")
        given = request.headers.get(PROTOCOL_HEADER)
        if given != PROTOCOL:
            why = f"speaks version {given or '(none)'} of the protocol; expected {PROTOCOL}"
            return await self._refuse(site, why)
        request["site"] = site
        try:
            answer: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            return problem(error.status, error.reason.lower().replace(" ", "_"), error.reason)
        return answer

    def _site_of(self, request: web.Request) -> str | None:
        """The site that sent a request; None = none that may take part."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        by_key = self._digests.get(digest(key.strip()).hex()) if scheme.lower() == "bearer" else None
        names = {site.name: bool(site.sha256 or site.env) for site in self.config.sites}
        if not self._is_signed:
            return by_key
        name = _common_name(request)
        if name not in names or (names[name] and by_key != name):
            return None
        return name

    async def _refuse(self, site: str, why: str) -> web.Response:
        async with self._changed:
            self.refused[site] = why
            self.federation.absent.add(site)
            self._write()
            self._changed.notify_all()
        return problem(409, "other_version", f"{site} {why}")

    async def _problem(self, _request: web.Request) -> web.Response:
        return web.json_response({**self.federation.told(), "release": __version__})

    async def _join(self, request: web.Request) -> web.Response:
        site = request["site"]
        try:
            given = json.loads(await request.read())["identity"]
        except (ValueError, KeyError, TypeError):
            return problem(400, "bad_json", "a JSON object with identity")
        if given != self.federation.identity:
            why = f"has the schema {given!s:.40}; expected {self.federation.identity}"
            return await self._refuse(site, why)
        async with self._changed:
            self.refused.pop(site, None)
            self._asked.add(site)
            self.federation.heard(site)
        return web.json_response({"site": site, "rounds": self.federation.problem.rounds()})

    async def _ask(self, request: web.Request) -> web.Response:
        site, federation = request["site"], self.federation
        async with self._changed:
            self._asked.add(site)
            federation.heard(site)
            if not self._is_for(site):
                try:
                    await asyncio.wait_for(self._changed.wait_for(lambda: self._is_for(site)), WAIT_S)
                except TimeoutError:
                    return web.Response(status=204)
            if federation.is_over:
                return problem(410, "over", "all rounds have ended")
            known = request.query.get("known", "0")
            asked = federation.ask(int(known) if known.isdigit() else 0)
            return web.Response(body=asked.content(), content_type="application/octet-stream")

    def _is_for(self, site: str) -> bool:
        """Whether there is something for a site: a question, or the end."""
        federation = self.federation
        if federation.is_over:
            return True
        return site in federation.drawn() and site not in federation.answers

    async def _answer(self, request: web.Request) -> web.Response:
        site, number = request["site"], int(request.match_info["round"])
        content = await request.read()
        async with self._changed:
            why = self.federation.take(site, number, content)
            is_garbage = bool(why) and self.federation.refused.get(site) == why
            if not why or is_garbage:
                self._write()
                self._changed.notify_all()
        if not why:
            return web.json_response({"round": number}, status=202)
        return problem(422, "refused", why) if is_garbage else problem(409, "too_late", why)

    async def _result(self, request: web.Request) -> web.Response:
        if not self.federation.is_over:
            return problem(404, "not_yet", f"round {self.federation.number} is under way")
        name, content = self.federation.result()
        async with self._changed:
            self._fetched.add(request["site"])
            self._changed.notify_all()
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return web.Response(body=content, content_type="application/octet-stream", headers=headers)

    async def _status(self, _request: web.Request) -> web.Response:
        return web.json_response(self.status())


def _common_name(request: web.Request) -> str | None:
    transport = request.transport
    certificate: Mapping[str, Any] = (transport and transport.get_extra_info("peercert")) or {}
    parts = (pair for part in certificate.get("subject", ()) for pair in part)
    return next((value for key, value in parts if key == "commonName"), None)
