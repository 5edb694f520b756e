"""How soon a fault is noticed: seconds until the attempt that it hit has ended, and begins elsewhere.

    python -m bench.chain_faults

- killed: a worker gets SIGKILL.
- cut: a worker process, or all processes of a Ray node, stand still as behind a cut link.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.ray_machines import FAR, POOLS, two_machines
from support.stage_backends import Bench, codes
from trimtab.clusters.processes import Processes
from trimtab.clusters.ray.ray_backend import Ray
from trimtab.live.stage_backend import Cause, StageNode

RESULTS = Path(__file__).with_name("chain-faults.json")
ROUNDS = 5
LIMIT_S = {"killed": 3.0, "cut": 10.0}

Fault = Callable[[int], Callable[[], None]]  # of a worker's process: what ends the fault again


def main() -> None:
    """Measure, print and save."""
    with two_machines() as machines:
        noticed_s = {
            "processes": {
                "killed": noticed(lambda: Processes([StageNode("one")]), 0, killed),
                "cut": noticed(lambda: Processes([StageNode("one")]), 0, stopped),
            },
            "ray": {
                "killed": noticed(lambda: Ray(POOLS), FAR, killed),
                "cut": noticed(lambda: Ray(POOLS), FAR, lambda _: machines.freeze_far()),
            },
        }
    found = {
        "limit_s": LIMIT_S,
        "noticed_s": {
            name: {
                fault: {"median": statistics.median(times), "most": max(times)}
                for fault, times in faults.items()
            }
            for name, faults in noticed_s.items()
        },
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout, indent=1)
    print()


def killed(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGKILL)
    return lambda: None


def stopped(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def noticed(make: Callable[[], Any], node: int, fault: Fault) -> list[float]:
    """Seconds until the attempt that runs on a node has ended, of each round."""

    async def measured() -> float:
        backend = make()
        bench = Bench(backend)
        await backend.open(codes(), bench.changes.append)
        try:
            running = asyncio.ensure_future(bench.start("sleep", node, seconds=60.0))
            await asyncio.sleep(1.5)
            begun_s = time.perf_counter()
            end = fault(backend.pids[node])
            try:
                outcome = await running
                took_s = time.perf_counter() - begun_s
            finally:
                end()
            assert outcome.error is not None, "the attempt went on"
            assert outcome.error.cause is Cause.WORKER_LOST, outcome.error
            await asyncio.sleep(2.0)  # a machine that was cut off is back
            return round(took_s, 3)
        finally:
            await backend.close()

    return [asyncio.run(measured()) for _ in range(ROUNDS)]


if __name__ == "__main__":
    main()
