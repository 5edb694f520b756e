"""The process of the demonstration's nodes, from inside and from outside."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from trimtab.gateway.demo.demo_nodes import DEMO_NODES, DemoNode, DemoServer

ADDRESS = "127.0.0.1"
GRACE_S = 0.5  # for requests that run when the process is to end
STOP_TIMEOUT_S = 5.0


async def serve_nodes() -> None:
    """Serve all nodes until standard input ends. Prints their URLs as JSON when they listen."""
    runners = [
        # A client that goes away cancels the handler, which then leaves its slot
        web.AppRunner(DemoServer(node).app(), handler_cancellation=True, access_log=None)
        for node in DEMO_NODES
    ]
    try:
        urls = [await _listening(runner) for runner in runners]
        print(json.dumps(urls), flush=True)
        await _end_of_stdin()
    finally:
        for runner in runners:
            await runner.cleanup()


async def _listening(runner: web.AppRunner) -> str:
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, 0, shutdown_timeout=GRACE_S).start()
    return f"http://{ADDRESS}:{runner.addresses[0][1]}"


async def _end_of_stdin() -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


@contextmanager
def running_nodes() -> Iterator[dict[str, DemoNode]]:
    """The nodes by URL; their process ends with the block. Raises RuntimeError where it does not start."""
    # A session of its own: Ctrl-C is for the gateway, which drains before its nodes end.
    # The pipe ends with this process, however that ends, and the nodes with the pipe.
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.gateway.demo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the nodes of the demonstration did not start; the reason is above")
            yield dict(zip(json.loads(line), DEMO_NODES, strict=True))
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # frozen, perhaps
                process.kill()
