"""Policies with an index of waits decide as a scan of all nodes: counts, rankings and scores, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, faults, requests, run
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests
from trimtab.domain.view import MAX_RANKED
from trimtab.engine.simulator import run as simulated
from trimtab.policies import find

OVERDUE_FRAC = 0.3
Scan = Callable[[Any, Any, Policy], list[tuple[float, int]]]


def wait_s(view: Any, j: int) -> float:
    """The documented wait, by the books."""
    nodes = view.nodes
    if nodes.in_flight[j] < nodes.slots[j]:
        return 0.0
    left_s = nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j])
    return float((left_s if left_s > 0.0 else OVERDUE_FRAC * nodes.outstanding_s[j]) / nodes.slots[j])


def able(view: Any, work: Any) -> dict[int, float]:
    """Node → estimated service, of those that are up, have room and serve the class."""
    found = {}
    for j in range(view.context.n_nodes):
        at = work.class_idx, view.nodes.type_idx[j]
        service_s = view.fixed_s[at] + view.unit_s[at] * work.units
        if view.nodes.up[j] == 1 and view.nodes.room[j] > 0 and service_s < np.inf:
            found[j] = float(service_s)
    return found


def completions(view: Any, work: Any, policy: Policy) -> list[tuple[float, int]]:
    """Least expected completion: every node by wait + service."""
    return sorted((wait_s(view, j) + service_s, j) for j, service_s in able(view, work).items())


def late(view: Any, work: Any, policy: Any) -> list[tuple[float, int]]:
    """Late binding: free nodes by score, none while few are held and a busy one is worth waiting for."""
    nodes, held, slots = view.nodes, view.context.n_held, sum(view.nodes.slots)
    served = able(view, work)
    free = {j: s for j, s in served.items() if nodes.in_flight[j] < nodes.slots[j]}
    aged_s = policy.ageing * (view.context.now_s - work.arrival_s)
    crowding = held / float(slots)
    idle_s = min(free.values(), default=np.inf)
    if held < policy.patient and work.estimate_s < idle_s < np.inf:
        gained_s = {j: idle_s - s for j, s in served.items() if j not in free}
        if any(g > 0.0 and (1.0 + held) * wait_s(view, j) < g for j, g in gained_s.items()):
            return []
    wasted = {j: crowding * (policy.w_waste * (s - work.estimate_s)) for j, s in free.items()}
    return sorted((s + wasted[j] - aged_s, j) for j, s in free.items())


class Checked(Policy):
    """Decides as another policy, and compares each decision with a scan."""

    def __init__(self, spec: str, scan: Scan) -> None:
        policy = find(spec).dispatch
        self.needs, self.degrades, self.compares = policy.needs, policy.degrades, policy.compares  # type: ignore[misc]
        self.init, decide = policy.init, interpreted(policy.dispatch)  # type: ignore[method-assign]
        self.checked = self.waited = 0

        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            count = int(decide(view, plan, work, memory, draws, ranking))
            expected = scan(view, work, policy)[:MAX_RANKED]
            found = [(float(ranking.score[i]), int(ranking.node_idx[i])) for i in range(count)]
            assert found == expected
            self.checked += 1
            self.waited += bool(expected) and min(expected)[0] > work.estimate_s
            return count

        self.dispatch = dispatch  # type: ignore[method-assign]


def plain(n: int = 40, **given: Any) -> Cluster:
    c = cluster(n, **{"types": 3, "slots": [1 + j % 2 for j in range(n)], **given})
    return replace(c, rtt_s=np.zeros_like(c.rtt_s))


def case(name: str, seed: int) -> tuple[Cluster, Requests, Options]:
    """Small enough to scan, large enough for an index."""
    c = plain(classes=2, unserved=[(1, 0)])
    if name == "ties":
        c = plain(speeds=[1.0, 1.0, 1.0])
        return c, requests(c, 400, load=0.95, seed=seed, sizes="constant"), Options()
    if name == "crowded":
        return c, requests(c, 500, load=1.6, seed=seed, noise=True), Options()
    if name == "full queues":
        c = plain(queue_max=1)
        return c, requests(c, 400, load=1.3, seed=seed, noise=True), Options()
    if name == "stale":
        stale = Options(dispatchers=2, telemetry_period_s=0.7, telemetry_delay_s=0.2)
        return c, requests(c, 400, load=0.9, seed=seed, noise=True), stale
    if name == "faults":
        failing = Options(faults=faults([0, 3, 7], [2, 5], mtbf_s=4.0, mttr_s=1.0))
        return c, requests(c, 400, load=0.9, seed=seed, noise=True), failing
    return c, requests(c, 400, load=0.8, seed=seed, noise=True), Options()


@pytest.mark.parametrize("name", ["noise", "ties", "crowded", "full queues", "stale", "faults"])
@pytest.mark.parametrize(
    ("spec", "scan"), [("least-expected-completion", completions), ("late-binding", late)]
)
def test_decisions_are_those_of_a_scan(spec: str, scan: Scan, name: str) -> None:
    for seed in range(2):
        policy = Checked(spec, scan)
        run(*case(name, seed), policy)
        assert policy.checked >= 400
        if spec == "least-expected-completion" and name == "crowded":
            assert policy.waited > 100  # busy nodes were ranked, not only free ones


@pytest.mark.parametrize("spec", ["least-expected-completion", "late-binding"])
def test_the_index_is_as_large_as_its_cluster_and_a_scan_serves_others(spec: str) -> None:
    """With models, zones or resources a wait does not say everything: such clusters are scanned."""
    policy = find(spec).dispatch
    indexed, scanned = policy.init(plain()), policy.init(plain(models=1))
    assert indexed.params[-1] == 1.0
    assert scanned.params[-1] == 0.0
    zones = cluster(40, zones=2)
    assert policy.init(zones).params[-1] == (spec == "least-expected-completion")  # which reads no zones


def test_compiled_and_interpreted_runs_with_an_index_are_equal() -> None:
    c, r, options = case("noise", 5)
    for spec in ("least-expected-completion", "late-binding"):
        decider = Decider.of(find(spec).dispatch)
        runs = [simulated(c, r, options, decider, mode=mode).state for mode in ("compiled", "interpreted")]
        assert np.array_equal(runs[0].requests["finish_s"], runs[1].requests["finish_s"])
