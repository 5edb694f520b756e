"""A gateway as a process, recorded under load over real demo backends; its recording replayed."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

from conftest import process
from trimtab.experiments.replay import replay
from trimtab.runtime.gateway.config import digest_of
from trimtab.runtime.gateway.demo import DemoProcess, Options, launched

SPEEDS, SLOTS = (1.0, 2.0, 3.0), 2
BASE_S, TOKEN_S, MEAN_TOKENS = 0.03, 0.015, 16
KEY = "a key of this test"


@dataclass(frozen=True)
class Traffic:
    """When requests come, and how many tokens they ask for."""

    at_s: np.ndarray
    tokens: np.ndarray


def poisson(n: int, load: float, seed: int) -> Traffic:
    rng = np.random.default_rng(seed)
    rate_per_s = load * SLOTS * sum(SPEEDS) / (BASE_S + TOKEN_S * MEAN_TOKENS)
    return Traffic(
        np.cumsum(rng.exponential(1.0 / rate_per_s, n)), 1 + rng.poisson(rng.exponential(MEAN_TOKENS - 1, n))
    )


def backends(sigma: float = 0.3) -> list[Options]:
    served = {"slots": SLOTS, "base_s": BASE_S, "output_s": TOKEN_S, "prefill_s": 0.0, "sigma": sigma}
    return [Options(name=f"b{k}", speed=speed, seed=k, **served) for k, speed in enumerate(SPEEDS)]  # type: ignore[arg-type]


def configuration(started: Sequence[DemoProcess], **more: Any) -> dict[str, Any]:
    nodes = [{"name": b.name, "url": b.url, "models": list(b.models), "capacity": SLOTS} for b in started]
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0"},
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
    link: str


@contextlib.contextmanager
def serving(folder: Path, config: dict[str, Any]) -> Iterator[Served]:
    """`trimtab serve` with this configuration; ended by SIGTERM, with exit code 0."""
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "trimtab", "serve", "gateway.yaml"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        said = ""
        for line in started.stderr:
            said += line
            if "metrics " in line:
                break
        found = re.search(r"serves (\S+)\n.*dashboard +(\S+)/login\?token=(\S+)", said, re.DOTALL)
        try:
            assert found is not None, said
            yield Served(found[1], found[2], found[3])
        finally:
            started.send_signal(signal.SIGTERM)
            rest = started.stderr.read()
    assert started.returncode == 0, rest


async def load(served: Served, traffic: Traffic) -> list[int]:
    """Send it all at its times; returns the statuses."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()

        async def one(i: int) -> int:
            body = {
                "model": "demo-chat",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": int(traffic.tokens[i]),
                "ignore_eos": True,
            }
            async with session.post(f"{served.url}/v1/chat/completions", json=body) as response:
                await response.read()
                return response.status

        tasks = []
        for i, at_s in enumerate(traffic.at_s):
            await asyncio.sleep(begun_s + at_s - loop.time())
            tasks.append(asyncio.create_task(one(i)))
        return await asyncio.gather(*tasks)


def test_a_recording_of_live_traffic_replays(tmp_path: Path) -> None:
    traffic = poisson(700, load=0.75, seed=3)
    with launched(*backends()) as started, serving(tmp_path, configuration(started)) as served:
        statuses = asyncio.run(load(served, traffic))
    assert statuses == [200] * 700
    done = replay(tmp_path / "recording")
    (only,) = done.policies
    assert (done.requests, done.rows_dropped) == (700, 0)
    assert abs(only.error_frac.mean_s) <= 0.05
    assert abs(only.error_frac.p99_s) <= 0.10
    print(json.dumps(done.to_dict(), indent=1))
    compared = process("compare", "--trace", "recording", "--json", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
