"""A server of aiohttp in the test's own loop. What it answers is given by its routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from aiohttp import web


class AppBackend:
    """Listens on 127.0.0.1 within `async with`; on a free port, unless `port` is set before."""

    port = 0
    _runner: web.AppRunner

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 24)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
