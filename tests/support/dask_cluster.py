"""A scheduler of Dask in this process, with workers in it; and tasks that tell where and when they ran."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from distributed import Client, Scheduler, SpecCluster, Worker, get_worker


class Ran(NamedTuple):
    """A task that ran."""

    worker: str
    begun_s: float
    ended_s: float


def sleeping(_: Any, wait_s: float = 0.02) -> Ran:
    begun_s = time.monotonic()
    time.sleep(wait_s)
    return Ran(get_worker().name, begun_s, time.monotonic())


def worker(threads: int = 1, **resources: float) -> dict[str, Any]:
    return {
        "cls": Worker,
        "options": {"nthreads": threads, "resources": resources, "heartbeat_interval": "100ms"},
    }


@asynccontextmanager
async def dask(workers: Mapping[str, dict[str, Any]]) -> AsyncIterator[tuple[SpecCluster, Client]]:
    """Workers by name. The scheduler checks its state after each transition."""
    named = {name: {**made, "options": {**made["options"], "name": name}} for name, made in workers.items()}
    made = {
        "cls": Scheduler,
        "options": {"dashboard": False, "dashboard_address": ":0", "port": 0, "validate": True},
    }
    async with (
        SpecCluster(scheduler=made, workers=named, asynchronous=True, silence_logs=40) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        yield cluster, client


async def add(cluster: SpecCluster, name: str, made: dict[str, Any]) -> Any:
    """A worker more, which the cluster does not know of."""
    return await made["cls"](cluster.scheduler_address, name=name, **made["options"])


def most_at_once(runs: Iterable[tuple[Ran, float]]) -> dict[str, float]:
    """By worker, the most that tasks took at any time, of (when and where one ran, what it took)."""
    changes: dict[str, list[tuple[float, float]]] = {}
    for ran, amount in runs:
        changes.setdefault(ran.worker, []).extend([(ran.begun_s, amount), (ran.ended_s, -amount)])
    most: dict[str, float] = {}
    for name, of_worker in changes.items():
        held = most[name] = 0.0
        for _, amount in sorted(of_worker):
            held += amount
            most[name] = max(most[name], held)
    return most
