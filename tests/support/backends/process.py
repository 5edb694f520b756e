"""A fake backend as a process: it says where it listens, and ends on SIGTERM or with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl

from aiohttp import web

from support.backends.options import Options
from support.backends.server import Backend
from support.backends.surroundings import RECEIVE_BYTES

PARENT_CHECK_S = 0.25
GRACE_S = 0.5  # for requests that run when it is told to end


async def serve(options: Options) -> None:
    """Serve until a signal comes or the parent is gone. Prints one line of JSON when ready."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    # A caller who goes away cancels the handler, and so leaves its slot
    runner = web.AppRunner(Backend(options).app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.SockSite(runner, _socket(options), ssl_context=_tls(options), shutdown_timeout=GRACE_S)
        await site.start()
        print(json.dumps(_ready(options, runner)), flush=True)
        await _until_ended(ended, options.parent or os.getppid())
    finally:
        await runner.cleanup()


def _socket(options: Options) -> socket.socket:
    listening = socket.create_server((options.host, options.port), backlog=128)
    if options.link_mib_per_s:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return listening


def _tls(options: Options) -> ssl.SSLContext | None:
    if not options.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.tls_cert, options.tls_key or None)
    return context


def _ready(options: Options, runner: web.AppRunner) -> dict[str, object]:
    port = runner.addresses[0][1]
    scheme = "https" if options.tls_cert else "http"
    return {
        "port": port,
        "url": f"{scheme}://{options.host}:{port}",
        "name": options.shown_name,
        "kind": options.kind,
        "models": options.served_models,
    }


async def _until_ended(ended: asyncio.Event, parent: int) -> None:
    """Wait for a signal. A parent that has ended leaves its children to another process."""
    while not ended.is_set() and os.getppid() == parent:
        try:
            await asyncio.wait_for(ended.wait(), PARENT_CHECK_S)
        except TimeoutError:
            continue
