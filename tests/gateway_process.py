"""A gateway in a process of its own over demo backends, and traffic for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import yaml

from trimtab.runtime.gateway.config import digest_of
from trimtab.runtime.gateway.demo import DemoProcess, Options

SPEEDS, SLOTS = (1.0, 2.0, 3.0), 2
BASE_S, TOKEN_S, MEAN_TOKENS = 0.03, 0.015, 16
KEY, ADMIN_KEY = "a key of this test", "an admin's key of this test"


@dataclass(frozen=True)
class Traffic:
    """When requests come, and how many tokens they ask for."""

    at_s: np.ndarray
    tokens: np.ndarray


def poisson(n: int, load: float, seed: int) -> Traffic:
    rng = np.random.default_rng(seed)
    rate_per_s = load * SLOTS * sum(SPEEDS) / (BASE_S + TOKEN_S * MEAN_TOKENS)
    at_s = np.cumsum(rng.exponential(1.0 / rate_per_s, n))
    return Traffic(at_s, 1 + rng.poisson(rng.exponential(MEAN_TOKENS - 1, n)))


def backends(sigma: float = 0.3) -> list[Options]:
    served: Any = {"slots": SLOTS, "base_s": BASE_S, "output_s": TOKEN_S, "prefill_s": 0.0, "sigma": sigma}
    return [Options(name=f"b{k}", speed=speed, seed=k, **served) for k, speed in enumerate(SPEEDS)]


def configuration(started: Sequence[DemoProcess], **more: Any) -> dict[str, Any]:
    """Recorded, and with nothing that takes a busy machine's stalls for faults of the nodes."""
    nodes = [{"name": b.name, "url": b.url, "models": list(b.models), "capacity": SLOTS} for b in started]
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(ADMIN_KEY.encode())}]},
        "keys": [{"name": "t", "sha256": digest_of(KEY.encode())}],
        "nodes": nodes,
        "store": {"url": "sqlite:///jobs.sqlite"},
        "record": {"folder": "recording"},
        **more,
    }


@dataclass(frozen=True)
class Served:
    """A gateway that runs."""

    url: str
    admin_url: str


@contextlib.contextmanager
def serving(folder: Path, config: dict[str, Any]) -> Iterator[Served]:
    """`trimtab serve` with this configuration; ended by SIGTERM, with exit code 0."""
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "trimtab", "serve", "gateway.yaml"]
    with (folder / "said").open("w") as log:
        started = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        with started:
            try:
                yield _ready(started)
            finally:
                started.send_signal(signal.SIGTERM)
                assert started.stderr is not None
                log.write(started.stderr.read())
    assert started.returncode == 0, (folder / "said").read_text()


def _ready(started: subprocess.Popen[str]) -> Served:
    said = ""
    assert started.stderr is not None
    for line in started.stderr:
        said += line
        if "metrics " in line:
            break
    found = re.search(r"serves (\S+)\n.*metrics +(\S+)/metrics", said, re.DOTALL)
    assert found is not None, said
    return Served(found[1], found[2])


def client() -> aiohttp.ClientSession:
    headers = {"authorization": f"Bearer {KEY}"}
    return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))


async def ask(session: aiohttp.ClientSession, served: Served, tokens: int, number: int = 0) -> int:
    """One completion; returns its status."""
    body = {
        "model": "demo-chat",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    headers = {"x-request-id": f"r{number}"}
    async with session.post(f"{served.url}/v1/chat/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def load(served: Served, traffic: Traffic) -> list[int]:
    """Send it all at its times; returns the statuses."""
    async with client() as session:
        loop = asyncio.get_running_loop()
        begun_s, tasks = loop.time(), []
        for i, at_s in enumerate(traffic.at_s):
            await asyncio.sleep(begun_s + at_s - loop.time())
            tasks.append(asyncio.create_task(ask(session, served, int(traffic.tokens[i]), i)))
        return await asyncio.gather(*tasks)


async def admin(served: Served, path: str, method: str = "GET") -> Any:
    """What the admin port answers: JSON, or text."""
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    timeout = aiohttp.ClientTimeout(total=300.0)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
        session.request(method, served.admin_url + path) as response,
    ):
        assert response.status == 200, await response.text()
        return await (response.json() if "json" in response.content_type else response.text())
