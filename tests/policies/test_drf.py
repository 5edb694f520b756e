"""Dominant-resource fairness: shares in use, given back on release, by weight; against algorithm 1 itself."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, run
from support.by_hand import asked
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.policies import find

A, B, ALL = range(3)  # classes, and tenants


def machine(capacity: list[float], demand: list[list[float]]) -> Cluster:
    """One node with these resources; class k takes demand[k], and a second a unit."""
    c = cluster(1, slots=100, classes=len(demand), queue_max=0)
    names = ("cpu_cores", "ram_gib")[: len(capacity)]
    return replace(
        c,
        unit_s=np.ones_like(c.unit_s),
        resource_names=names,
        capacity=np.array([capacity]),
        demand=np.array(demand),
    )


def of_tenants(
    c: Cluster, arrival_s: list[float], tenants: list[int], units: object, weight: list[float] | None = None
) -> Requests:
    """Requests of class k belong to tenant k."""
    r = asked(c, arrival_s, units, class_idx=tenants, tenant_idx=tenants)
    names = tuple(f"tenant{k}" for k in range(len(c.class_names)))
    return Requests(r.work, r.truth, names, tenant_weight=None if weight is None else np.array(weight))


def started(c: Cluster, r: Requests, spec: str = "best-fit+drf") -> np.ndarray:
    return run(c, r, Options(), *find(spec)).requests["start_s"]


@pytest.mark.parametrize(
    ("weight", "expected"), [(None, (3, 2)), ([1.0, 1.0, 1.0], (3, 2)), ([3.0, 1.0, 1.0], (4, 1))]
)
def test_the_published_example(weight: list[float] | None, expected: tuple[int, int]) -> None:
    """9 cores and 18 GiB; A needs 1 and 4, B 3 and 1. 3 of A and 2 of B: 2/3 of each dominant share.

    With weights 3 : 1 by hand: B's 1/3 equals A's 4/3, so after one of B's, A has 4 (16 of 18 GiB); what is
    left, 2 GiB, holds no more of A's, and 2 cores hold none of B's.
    """
    c = machine([9.0, 18.0], [[1.0, 4.0], [3.0, 1.0], [9.0, 18.0]])
    arrival_s = [0.0, *np.linspace(0.1, 0.5, 12)]
    r = of_tenants(c, arrival_s, [ALL, *[A] * 6, *[B] * 6], [1.0, *[100.0] * 12], weight)
    at_one = started(c, r) == 1.0
    assert (at_one[1:7].sum(), at_one[7:].sum()) == expected


def running(r: Requests, start_s: np.ndarray, t: int, now_s: float) -> int:
    mine = r.work["tenant_idx"] == t
    end_s = start_s + r.truth["units"]
    return int((mine & (start_s <= now_s) & (end_s > now_s)).sum())


@pytest.mark.parametrize(("weight", "expected"), [(None, (5, 5)), ([4.0, 1.0], (8, 2))])
def test_long_requests_hold_no_more_than_their_share(
    weight: list[float] | None, expected: tuple[int, int]
) -> None:
    """10 cores, A's take 10 s, B's 100 s, both backlogged: from 10 s on each holds 5, or 8 and 2 by weight.

    A comes first and takes all; as its ten end at 10 s, they go where shares are least.
    """
    c = machine([10.0], [[1.0], [1.0]])
    tenants = [A] * 200 + [B] * 60
    r = of_tenants(c, [*[0.0] * 200, *[0.5] * 60], tenants, [10.0] * 200 + [100.0] * 60, weight)
    start_s = started(c, r)
    assert (running(r, start_s, A, 5.0), running(r, start_s, B, 5.0)) == (10, 0)
    for now_s in (10.5, 15.0, 25.0, 35.0, 75.0, 109.0, 115.0, 150.0):
        assert (running(r, start_s, A, now_s), running(r, start_s, B, now_s)) == expected, now_s


def test_fair_queueing_over_time_differs_there() -> None:
    c = machine([10.0], [[1.0], [1.0]])
    tenants = [A] * 200 + [B] * 60
    r = of_tenants(c, [*[0.0] * 200, *[0.5] * 60], tenants, [10.0] * 200 + [100.0] * 60)
    start_s = started(c, r, "best-fit+drfq")
    assert (running(r, start_s, A, 25.0), running(r, start_s, B, 25.0)) != (5, 5)


def by_algorithm_1(c: Cluster, r: Requests) -> np.ndarray:
    """Starts: what arrives starts if it fits; at each end the least share's next one, while it fits."""
    total, work, n = c.capacity.sum(axis=0), r.work, len(r)
    demand, tenant = c.demand[work["class_idx"]], work["tenant_idx"]
    weight = np.ones(len(c.class_names)) if r.tenant_weight is None else r.tenant_weight
    start_s, runs = np.full(n, np.nan), np.zeros(n, np.bool_)
    events = [(at_s, 1, i) for i, at_s in enumerate(work["arrival_s"].tolist())]
    waiting: list[int] = []

    def starts(i: int, now_s: float) -> bool:
        if (demand[runs].sum(axis=0) + demand[i] > total).any():
            return False
        start_s[i], runs[i] = now_s, True
        heapq.heappush(events, (now_s + r.truth["units"][i], 0, i))
        return True

    def dominant_share(i: int) -> float:
        held = demand[runs & (tenant == tenant[i])].sum(axis=0)
        return float((held / total).max() / weight[tenant[i]])

    while events:
        now_s, is_arrival, i = heapq.heappop(events)
        if is_arrival:
            if not starts(i, now_s):
                waiting.append(i)
            continue
        runs[i] = False
        while waiting:
            i = min(waiting, key=lambda k: (dominant_share(k), k))
            if not starts(i, now_s):
                break
            waiting.remove(i)
    return start_s


