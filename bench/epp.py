"""The endpoint picker behind the real Envoy: bench/epp.json and docs/benchmarks/epp.md. `python -m bench.epp`

Added latency and decisions a second, beside Envoy alone and beside a picker that decides nothing, in turns of
one run; and completion times on unequal nodes, beside Envoy's own least-request policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import yaml

from bench.epp_page import page
from bench.gateway.bodies import MODEL
from bench.gateway.load import Job
from bench.live.course import KEY, SPEED_NODES, Contestant, send, warm_up
from bench.live.traffic import segment
from bench.machine import machine
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from support.backends import end_process, launched
from support.envoy import HEADERS_ONLY, changed, free_port, program_path
from support.waiting import wait_until

RESULTS, PAGE = ROOT / "bench" / "epp.json", ROOT / "docs" / "benchmarks" / "epp.md"
ROUNDS: Final = 3
LATENCY_S, RATE_S = 4.0, 4.0  # seconds of each turn
CONNECTIONS: Final = 8
REQUESTS: Final = 400  # on unequal nodes
POLICY: Final = "least-expected-wait"
START_S: Final = 300.0
BODIES: Final[dict[str, str]] = {}  # as shipped: buffered
DIRECT: Final = "Envoy alone"
TENANTS: Final = [
    {"name": "bench", "sha256": sha256(KEY.encode()).hexdigest(), "weight": 2},
    {"name": "other", "sha256": sha256(b"other").hexdigest()},
]
HOW: Final = {"rounds": ROUNDS, "connections": CONNECTIONS, "requests": REQUESTS}
LIMITS: Final = {
    "requests_per_minute": 10_000_000,
    "tokens_per_minute": 10_000_000_000,
    "concurrency": 10_000,
}


@dataclass(frozen=True)
class Runner:
    """An Envoy, and its picker if it has one."""

    name: str
    port: int
    picker: psutil.Process | None


@contextlib.contextmanager
def process(folder: Path, log: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with (folder / log).open("wb") as said:
        started = subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=said, stdin=subprocess.DEVNULL,
            env={**os.environ, "TRIMTAB_STATE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    try:
        yield started
    finally:
        end_process(started, 30.0)


def picker(
    stack: contextlib.ExitStack, folder: Path, port: int, nodes: list[dict[str, Any]]
) -> psutil.Process:
    """`trimtab epp` with tenants, limits and recorder, once it is ready."""
    config = {
        "picker": {"listen": f"127.0.0.1:{port}"},
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": sha256(b"admin").hexdigest()}]},
        "keys": TENANTS,
        "limits": LIMITS,
        "policy": POLICY,
        "queue": {"max_requests": 10_000, "max_wait_s": 100.0},
        "record": {"folder": str(folder / "recording")},
        "nodes": nodes,
    }
    (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
    command = (sys.executable, "-m", "trimtab", "epp", "--config", "gateway.yaml")
    started = stack.enter_context(process(folder, "picker.log", *command))
    wait_until(lambda: _says(started, folder / "picker.log", "picks endpoints"), timeout_s=START_S)
    return psutil.Process(started.pid)


def envoy(
    stack: contextlib.ExitStack, folder: Path, picker_port: int | None, backends: list[int], **how: Any
) -> int:
    """Envoy as shipped, or without its picker; returns its port."""
    port = free_port()
    config = changed(port, picker_port or 1, backends, fails_open=picker_port is None, **how)
    if picker_port is None:
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"] = manager["http_filters"][-1:]
        pool = next(one for one in config["static_resources"]["clusters"] if one["name"] == "pool")
        override = pool["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
        pool["load_balancing_policy"] = override["fallback_policy"]
    (folder / "envoy.yaml").write_text(yaml.safe_dump(config))
    command = (program_path(), "-c", "envoy.yaml", "--base-id", str(port), "--concurrency", "1", "-l", "warn")
    stack.enter_context(process(folder, "envoy.log", *command))
    wait_until(lambda: _listens(port), timeout_s=30.0)
    return port


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def _says(started: subprocess.Popen[bytes], log: Path, what: str) -> bool:
    if started.poll() is not None:
        raise RuntimeError(f"it has ended: {log.read_text()}")
    return what in log.read_text()


class Load:
    """The load process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.gateway.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def run(self, job: Job) -> dict[str, Any]:
        """Do a job. Raises RuntimeError where a request failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        if result["errors"]:
            raise RuntimeError(f"{result['errors']} of {result['requests']} failed: {result['problem']}")
        return result

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def speed() -> list[dict[str, Any]]:
    """Latency and rate of each, in turns."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = subprocess.Popen(
            [sys.executable, "-m", "bench.gateway.backend", "4"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        stack.callback(backend.communicate)
        assert backend.stdout is not None
        ports: list[int] = json.loads(backend.stdout.readline())
        load = Load()
        stack.callback(load.close)
        runners = [Runner(DIRECT, envoy(stack, _sub(folder, "plain"), None, ports), None)]
        nodes = [
            {"name": f"n{k}", "url": f"http://127.0.0.1:{port}", "models": [MODEL], "capacity": 64}
            for k, port in enumerate(ports)
        ]
        for mode, how in (("headers", HEADERS_ONLY), ("bodies", BODIES)):
            for who in ("empty picker", "trimtab"):
                own, at = _sub(folder, f"{who} {mode}"), free_port()
                if who == "trimtab":
                    asked = picker(stack, own, at, nodes)
                else:
                    command = (sys.executable, "-m", "bench.epp_empty", str(at), f"127.0.0.1:{ports[0]}")
                    asked = psutil.Process(stack.enter_context(process(own, "picker.log", *command)).pid)
                runners.append(Runner(f"{who}, {mode}", envoy(stack, own, at, ports, mode=how), asked))
        for one in runners:
            wait_until(lambda one=one: _is_served(load, one), timeout_s=60.0)
        rounds = [[turn(load, one) for one in runners] for _ in range(ROUNDS)]
    return [
        {"name": one.name, **{key: statistics.median(r[k][key] for r in rounds) for key in rounds[0][k]}}
        for k, one in enumerate(runners)
    ]


def _sub(folder: Path, name: str) -> Path:
    own = folder / name.replace(" ", "-")
    own.mkdir()
    return own


def _is_served(load: Load, one: Runner) -> bool:
    try:
        load.run(Job("closed", one.port, KEY, connections=1, requests=200))
    except RuntimeError:
        return False
    return True


def turn(load: Load, one: Runner) -> dict[str, float]:
    """One turn: latency of one request at a time, then as many as come through, with what the picker uses."""
    slow = load.run(Job("closed", one.port, KEY, connections=1, seconds=LATENCY_S, timed=True))
    before_s = 0.0 if one.picker is None else sum(one.picker.cpu_times()[:2])
    fast = load.run(Job("closed", one.port, KEY, connections=CONNECTIONS, seconds=RATE_S))
    used_s = 0.0 if one.picker is None else sum(one.picker.cpu_times()[:2]) - before_s
    return {
        "p50_ms": 1e3 * slow["latency_p50_s"],
        "p99_ms": 1e3 * slow["latency_p99_s"],
        "per_s": fast["requests"] / fast["took_s"],
        "cpu_us": 1e6 * used_s / fast["requests"],
    }


def unequal() -> list[dict[str, Any]]:
    """The same requests at one time to Envoy alone and to Envoy with the picker, over nodes of their own."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = []
        for name in ("Envoy's least-request", f"trimtab {POLICY}"):
            own = _sub(folder, name)
            backends = stack.enter_context(launched(*(node.options for node in SPEED_NODES)))
            ports = [int(one.url.rpartition(":")[2]) for one in backends]
            at = None
            if name.startswith("trimtab"):
                at = free_port()
                nodes = [
                    {"name": one.name, "url": one.url, "models": list(one.models), **node.entry}
                    for node, one in zip(SPEED_NODES, backends, strict=True)
                ]
                picker(stack, own, at, nodes)
            port = envoy(stack, own, at, ports, filter_changes={"message_timeout": "100s"})
            contestants.append(Contestant(name, f"http://127.0.0.1:{port}", own))
        asyncio.run(_compared(contestants))
        return [
            {"name": one.policy, "mean_s": float(seconds.mean()), "p99_s": float(np.percentile(seconds, 99))}
            for one in contestants
            for seconds in one.completion_s
        ]


async def _compared(contestants: list[Contestant]) -> None:
    await warm_up(contestants)
    await send(segment(0, REQUESTS), contestants)


def main() -> None:
    """Measure, or only write the page."""
    parser = page_parser("bench.epp", __doc__)
    parser.add_argument("--only", choices=("speed", "unequal"), help="measure this part anew, keep the other")
    given = parser.parse_args()
    parts = {"speed": speed, "unequal": unequal}
    for part in [] if given.docs else [given.only] if given.only else parts:
        before = machine()
        figures = {
            "rows": parts[part](),
            "machine": before,
            "load_average_after": round(os.getloadavg()[0], 2),
        }
        save_figures(RESULTS, {**(saved_figures(RESULTS) if RESULTS.exists() else {}), **HOW, part: figures})
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
