"""Starts an admin port on loopback and takes it down again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from support.gateway.fake_control import FakeControl
from trimtab.gateway.admin.admin_app import AdminApp, serve_admin
from trimtab.gateway.admin.auth import AdminAuth, digest

KEY = "tt-admin-0123456789abcdef0123456789abcdef"


@dataclass
class Admin:
    control: FakeControl
    auth: AdminAuth
    base: str


@contextlib.asynccontextmanager
async def open_admin(control: FakeControl | None = None, period_s: float = 0.1) -> AsyncIterator[Admin]:
    control = control or FakeControl(lived_s=5)
    auth = AdminAuth([digest(KEY)])
    listening = socket.create_server(("127.0.0.1", 0))
    server = await serve_admin(AdminApp(control, auth, hosts=["gateway.test"], period_s=period_s), listening)
    try:
        yield Admin(control, auth, f"http://127.0.0.1:{server.port}")
    finally:
        await server.close()


@contextlib.contextmanager
def admin_in_thread(control: FakeControl, period_s: float = 0.5) -> Iterator[Admin]:
    """For clients that block, such as a browser's driver."""
    made: list[Admin] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        async with open_admin(control, period_s) as admin:
            made.append(admin)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(live()), loop.close()))
    thread.start()
    try:
        assert ready.wait(60)
        yield made[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
