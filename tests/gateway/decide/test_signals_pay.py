"""Unequal, partly busy nodes in virtual time: policies that read reports against least connections.

A node's service is slowed by work of others that it reports, by its distance, or by the link to it; what
others do changes every while. Arrivals and changes are the same for both policies of a pair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest
from scipy.stats import t as student

from support.gateway.dispatch_bench import Asked, Bench, on_bench
from support.gateway.machines import CORES, LOADS, SERVICE_S, Machines
from trimtab.gateway.decide.dispatch_rules import Declared

MIB = 1 << 20
NODES, SLOTS, REQUESTS, SEEDS = 4, 4, 240, 6
LOAD: Final = 0.35  # of what the nodes could serve if others left them alone


def mean_s(policy: str, seed: int, scene: Mapping[str, Any]) -> float:
    """Mean completion under a policy, without the first requests."""
    found: list[float] = []

    async def test(bench: Bench) -> None:
        arrivals = np.random.default_rng(seed)
        machines = Machines(bench, np.random.default_rng(1000 + seed), scene.get("link", [1e6] * NODES))
        machines.rtt_s = np.array(scene.get("rtt_s", [0.0] * NODES))
        tasks = [asyncio.ensure_future(machines.reports())]
        machines.busy[:] = scene.get("busy", 0.0)
        if scene.get("others"):
            tasks.append(asyncio.ensure_future(machines.others()))
        gap_s, requests = SERVICE_S / (NODES * SLOTS * LOAD), []
        for k in range(REQUESTS):
            await asyncio.sleep(arrivals.exponential(gap_s))
            asked = Asked(body_bytes=int(arrivals.exponential(scene.get("body", 0.0))))
            asked.priority = k  # only to name its factor: no order reads it
            requests.append(asyncio.ensure_future(machines.serve(asked)))
        await asyncio.gather(*requests)
        for task in tasks:
            task.cancel()
        found.append(float(np.mean(machines.completion_s[REQUESTS // 5 :])))

    nodes = [{"max_requests": SLOTS, **entry} for entry in scene["nodes"]]
    on_bench(test, policy, *nodes, declared=scene.get("declared", Declared()))
    return found[0]


CPU: Final = {"resources": {"cpu_cores": CORES}}
NEAR_FAR: Final = [{"zone": "near" if k % 2 else "far"} for k in range(NODES)]
SCENES: Final[Mapping[str, Mapping[str, Any]]] = {
    "load-aware": {
        "nodes": [CPU] * NODES,
        "others": True,
    },
    "locality": {
        "nodes": NEAR_FAR,
        "rtt_s": [0.0 if k % 2 else 1.5 for k in range(NODES)],
        "declared": Declared(zone="near", rtt_s={("near", "far"): 1.5}),
    },
    "congestion-aware": {
        "nodes": [{"nic_gib_per_s": gib_per_s} for gib_per_s in (0.02, 0.1, 0.02, 0.1)],
        "link": (0.02, 0.1, 0.02, 0.1),
        "body": 40.0 * MIB,
    },
    "predictive": {  # its estimates are learned from what is served, for each node by itself
        "nodes": [{"type_name": f"t{k}"} for k in range(NODES)],
        "busy": LOADS,
    },
}


@pytest.mark.parametrize("policy", SCENES)
def test_a_policy_that_reads_the_signal_is_faster_than_least_connections(policy: str) -> None:
    ratios = [
        mean_s(policy, seed, SCENES[policy]) / mean_s("least-connections", seed, SCENES[policy])
        for seed in range(SEEDS)
    ]
    half = student.ppf(0.975, SEEDS - 1) * np.std(ratios, ddof=1) / np.sqrt(SEEDS)
    assert np.mean(ratios) + half < 0.97, ratios
