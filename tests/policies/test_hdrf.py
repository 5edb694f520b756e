"""Hierarchical dominant-resource fairness: one level is drf; two as the algorithm written plainly."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, starts
from support.queue_trees import with_queues
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.queue_tree import Queue
from trimtab.domain.requests import Requests
from trimtab.engine.simulator import run as simulated
from trimtab.policies import find

NAMES = "abcd"
FLAT = [
    Queue(name, weight, tenants=(name,)) for name, weight in zip(NAMES, (1.0, 2.0, 1.0, 3.0), strict=True)
]
DEEP = [
    Queue("m", 2.0, children=(Queue("x", 1.0, tenants=("a",)), Queue("y", 3.0, tenants=("b",)))),
    Queue("n", 1.0, children=(Queue("z", 1.0, tenants=("c",)), Queue("w", 1.0, tenants=("d",)))),
]
SOME: dict[str, Any] = {"resource_names": ("cpu_cores", "ram_gib")}


def machine(n_nodes: int = 1, **fields: Any) -> Cluster:
    """Nodes of 8 cores and 16 GiB; classes need both in several proportions, and a second a unit."""
    c = cluster(n_nodes, slots=100, classes=3, queue_max=0, **fields)
    demand = np.array([[1.0, 4.0], [3.0, 1.0], [2.0, 2.0]])
    return replace(
        c, unit_s=np.ones_like(c.unit_s), capacity=np.tile([8.0, 16.0], (n_nodes, 1)), demand=demand, **SOME
    )


def backlog(c: Cluster, seed: int, n: int = 70) -> Requests:
    """More than the machines can take: tenants bring all classes, or each mostly one."""
    rng = np.random.default_rng(seed)
    tenant = rng.integers(0, 4, n)
    class_idx = np.where(rng.random(n) < 0.5 * (seed % 2), tenant % 3, rng.integers(0, 3, n))
    rate = 1.5 * c.n_nodes
    r = asked(
        c,
        np.cumsum(rng.exponential(1 / rate, n)).tolist(),
        rng.uniform(1, 9, n),
        tenant_idx=tenant,
        class_idx=class_idx,
    )
    return replace(r, tenant_names=tuple(NAMES), tenant_weight=np.array([1.0, 2.0, 1.0, 3.0]))


def started(c: Cluster, r: Requests, spec: str, options: Options) -> list[float]:
    driver = simulated(c, r, options, find(spec), mode="interpreted")
    return starts(driver)


@pytest.mark.parametrize("policy", ["best-fit", "late-binding", "least-connections", "sufferage"])
@pytest.mark.parametrize("seed", range(2))
def test_one_level_of_queues_is_drf_decision_for_decision(policy: str, seed: int) -> None:
    c = machine(2) if seed else replace(machine(2), queue_max=np.full(2, 3))
    r = backlog(c, seed)
    with_tree = with_queues(c, r, FLAT)
    as_drf = started(c, r, f"{policy}+drf", Options())
    assert started(c, r, f"{policy}+hdrf", with_tree) == as_drf
    assert started(c, r, f"{policy}+fcfs", Options()) != as_drf


def test_without_queues_it_is_drf() -> None:
    c = machine()
    r = backlog(c, 1)
    assert started(c, r, "best-fit+hdrf", Options()) == started(c, r, "best-fit+drf", Options())


def by_the_algorithm(c: Cluster, r: Requests) -> list[float]:
    """Starts: what arrives starts if it fits; at each end the next down the tree, while it fits."""
    total, work, n = c.capacity.sum(axis=0), r.work, len(r)
    demand, tenant = c.demand[work["class_idx"]], work["tenant_idx"]
    start_s, runs = np.full(n, np.nan), np.zeros(n, np.bool_)
    events = [(at_s, 1, i) for i, at_s in enumerate(work["arrival_s"].tolist())]
    waiting: list[int] = []

    def begins(i: int, now_s: float) -> bool:
        if (demand[runs].sum(axis=0) + demand[i] > total).any():
            return False
        start_s[i], runs[i] = now_s, True
        heapq.heappush(events, (now_s + r.truth["units"][i], 0, i))
        return True

    def firsts(queue: Queue) -> list[int]:
        if queue.children:
            return [i for child in queue.children for i in firsts(child)]
        own = [i for i in waiting if NAMES[tenant[i]] in queue.tenants]
        return [min(own)] if own else []

    def vector(queue: Queue) -> np.ndarray:
        if not queue.children:
            return demand[runs & (tenant == NAMES.index(queue.tenants[0]))].sum(axis=0)
        each = [(vector(child), bool(firsts(child)), child.weight) for child in queue.children]
        shares = [(v / total).max() / weight for v, is_open, weight in each if is_open]
        least = min(shares, default=np.inf)
        held = np.zeros(len(total))
        for v, is_open, weight in each:
            share = (v / total).max() / weight
            held += v * (least / share if is_open and share > least else 1.0)
        return held

    def next_of(queues: tuple[Queue, ...]) -> int:
        share: Callable[[Queue], float] = lambda q: float((vector(q) / total).max() / q.weight)  # noqa: E731
        best = min((q for q in queues if firsts(q)), key=lambda q: (share(q), min(firsts(q))))
        return next_of(best.children) if best.children else firsts(best)[0]

    while events:
        now_s, is_arrival, i = heapq.heappop(events)
        if is_arrival:
            if not begins(i, now_s):
                waiting.append(i)
            continue
        runs[i] = False
        while waiting:
            i = next_of(tuple(DEEP))
            if not begins(i, now_s):
                break
            waiting.remove(i)
    return start_s.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_two_levels_are_served_as_by_the_algorithm(seed: int) -> None:
    c = machine()
    r = backlog(c, seed)
    expected = by_the_algorithm(c, r)
    assert (np.array(expected) > r.work["arrival_s"]).sum() > 20
    np.testing.assert_allclose(started(c, r, "best-fit+hdrf", with_queues(c, r, DEEP)), expected, atol=1e-9)


def test_a_department_keeps_what_one_of_its_teams_leaves_idle() -> None:
    """12 slots, all wanted: m and n get 6 each; m's x is idle, so y has all 6. Flat: 4 each."""
    c = cluster(12, queue_max=0)
    queues = [
        Queue("m", children=(Queue("x", tenants=("a",)), Queue("y", tenants=("b",)))),
        Queue("n", children=(Queue("z", tenants=("c",)), Queue("w", tenants=("d",)))),
    ]
    tenant = [0] * 12 + [1] * 40 + [2] * 40 + [3] * 40
    units = [1.0 + 0.001 * k for k in range(12)] + [50.0] * 120
    r = asked(c, [0.0] * 12 + [0.5] * 120, units, tenant_idx=tenant)
    r = replace(r, tenant_names=tuple(NAMES))
    at_2s = np.array(started(c, r, "best-fit+hdrf", with_queues(c, r, queues))) <= 2.0
    assert np.bincount(r.work["tenant_idx"][at_2s]).tolist() == [12, 6, 3, 3]
    at_2s = np.array(started(c, r, "best-fit+drf", Options())) <= 2.0
    assert np.bincount(r.work["tenant_idx"][at_2s]).tolist() == [12, 4, 4, 4]
