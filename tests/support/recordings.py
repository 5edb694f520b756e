"""Simulated runs written down by the gateway's own recorder: recordings whose service model is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests, Status
from trimtab.engine import simulator
from trimtab.engine.driver import Driver
from trimtab.gateway.model import (
    Attempt,
    Cause,
    Endpoint,
    Exchange,
    Facts,
    Kind,
    Node,
    Outcome,
    Refusal,
)
from trimtab.gateway.record.recorded_rows import Snapshot
from trimtab.gateway.record.recorder import Recorder, RecordSettings
from trimtab.policies import find
from trimtab.traces.gateway_format import ClassRow

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT, replayable=True)
BUSY = Refusal(503, "queue_full", "the queue is full")
OUTCOMES = {
    Status.FINISHED: Outcome.DONE,
    Status.REJECTED: Outcome.REFUSED,
    Status.CANCELLED: Outcome.CANCELLED,
    Status.LOST: Outcome.FAILED,
}


def simulated(
    folder: Path,
    cluster: Cluster,
    requests: Requests,
    policy: str,
    options: Options | None = None,
    *,
    seed: int = 0,
    node_events: Sequence[tuple[float, int, str]] = (),
    ticks_per_s: float = 1e12,
    **settings: Any,
) -> Driver:
    """Simulate and record. A node event is a time, a node and a word. Times are almost exact by default."""
    options = options or Options()
    driver = simulator.run(cluster, requests, options, find(policy), seed=seed, mode="interpreted")
    settings |= {"seed": seed, "node_events": node_events, "ticks_per_s": ticks_per_s}
    asyncio.run(record(folder, cluster, driver, policy, **settings))
    return driver


def nodes_of(cluster: Cluster) -> list[Node]:
    """The cluster's nodes as the gateway knows them."""
    return [
        Node(
            name, f"http://{name}", j, name, 80, False, (), int(cluster.slots[j]),
            type_name=cluster.type_names[cluster.type_idx[j]],
        )
        for j, name in enumerate(cluster.node_names)
    ]  # fmt: skip


def classes_of(cluster: Cluster) -> list[ClassRow]:
    """Its service tables as estimates."""
    return [
        {
            "name": name,
            "unit": "unit",
            "fixed_s": _by_type(cluster, cluster.fixed_s[c]),
            "unit_s": _by_type(cluster, cluster.unit_s[c]),
            "served_by": None,
        }
        for c, name in enumerate(cluster.class_names)
    ]


def _by_type(cluster: Cluster, row: Any) -> dict[str, float]:
    return {name: float(s) for name, s in zip(cluster.type_names, row, strict=True) if np.isfinite(s)}


async def record(
    folder: Path,
    cluster: Cluster,
    driver: Driver,
    policy: str,
    *,
    seed: int = 0,
    node_events: Sequence[tuple[float, int, str]] = (),
    ticks_per_s: float,
    **settings: Any,
) -> None:
    """Write down what a run, simulated or live, has left in its state."""
    options = {"max_retries": driver.options.max_retries}
    snapshot = Snapshot(policy, nodes_of(cluster), classes_of(cluster), seed, options=options)
    now_s = [0.0]
    recorder = Recorder(
        RecordSettings(folder, **{"max_rows": 10**6, **settings}),
        lambda: snapshot,
        lambda: now_s[0],
        ticks_per_s=ticks_per_s,
    )
    await recorder.open()
    exchanges = [exchange_of(driver, r, snapshot.nodes) for r in range(len(driver.state.requests))]
    for ended_s, x in sorted(exchanges, key=lambda pair: pair[0]):
        now_s[0] = x.ended_s = ended_s
        recorder.ended([x])
    for now_s[0], node_idx, what in node_events:
        recorder.node_event(snapshot.nodes[node_idx], what)
    await recorder.close()


def exchange_of(driver: Driver, r: int, nodes: Sequence[Node]) -> tuple[float, Exchange]:
    """(when it ended, what the gateway would have known of request r)."""
    row, work = driver.state.requests[r], driver.state.work[r]
    x = Exchange()
    x.endpoint, x.facts, x.class_idx = CHAT, Facts("m"), int(work["class_idx"])
    x.arrived_s, x.units, x.priority = float(work["arrival_s"]), float(work["units"]), int(work["priority"])
    x.deadline_s, x.outcome = float(work["deadline_s"]), OUTCOMES[Status(row["status"])]
    ended_s = float(row["finish_s"] if row["status"] == Status.FINISHED else row["ended_s"])
    x.refusal = BUSY if x.outcome is Outcome.REFUSED else None
    if row["node_idx"] >= 0 and not np.isnan(row["start_s"]) and x.outcome is not Outcome.REFUSED:
        x.started_s = float(row["start_s"])
        cause = Cause.RESET if x.outcome is Outcome.FAILED else None
        x.attempts = [Attempt(nodes[row["node_idx"]], x.started_s, ended_s=ended_s, cause=cause)]
    return ended_s, x