@pytest.mark.parametrize("seed", range(4))
def test_random_backlogs_are_served_as_by_algorithm_1(seed: int) -> None:
    """Three tenants and classes, more than the machine can take; tenants bring all classes; some weights."""
    rng, n = np.random.default_rng(seed), 60
    c = machine([8.0, 16.0], [[1.0, 4.0], [3.0, 1.0], [2.0, 2.0]])
    weight = None if seed % 2 else [1.0, 2.0, 1.0]
    r = of_tenants(c, np.sort(rng.uniform(0, 40, n)).tolist(), [0] * n, rng.uniform(1, 9, n), weight)
    r.work["class_idx"], r.work["tenant_idx"] = rng.integers(0, 3, n), rng.integers(0, 3, n)
    expected = by_algorithm_1(c, r)
    assert (expected > r.work["arrival_s"]).sum() > 20
    np.testing.assert_allclose(started(c, r), expected, atol=1e-9)


def test_without_resources_it_evens_out_slots_in_use() -> None:
    """Four slots; A has three requests running when B comes: the next two that become free are B's."""
    c = replace(cluster(4, classes=2, queue_max=0), unit_s=np.ones((2, 1)))
    r = of_tenants(c, [0.0] * 12 + [0.5] * 4, [A] * 12 + [B] * 4, [4.0, 5.0, 6.0, 7.0, *[20.0] * 12])
    start_s = started(c, r)
    assert sorted(start_s[12:].tolist())[:2] == [4.0, 5.0]
    assert sorted(start_s[4:12].tolist())[0] == 6.0


def test_live_it_counts_what_runs_and_not_what_was_charged() -> None:
    """The live host keeps what tenants hold by itself: a cost added from outside changes nothing."""
    c = replace(cluster(2, classes=2, queue_max=0), unit_s=np.ones((2, 1)))
    live = LiveDriver(
        c, Options(lane_per_class=True), find("best-fit+drf"), rows=16, tenants=2, mode="interpreted"
    )
    live.add_cost(0, 1e6)
    rows = [
        live.enter(RequestSpec(class_idx=t, units=1.0, estimate_s=1.0, tenant_idx=t), 0.0)
        for t in (A, A, A, B)
    ]
    live.advance(0.0)
    assert [row for row, _ in live.take_started()] == rows[:2]
    live.complete(rows[0], 1.0)
    live.advance(1.0)
    assert [row for row, _ in live.take_started()] == rows[3:]  # B holds nothing, A still one
