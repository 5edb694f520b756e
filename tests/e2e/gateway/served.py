"""`trimtab serve` as a process of its own, and clients that put load on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from trimtab.runtime.gateway.config import digest_of
from trimtab.runtime.gateway.demo.children import DemoProcess

KEY, ADMIN_KEY = "tt-key-of-the-tests-0123456789", "tt-admin-key-of-the-tests-987654"
START_S, END_S = 240.0, 60.0  # compiling may come first
BEARER = {"Authorization": f"Bearer {KEY}"}
HELLO = {"model": "demo-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def config_of(backends: Sequence[DemoProcess], **changes: Any) -> dict[str, Any]:
    """A configuration for these backends; `changes` replace whole keys."""
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(ADMIN_KEY.encode())}]},
        "keys": [{"name": "tests", "sha256": digest_of(KEY.encode())}],
        "nodes": [entry_of(backend) for backend in backends],
        "health": {"period_s": 0.5, "timeout_s": 1.0, "healthy_after": 1},
        "telemetry": {"log_requests": True},
        **changes,
    }


def entry_of(backend: DemoProcess, **further: Any) -> dict[str, Any]:
    """A node of the configuration."""
    return {
        "name": backend.name,
        "url": backend.url,
        "models": list(backend.models),
        "capacity": backend.options.slots,
        **further,
    }


@dataclass
class Served:
    """A gateway that runs. `file` is its configuration, `log` all that it has said."""

    process: subprocess.Popen[bytes]
    url: str
    admin_url: str
    file: Path
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def said(self) -> str:
        return self.log.read_text()

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(END_S)

    def configure(self, config: Mapping[str, Any]) -> None:
        self.file.write_text(yaml.safe_dump(dict(config)))


def start(config: Mapping[str, Any], folder: Path, *arguments: str, **environ: str) -> Served:
    """Start a gateway and wait until it serves. `folder` keeps its state."""
    file, log = folder / "gateway.yaml", folder / "log"
    file.write_text(yaml.safe_dump(dict(config)))
    process = spawn(file, folder, *arguments, **environ)
    try:
        urls = _urls(process, log)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Served(process, *urls, file, log)


def spawn(file: Path, folder: Path, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    """Start it and do not wait; what it says goes to `folder`/log."""
    command = [sys.executable, "-m", "trimtab", "serve", str(file), *arguments]
    state = {"TRIMTAB_STATE_DIR": str(folder / "state")}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **state, **environ}
        )


@contextlib.contextmanager
def served(config: Mapping[str, Any], folder: Path, *arguments: str, **environ: str) -> Iterator[Served]:
    """A gateway that runs as long as the block does."""
    gateway = start(config, folder, *arguments, **environ)
    try:
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.tell(signal.SIGTERM)
            try:
                gateway.wait()
            except subprocess.TimeoutExpired:
                gateway.process.kill()
                gateway.process.wait()
                raise


def _urls(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        said = log.read_text()
        found = re.search(r"trimtab serves (http://\S+)\n.*?(http://[^/]+)/login", said, re.DOTALL)
        if found is not None:
            return found[1], found[2]
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"it does not serve:\n{log.read_text()}")


@dataclass(slots=True)
class Answer:
    """What a client got. `status` 0 = no head came; `error` = why its answer is not whole."""

    status: int = 0
    error: str = ""
    node: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.status == 200 and not self.error and b'"error"' not in self.body

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.asynccontextmanager
async def client(*, keep: bool = True) -> Any:
    """A session without limits. `keep` = connections are used again."""
    connector = aiohttp.TCPConnector(limit=0, force_close=not keep)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=90)) as session:
        yield session
    await asyncio.sleep(0.05)  # aiohttp closes its transports in a later turn of the loop


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    body: object = HELLO,
    *,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] = BEARER,
    method: str = "POST",
    refused_again_s: float = 0.0,
) -> Answer:
    """One request. A refused connection is tried again for so long: nothing was sent then."""
    answer, begun_s = Answer(), time.monotonic()
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    while True:
        answer.attempts += 1
        try:
            async with session.request(method, url + path, data=data, headers=headers) as response:
                answer.status = response.status
                answer.headers = response.headers.copy()
                answer.node = response.headers.get("x-trimtab-node", "")
                answer.body = await response.read()
        except aiohttp.ClientConnectorError as error:
            answer.error = repr(error)
            if time.monotonic() - begun_s < refused_again_s:
                await asyncio.sleep(0.05)
                answer.error = ""
                continue
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            answer.error = repr(error)
        answer.seconds = time.monotonic() - begun_s
        return answer


@dataclass
class Load:
    """Requests at a steady rate, whatever becomes of those before."""

    session: aiohttp.ClientSession
    url: str
    rate_per_s: float = 200.0
    body: object = field(default_factory=lambda: HELLO)
    refused_again_s: float = 0.0
    tasks: list[asyncio.Task[Answer]] = field(default_factory=list)

    async def send(self, count: int) -> None:
        """Send so many from now on."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for n in range(count):
            await asyncio.sleep(max(0.0, begun_s + n / self.rate_per_s - loop.time()))
            again_s = self.refused_again_s
            work = ask(self.session, self.url, self.body, refused_again_s=again_s)
            self.tasks.append(loop.create_task(work))

    async def answers(self) -> list[Answer]:
        """All answers, when they are there."""
        return await asyncio.gather(*self.tasks)

    async def unfinished_after(self, seconds: float) -> int:
        """How many are not answered after a while."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds)
        return sum(not task.done() for task in self.tasks)


def bad(answers: Sequence[Answer]) -> list[str]:
    """Those that are not good, in words."""
    return [f"{a.status} {a.error} {a.body[-200:]!r}" for a in answers if not a.is_good]


async def until(check: Any, what: str, timeout_s: float = 30.0) -> None:
    """Wait for `await check()` to be true."""
    end_s = time.monotonic() + timeout_s
    while not await check():
        assert time.monotonic() < end_s, f"not in time: {what}"
        await asyncio.sleep(0.05)
