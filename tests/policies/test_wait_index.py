"""Policies with an index of waits decide as a scan of all nodes: counts, rankings and scores, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, faults, requests, run, with_resources
from support.conformance_cases import in_turn
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests
from trimtab.domain.view import MAX_RANKED
from trimtab.engine.bound_state import python_memory
from trimtab.engine.simulator import run as simulated
from trimtab.policies import find
from trimtab.policies.shared import wait_index

OVERDUE_FRAC = 0.3
Scan = Callable[[Any, Any, Policy], list[tuple[float, int]]]


def wait_s(view: Any, j: int) -> float:
    """The documented wait, by the books."""
    nodes = view.nodes
    if nodes.in_flight[j] < nodes.slots[j]:
        return 0.0
    left_s = nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j])
    return float((left_s if left_s > 0.0 else OVERDUE_FRAC * nodes.outstanding_s[j]) / nodes.slots[j])


Own = tuple[float, float]


def serving(view: Any, work: Any) -> dict[int, Own]:
    """Node → seconds of missing loads and of service, of those that are up and serve the class."""
    found = {}
    for j in range(view.context.n_nodes):
        t, load_s = view.nodes.type_idx[j], 0.0
        service_s = view.fixed_s[work.class_idx, t] + view.unit_s[work.class_idx, t] * work.units
        for item in (work.model_idx, work.adapter_idx):
            if item >= 0 and not view.resident[j, item]:
                load_s += view.load_s[item, t]
        if view.nodes.up[j] == 1 and service_s < np.inf:
            found[j] = load_s, float(service_s)
    return found


def able(view: Any, work: Any) -> dict[int, Own]:
    """Of these the ones that have room."""
    return {j: own for j, own in serving(view, work).items() if view.nodes.room[j] > 0}


def is_free(view: Any, j: int) -> bool:
    return bool(view.nodes.in_flight[j] < view.nodes.slots[j])


def completions(view: Any, work: Any, policy: Policy) -> list[tuple[float, int]]:
    """Least expected completion: every node by wait + load + service."""
    return sorted((wait_s(view, j) + (load_s + s), j) for j, (load_s, s) in able(view, work).items())


def late(view: Any, work: Any, policy: Any) -> list[tuple[float, int]]:
    """Late binding: free nodes by score, none while few are held and a busy one is worth waiting for."""
    held, slots, served = view.context.n_held, sum(view.nodes.slots), able(view, work)
    free = {j: own for j, own in served.items() if is_free(view, j)}
    aged_s = policy.ageing * (view.context.now_s - work.arrival_s)
    crowding = held / float(slots)
    idle_s = min((load_s + s for load_s, s in free.values()), default=np.inf)
    if held < policy.patient and work.estimate_s < idle_s < np.inf:
        gained_s = {j: idle_s - (load_s + s) for j, (load_s, s) in served.items() if j not in free}
        if any(g > 0.0 and (1.0 + held) * wait_s(view, j) < g for j, g in gained_s.items()):
            return []
    wasted = {
        j: policy.w_load * load_s + policy.w_waste * (s - work.estimate_s) for j, (load_s, s) in free.items()
    }
    return sorted((load_s + s + crowding * wasted[j] - aged_s, j) for j, (load_s, s) in free.items())


def costs(view: Any, work: Any, policy: Any) -> list[tuple[float, int]]:
    """Cost index: completion, plus what the wait and the time taken cost the others."""
    served = able(view, work)
    waits_s = {j: wait_s(view, j) for j in served}
    q = min(waits_s.values(), default=0.0) / max(work.estimate_s, 1e-9)
    scores = []
    for j, (load_s, s) in served.items():
        extra_s = policy.w_wait * waits_s[j]
        extra_s += q * (policy.w_work * (load_s + s) + policy.w_excess * (s - work.estimate_s))
        scores.append((waits_s[j] + (load_s + s) + extra_s, j))
    return sorted(scores)


class Near:
    """Locality, with the promises that it has made: node → (request, until when)."""

    def __init__(self) -> None:
        self.promised: dict[int, tuple[int, float]] = {}
        self.held = 0

    def __call__(self, view: Any, work: Any, policy: Any) -> list[tuple[float, int]]:
        self.promised = {j: p for j, p in self.promised.items() if p[0] != work.serial}
        own_s = {j: load_s + s for j, (load_s, s) in serving(view, work).items()}
        free_s = min(
            (s for j, s in own_s.items() if j in able(view, work) and is_free(view, j)), default=np.inf
        )
        waited_s, ranked, full = view.context.now_s - work.arrival_s, [], []
        for j, s in own_s.items():
            has_room = view.nodes.room[j] > 0
            if is_free(view, j):
                ranked += [(s, j)] if has_room else []
            elif s < free_s:
                patience = policy.patience if has_room else policy.hold
                if free_s == np.inf or waited_s + wait_s(view, j) <= patience * (free_s - s):
                    (ranked if has_room else full).append((wait_s(view, j) + s, j))
        if free_s < np.inf and full and min(full)[0] < min(ranked)[0]:
            j = min(full)[1]
            if j not in self.promised or self.promised[j][1] < view.context.now_s:
                self.promised[j] = work.serial, view.context.now_s + wait_s(view, j)
                self.held += 1
                return []
        return sorted(ranked)


class Checked(Policy):
    """Decides as another policy, and compares each decision with a scan: all that is wanted, or all of it."""

    def __init__(self, spec: str, scan: Scan, n_wanted: int = MAX_RANKED) -> None:
        policy = find(spec).dispatch
        self.needs, self.degrades, self.compares = policy.needs, policy.degrades, policy.compares  # type: ignore[misc]
        self.init, decide = policy.init, interpreted(policy.dispatch)  # type: ignore[method-assign]
        self.checked = self.waited = self.loaded = 0

        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            view.context.n_wanted = max(n_wanted, view.context.n_wanted)
            count = int(decide(view, plan, work, python_memory(memory), draws, ranking))
            expected = scan(view, work, policy)[: view.context.n_wanted]
            found = [(float(ranking.score[i]), int(ranking.node_idx[i])) for i in range(count)]
            assert found == expected
            self.checked += 1
            self.waited += bool(expected) and min(expected)[0] > work.estimate_s
            self.loaded += (
                bool(expected) and work.model_idx >= 0 and not view.resident[expected[0][1], work.model_idx]
            )
            return count

        self.dispatch = dispatch  # type: ignore[method-assign]


def plain(n: int = 40, **given: Any) -> Cluster:
    c = cluster(n, **{"types": 3, "slots": [1 + j % 2 for j in range(n)], **given})
    return replace(c, rtt_s=np.zeros_like(c.rtt_s))


CASES = ("noise", "ties", "crowded", "full queues", "stale", "faults")


def work_of(name: str, seed: int, **items: int) -> tuple[Cluster, Requests, Options]:
    """Small enough to scan, large enough for an index."""
    c = plain(classes=2, unserved=[(1, 0)], **items)
    if name == "ties":
        c = plain(speeds=[1.0, 1.0, 1.0], **items)
        return c, requests(c, 200, load=0.95, seed=seed, sizes="constant"), Options()
    if name == "crowded":
        return c, requests(c, 250, load=1.6, seed=seed, noise=True), Options()
    if name == "full queues":
        c = plain(queue_max=1, **items)
        return c, requests(c, 200, load=1.3, seed=seed, noise=True), Options()
    if name == "stale":
        stale = Options(dispatchers=2, telemetry_period_s=0.7, telemetry_delay_s=0.2)
        return c, requests(c, 200, load=0.9, seed=seed, noise=True), stale
    if name == "faults":
        failing = Options(faults=faults([0, 3, 7], [2, 5], mtbf_s=4.0, mttr_s=1.0))
        return c, requests(c, 200, load=0.9, seed=seed, noise=True), failing
    return c, requests(c, 200, load=0.8, seed=seed, noise=True), Options()


SCANS: dict[str, Callable[[], Scan]] = {
    "least-expected-completion": lambda: completions,
    "late-binding": lambda: late,
    "cost-index": lambda: costs,
    "locality": Near,
}


@pytest.fixture
def _small_with_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_index, "FEWEST_WITH_ITEMS", wait_index.FEWEST_NODES)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", SCANS)
@pytest.mark.parametrize("n_wanted", [MAX_RANKED, pytest.param(1, marks=pytest.mark.full)])
def test_decisions_are_those_of_a_scan(spec: str, case: str, n_wanted: int) -> None:
    policy = Checked(spec, SCANS[spec](), n_wanted)
    run(*work_of(case, n_wanted), policy)
    assert policy.checked >= 200
    if spec in ("least-expected-completion", "cost-index") and case == "crowded":
        assert policy.waited > 50  # busy nodes were ranked, not only free ones


@pytest.mark.usefixtures("_small_with_items")
@in_turn(SCANS, CASES, each=2)
@pytest.mark.parametrize("n_wanted", [MAX_RANKED, pytest.param(1, marks=pytest.mark.full)])
def test_so_they_are_where_nodes_hold_models_and_adapters(spec: str, case: str, n_wanted: int) -> None:
    c, r, options = work_of(case, n_wanted, models=7, adapters=70)  # more than one word of items
    r.work["adapter_idx"][::2] = -1
    r.work["model_idx"][::8], r.work["adapter_idx"][::8] = -1, -1
    policy = Checked(spec, SCANS[spec](), n_wanted)
    run(c, r, options, policy)
    assert policy.checked >= 200
    assert policy.loaded > 10  # nodes that lacked the model were chosen


@pytest.mark.parametrize("spec", SCANS)
def test_a_scan_serves_few_nodes_and_those_that_are_apart(spec: str) -> None:
    reads_zones = spec != "least-expected-completion"
    at = -1 if reads_zones else 0  # of whether there is an index, among the parameters
    init = find(spec).dispatch.init
    few, many = wait_index.FEWEST_WITH_ITEMS - 1, wait_index.FEWEST_WITH_ITEMS
    assert init(plain()).params[at] == 1.0
    assert init(plain(wait_index.FEWEST_NODES - 1)).params[at] == 0.0
    assert init(plain(few, models=1)).params[at] == 0.0
    assert init(plain(many, models=1)).params[at] == 1.0
    assert init(cluster(40, zones=2)).params[at] == float(not reads_zones)


def test_late_binding_scans_where_resources_bound_what_starts() -> None:
    init = find("late-binding").dispatch.init
    assert init(plain()).params[-1] == 1.0
    assert init(with_resources(plain())).params[-1] == 0.0


@pytest.mark.parametrize("spec", SCANS)
def test_ten_thousand_nodes_and_277_items_take_little_memory(spec: str) -> None:
    """For each item a bound in each state and a bit of each word of 60 nodes; for each node a bit."""
    memory = find(spec).dispatch.init(plain(10_000, models=32, adapters=245))
    assert sum(array.nbytes for array in memory) < 4e6


@pytest.mark.usefixtures("_small_with_items")
@pytest.mark.parametrize("spec", SCANS)
def test_compiled_and_interpreted_runs_with_an_index_are_equal(spec: str) -> None:
    c, r, options = work_of("noise", 5, models=7, adapters=70)
    decider = Decider.of(find(spec).dispatch)
    runs = [simulated(c, r, options, decider, mode=mode).state for mode in ("compiled", "interpreted")]
    assert np.array_equal(runs[0].requests["finish_s"], runs[1].requests["finish_s"])
