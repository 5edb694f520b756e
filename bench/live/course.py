"""Gateways with one policy each, over backends of their own, and the same requests to all at one time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import numpy as np
import yaml

from bench.live.traffic import FIXED_S, NODES, SPEEDS, UNIT_S, Asked, Floats, Traffic
from support.backends import BackendProcess, Options, end_process, launched
from support.backends.answers import FACTOR

KEY: Final = "sk-live-0123456789abcdef"
START_S: Final = 300.0  # with no cache at hand all kernels are compiled first
END_S: Final = 30.0
PATIENCE_S: Final = 600.0
MEGAPIXELS: Final = 1.048576  # of 1024 × 1024
WARM_REQUESTS: Final = 8 * len(NODES)  # before the first segment
WARM_GAP_S: Final = 0.15
SIZES: Final = (Asked(1, 30), Asked(4, 30))  # of these
READY: Final = re.compile(r"^  metrics +(\S+)/metrics$", re.MULTILINE)


@dataclass
class Contestant:
    """A gateway that serves; its recording lies in its folder."""

    policy: str
    url: str
    folder: Path
    completion_s: list[Floats] = field(default_factory=list)  # of each segment


@dataclass(frozen=True)
class NodeSetup:
    """A backend of the bench: what it is told, and its entry in gateway.yaml, where {url} is its own."""

    options: Options
    entry: Mapping[str, Any]


SPEED_NODES: Final = tuple(
    NodeSetup(
        Options(
            kind="image",
            name=f"{kind}-{k}",
            slots=1,
            base_s=FIXED_S,
            step_s=UNIT_S / MEGAPIXELS,
            speed=SPEEDS[kind],
        ),
        {"type": kind, "capacity": 1},
    )
    for k, kind in enumerate(NODES)
)


@contextlib.contextmanager
def gateways(
    policies: Sequence[str],
    folder: Path,
    nodes: Sequence[NodeSetup] = SPEED_NODES,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[list[Contestant]]:
    """One per policy, over nodes of its own; all end with the block. `settings`: more of gateway.yaml."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, policy in enumerate(policies):
            backends = stack.enter_context(launched(*(node.options for node in nodes)))
            own = folder / f"{number}"
            own.mkdir()
            entries = [_entry(node, backend) for node, backend in zip(nodes, backends, strict=True)]
            started.append(_start(stack, own, {"policy": policy, "nodes": entries, **settings}))
        yield [_ready(policy, process, own) for policy, (process, own) in zip(policies, started, strict=True)]


def _entry(node: NodeSetup, backend: BackendProcess) -> dict[str, Any]:
    entry = {"name": backend.name, "url": "{url}", "models": list(backend.models), **node.entry}
    return {
        key: value.format(url=backend.url) if isinstance(value, str) else value
        for key, value in entry.items()
    }


def _start(
    stack: contextlib.ExitStack, folder: Path, settings: Mapping[str, Any]
) -> tuple[subprocess.Popen[bytes], Path]:
    config = {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": sha256(b"admin").hexdigest()}]},
        "keys": [{"name": "bench", "sha256": sha256(KEY.encode()).hexdigest()}],
        "queue": {"max_requests": 10_000, "max_wait_s": PATIENCE_S},
        "record": {"folder": str(folder / "recording")},
        **settings,
    }
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab", "serve", "gateway.yaml"],
            cwd=folder,
            env={**os.environ, "TRIMTAB_STATE_DIR": str(folder / "state")},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    stack.callback(end_process, process, END_S)
    return process, folder


def _ready(policy: str, process: subprocess.Popen[bytes], folder: Path) -> Contestant:
    deadline_s = time.monotonic() + START_S
    while READY.search(said := (folder / "said").read_text(encoding="utf-8")) is None:
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the gateway with {policy} does not serve: {said}")
        time.sleep(0.1)
    url = re.search(r"^trimtab serves (\S+)", said, re.MULTILINE)
    assert url is not None
    return Contestant(policy, url[1], folder)


async def warm_up(contestants: Sequence[Contestant]) -> None:
    """Some requests to all nodes, so that estimates are learned."""
    async with _client() as session:
        await asyncio.gather(*(_warm_up(session, one) for one in contestants))


async def _warm_up(session: aiohttp.ClientSession, one: Contestant) -> None:
    tasks = []
    for number in range(WARM_REQUESTS):
        tasks.append(asyncio.create_task(_ask(session, one.url, SIZES[number % 2])))
        await asyncio.sleep(WARM_GAP_S)
    await asyncio.gather(*tasks)


async def send(of: Traffic, contestants: Sequence[Contestant]) -> None:
    """The segment's requests to all, at its times; completion counts from when a request was due."""
    async with _client() as session:
        took_s = await asyncio.gather(*(_send(session, of, one.url) for one in contestants))
    for one, completion_s in zip(contestants, took_s, strict=True):
        one.completion_s.append(completion_s)


async def _send(session: aiohttp.ClientSession, of: Traffic, url: str) -> Floats:
    loop = asyncio.get_running_loop()
    begun_s, tasks = loop.time(), []
    for at_s, asked in zip(of.arrival_s.tolist(), of.asked, strict=True):
        await asyncio.sleep(begun_s + at_s - loop.time())
        tasks.append(loop.create_task(_ask(session, url, asked, due_s=begun_s + at_s)))
    return np.array(await asyncio.gather(*tasks))


async def _ask(session: aiohttp.ClientSession, url: str, asked: Asked, due_s: float = 0.0) -> float:
    """Seconds since it was due, or since now."""
    clock = asyncio.get_running_loop().time
    due_s = due_s or clock()
    body = BytesIO(_body(asked.images, asked.steps, asked.extra_bytes))
    headers = {
        "Authorization": f"Bearer {KEY}",
        FACTOR: repr(asked.factor),
        "Content-Type": "application/json",
    }
    async with session.post(f"{url}/v1/images/generations", data=body, headers=headers) as answer:
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {(await answer.text())[:200]}")
        return clock() - due_s


@functools.cache
def _body(images: int, steps: int, extra_bytes: int) -> bytes:
    body: dict[str, Any] = {"model": "demo-image", "prompt": "a ship", "size": "1024x1024"}
    body |= {"n": images, "steps": steps}
    if extra_bytes:
        body["image"] = "x" * extra_bytes
    return json.dumps(body).encode()


def _client() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
