"""What `Placement` costs a scheduler of Dask: 2,000 tasks with it and without, in turns, in one process.

    python -m bench.dask [--profile]

Microseconds are of the thread of the scheduler (processor time), so other work on this machine changes them
little; `wall` is the time that the client waits. Workers are in the same process and thread as the scheduler,
and do the same work with the plugin and without. `--profile` shows where the plugin's time goes.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import distributed
from distributed import Client, Scheduler, SpecCluster, Worker

from bench.machine import machine
from trimtab.clusters.dask import Placement

RESULTS = Path(__file__).with_name("dask.json")
TASKS, WORKERS, THREADS, ROUNDS = 2_000, 4, 2, 3
POLICIES = ("least-connections", "least-expected-completion+sjf")


async def seconds(client: Any) -> tuple[float, float]:
    """Of a round: processor time of this thread, and of the clock."""
    begun = time.thread_time(), time.perf_counter()
    futures = client.map(abs, range(TASKS), pure=False)
    await client.gather(futures)
    return time.thread_time() - begun[0], time.perf_counter() - begun[1]


async def measured(policy: str, profile: cProfile.Profile | None) -> dict[str, float]:
    """One policy beside Dask alone, in turns."""
    options = {"nthreads": THREADS, "heartbeat_interval": "60s"}
    workers = {k: {"cls": Worker, "options": {**options, "name": k}} for k in range(WORKERS)}
    made = {"cls": Scheduler, "options": {"dashboard": False, "port": 0}}
    alone, placed = [], []
    async with (
        SpecCluster(scheduler=made, workers=workers, asynchronous=True, silence_logs=40) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        await seconds(client)
        for _ in range(ROUNDS):
            alone.append(await seconds(client))
            await client.register_plugin(Placement(policy))
            if profile is not None:
                profile.enable()
            placed.append(await seconds(client))
            if profile is not None:
                profile.disable()
            await client.unregister_scheduler_plugin("trimtab")
            await asyncio.sleep(0.6)  # until Dask has its tasks back
    pairs = list(zip(placed, alone, strict=True))
    return {
        "alone_us": 1e6 * statistics.median(cpu for cpu, _ in alone) / TASKS,
        "on_top_us": 1e6 * statistics.median(p[0] - a[0] for p, a in pairs) / TASKS,
        "cpu_ratio": statistics.median(p[0] / a[0] for p, a in pairs),
        "wall_ratio": statistics.median(p[1] / a[1] for p, a in pairs),
    }


def main() -> None:
    """Measure, print and save."""
    profile = cProfile.Profile(time.thread_time) if "--profile" in sys.argv else None
    found = {policy: asyncio.run(measured(policy, profile)) for policy in POLICIES}
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats("trimtab", 25)
        return
    told = {"machine": machine(), "distributed": distributed.__version__, "tasks": TASKS, "policies": found}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    json.dump(told, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
