"""Dominant-resource fair queueing: an example, shares that stay close, and no credit for idleness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, run
from support.by_hand import asked
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests
from trimtab.policies import find

A, B, ALL = range(3)  # classes, and tenants: 1 core and 4 GiB; 3 cores and 1 GiB; everything
TWO_TENANTS = [4 / 18, 3 / 9]  # dominant shares of one request of each


def machine(slots: int = 20) -> Cluster:
    """Nine cores and 18 GiB, the example of Ghodsi et al. (NSDI 2011, §4.1)."""
    c = cluster(1, slots=slots, classes=3, queue_max=0)
    return replace(
        c,
        unit_s=np.ones_like(c.unit_s),
        resource_names=("cpu_cores", "ram_gib"),
        capacity=np.array([[9.0, 18.0]]),
        demand=np.array([[1.0, 4.0], [3.0, 1.0], [9.0, 18.0]]),
    )


def of_tenants(
    c: Cluster,
    arrival_s: list[float],
    tenants: list[int],
    units: object = 1.0,
    weight: list[float] | None = None,
) -> Requests:
    r = asked(c, arrival_s, units, class_idx=tenants, tenant_idx=tenants)
    r.work["cost"] = r.work["units"]
    return Requests(
        r.work, r.truth, ("a", "b", "c"), tenant_weight=None if weight is None else np.array(weight)
    )


def started(c: Cluster, r: Requests, spec: str = "best-fit+drfq") -> np.ndarray:
    return run(c, r, Options(), *find(spec)).requests["start_s"]


def test_the_published_example() -> None:
    """While one fills the machine all others come; then A gets three and B two, as in the paper."""
    c = machine()
    r = of_tenants(c, [0.0, *np.linspace(0.1, 0.5, 12)], [ALL, *[A] * 6, *[B] * 6], [1.0, *[100.0] * 12])
    at_one = started(c, r) == 1.0
    assert at_one[1:7].sum() == 3
    assert at_one[7:].sum() == 2


@pytest.mark.parametrize("seed", range(3))
def test_backlogged_tenants_have_had_equal_dominant_shares(seed: int) -> None:
    """At every moment they differ by no more than one request each may bring."""
    c, n = machine(), 120
    tenants = np.random.default_rng(seed).permutation([A] * n + [B] * n)
    r = of_tenants(c, [0.0, *np.linspace(0.1, 0.9, 2 * n)], [ALL, *tenants.tolist()])
    start_s = started(c, r)[1:]
    backlogged_s = min(start_s[tenants == A].max(), start_s[tenants == B].max())
    for now_s in np.unique(start_s[start_s < backlogged_s]):
        got = [(start_s[tenants == t] <= now_s).sum() * TWO_TENANTS[t] for t in (A, B)]
        assert abs(got[0] - got[1]) <= sum(TWO_TENANTS) + 1e-9


def test_without_resources_it_shares_out_slot_seconds() -> None:
    """One slot; A's requests take one second, B's three: three of A's to each of B's."""
    c = replace(cluster(1, classes=3, queue_max=0), unit_s=np.ones((3, 1)))
    tenants = [A] * 30 + [B] * 30
    r = of_tenants(c, [0.0, *np.linspace(0.1, 0.9, 60)], [ALL, *tenants], [1.0, *[1.0] * 30, *[3.0] * 30])
    start_s = started(c, r)[1:]
    first = np.argsort(start_s)[:40]
    assert (first < 30).sum() == 30
    assert (first >= 30).sum() == 10


def test_who_was_idle_begins_with_the_least_of_those_that_wait() -> None:
    """B comes after A has been served alone for long; it takes turns from then on and gets no more."""
    c = replace(cluster(1, classes=3, queue_max=0), unit_s=np.ones((3, 1)))
    r = of_tenants(c, [*[0.0] * 20, *[10.5] * 8], [*[A] * 20, *[B] * 8])
    start_s = started(c, r)
    shared = np.argsort(start_s)[11:25]  # from B's arrival on
    assert abs((shared < 20).sum() - (shared >= 20).sum()) <= 1


def test_what_was_held_counts_and_not_what_was_expected() -> None:
    """A's requests take twice what is expected, B's half: four of B's to each of A's."""
    c = replace(cluster(1, classes=3, queue_max=0), unit_s=np.ones((3, 1)))
    r = of_tenants(c, [0.0, *np.linspace(0.1, 0.9, 60)], [ALL, *[A] * 20, *[B] * 40])
    r.truth["factor"][1:21], r.truth["factor"][21:] = 2.0, 0.5
    first = np.argsort(started(c, r)[1:])[:40]
    assert (first < 20).sum() == pytest.approx(8, abs=1)


def test_a_weight_of_two_is_twice_the_time() -> None:
    """One slot, requests of a second: two of A's to each of B's."""
    c = replace(cluster(1, classes=3, queue_max=0), unit_s=np.ones((3, 1)))
    arrival_s = [0.0, *np.linspace(0.1, 0.9, 60)]
    r = of_tenants(c, arrival_s, [ALL, *[A] * 30, *[B] * 30], weight=[2.0, 1.0, 1.0])
    first = np.argsort(started(c, r)[1:])[:30]
    assert (first < 30).sum() == pytest.approx(20, abs=1)


def test_each_request_is_charged_its_own_dominant_resource() -> None:
    """Memoryless: B alternates between all cores and all memory, so each second costs a whole one, as A's do.

    Charged by the sum of each resource (dovetailing) B's two would cost as much as one, and B would get more.
    """
    c = replace(
        cluster(1, classes=3, queue_max=0),
        unit_s=np.ones((3, 1)),
        resource_names=("cpu_cores", "ram_gib"),
        capacity=np.array([[8.0, 8.0]]),
        demand=np.array([[8.0, 8.0], [8.0, 0.0], [0.0, 8.0]]),
    )
    r = asked(c, [0.0, *np.linspace(0.1, 0.9, 40)])
    r.work["class_idx"][1:] = [0] * 20 + [1, 2] * 10
    r.work["tenant_idx"][1:] = [A] * 20 + [B] * 20
    first = np.argsort(started(c, Requests(r.work, r.truth, ("a", "b")))[1:])[:20]
    assert (first < 20).sum() == 10
