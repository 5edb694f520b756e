"""Policies of the literature against what is known of them: central queues, mean fields, size intervals."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np
import pytest

from support.agreement import assert_agrees
from support.builders import cluster
from support.by_hand import asked, played, starts
from support.dispatch_by_hand import Desk
from support.formulas import mg1_wait_s, supermarket_time
from support.mean_field import idle_queue_time, memory_time
from support.stations import WARM_UP, stream, times_s
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.planning import History
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import empty_plan
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.policies import find

SERVERS = 1000
LIMIT_BIAS = 0.005  # a thousand servers are not infinitely many


def policy(spec: str) -> Policy:
    return find(spec)[0]


def _central_queue(arrival_s: np.ndarray, service_s: np.ndarray, servers: int) -> list[float]:
    """Start times in G/G/k, first come first served (Kiefer, Wolfowitz)."""
    free_s, start_s = [0.0] * servers, []
    for at_s, takes_s in zip(arrival_s, service_s, strict=True):
        start_s.append(max(float(at_s), heapq.heappop(free_s)))
        heapq.heappush(free_s, start_s[-1] + float(takes_s))
    return start_s


@pytest.mark.parametrize("spec", ["lwl", "least-expected-wait"])
@pytest.mark.parametrize("sizes", ["exponential", "hyper"])
def test_least_work_left_is_a_central_queue(spec: str, sizes: str) -> None:
    rng, n = np.random.default_rng(4), 600
    arrival_s = np.cumsum(rng.exponential(1 / 3.6, n))
    service_s = rng.exponential(1.0, n) * (np.where(rng.random(n) < 0.1, 6.0, 0.5) if sizes == "hyper" else 1)
    c = cluster(4)
    got = starts(played(c, asked(c, arrival_s.tolist(), service_s), policy=policy(spec)))
    assert got == pytest.approx(_central_queue(arrival_s, service_s, 4))
    assert max(got - arrival_s) > 1.0  # some wait


def test_work_counted_in_full_is_no_central_queue() -> None:
    """The variant that does not age running work sends requests where they wait longer."""
    rng, n, c = np.random.default_rng(4), 600, cluster(4)
    arrival_s, service_s = np.cumsum(rng.exponential(1 / 3.6, n)), rng.exponential(1.0, n)
    in_full = played(
        c, asked(c, arrival_s.tolist(), service_s), policy=policy("least-expected-wait(aged=False)")
    )
    waits_s = np.array(starts(in_full)) - arrival_s
    assert waits_s.mean() > 1.05 * (np.array(_central_queue(arrival_s, service_s, 4)) - arrival_s).mean()


@pytest.mark.parametrize("load", [0.7, pytest.param(0.9, marks=pytest.mark.full)])
def test_one_sample_and_one_remembered_node_take_as_long_as_the_mean_field_says(load: float) -> None:
    c = cluster(SERVERS)
    means = [
        times_s(stream(c, load * SERVERS, 200_000, seed, policy=policy("jsq-memory"))).mean()
        for seed in range(8)
    ]
    assert_agrees(means, memory_time(load), bias_frac=2 * LIMIT_BIAS)
    assert supermarket_time(load, 2) < memory_time(load) < 0.7 / (1.0 - load)  # random: 1 / (1 − load)


def test_a_remembered_node_helps_two_samples_too() -> None:
    c, load = cluster(SERVERS), 0.9
    with_memory, without = (
        [times_s(stream(c, load * SERVERS, 100_000, seed, policy=policy(spec))).mean() for seed in range(3)]
        for spec in ("jsq-memory(d=2)", "power-of-d")
    )
    assert np.mean(with_memory) < 0.9 * np.mean(without)


@pytest.mark.parametrize("load", [pytest.param(0.5, marks=pytest.mark.full), 0.8])
def test_two_nodes_under_join_idle_queue_are_their_markov_chain(load: float) -> None:
    means = [
        times_s(stream(cluster(2), 2 * load, 200_000, seed, policy=policy("jiq"))).mean()
        for seed in range(12)
    ]
    assert_agrees(means, idle_queue_time(load))


def test_hardly_anything_waits_where_many_nodes_join_the_idle_queue() -> None:
    """Lu and others 2011: with one dispatcher waits vanish as nodes grow in number."""
    means = [
        times_s(stream(cluster(n), 0.9 * n, 100_000, 1, policy=policy("jiq"))).mean() for n in (10, 100, 1000)
    ]
    assert means[0] > means[1] > means[2]
    assert means[2] == pytest.approx(1.0, rel=0.01)


def test_the_longest_idle_node_comes_first() -> None:
    c = cluster(3)
    r = asked(c, [0.0, 0.1, 0.2, 3.0, 3.1, 3.2], [1.5, 1.0, 0.5, 1.0, 1.0, 1.0])  # idle again: 2, 1, 0
    nodes = played(c, r, policy=policy("jiq")).state.requests["node_idx"]
    assert nodes.tolist() == [0, 1, 2, 2, 1, 0]


# --- size intervals

LEAST, MOST, ALPHA = 1.0, 1000.0, 1.5  # bounded Pareto


def pareto_cutoffs(shares: np.ndarray) -> np.ndarray:
    """Sizes below which these shares of the work lie: k^(1−α) + share (p^(1−α) − k^(1−α)), to 1/(1−α)."""
    low, high = LEAST ** (1 - ALPHA), MOST ** (1 - ALPHA)
    return (low + shares * (high - low)) ** (1 / (1 - ALPHA))


def pareto_quantiles(u: np.ndarray) -> np.ndarray:
    return LEAST * (1 - u * (1 - (LEAST / MOST) ** ALPHA)) ** (-1 / ALPHA)


def pareto_moment(k: int, low: float, high: float) -> float:
    """∫ x^k dF(x) from low to high."""
    norm = ALPHA * LEAST**ALPHA / (1 - (LEAST / MOST) ** ALPHA)
    return norm * (high ** (k - ALPHA) - low ** (k - ALPHA)) / (k - ALPHA)


def _size_intervals(seed: int, n: int, nodes: int, load: float) -> Driver:
    rng, c = np.random.default_rng(seed), cluster(nodes)
    mean = pareto_moment(1, LEAST, MOST)
    r = asked(
        c, np.cumsum(rng.exponential(mean / (load * nodes), n)).tolist(), pareto_quantiles(rng.random(n))
    )
    return run(c, r, Options(), Decider.of(policy("sita-e(plan_period_s=2000)")), seed=seed, mode="compiled")


def _cut(sizes: list[float], c: Cluster) -> Desk:
    """A desk whose plan knows requests of these sizes."""
    desk, sita = Desk(c, policy("sita-e")), policy("sita-e")
    n = len(sizes)
    work = asked(c, [0.0] * n, sizes).work
    past = History(work, np.full(n, np.nan), np.zeros(n, np.int32), np.zeros(n, np.bool_), empty_plan())
    plan = sita.plan(desk.seen(), past, None, None)
    assert plan is not None
    desk.follow(plan)
    return desk


def _node_of(desk: Desk, size: float, u: float = 0.0) -> int:
    desk.work["estimate_s"] = size
    return desk.decide([u])[0]


def test_equal_work_by_hand() -> None:
    desk = _cut([1.0, 4.0, 1.0, 2.0], cluster(2))  # a total of 8: half of it in the sizes up to 2
    assert [_node_of(desk, size) for size in (0.5, 1.0, 2.0, 3.0, 4.0, 9.0)] == [0, 0, 0, 1, 1, 1]
    assert [_node_of(desk, 2.0, u) for u in (0.0, 0.99)] == [0, 0]
    assert _node_of(_cut([7.0] * 3, cluster(2)), 7.0, 0.49) == 0  # all equal: chance divides them
    assert _node_of(_cut([7.0] * 3, cluster(2)), 7.0, 0.51) == 1


def test_unequal_nodes_get_work_by_capacity_and_the_slow_one_the_small_sizes() -> None:
    desk = _cut([1.0, 1.0, 2.0, 4.0], cluster(2, types=2, speeds=[3.0, 1.0]))
    assert [_node_of(desk, size) for size in (1 / 3, 2 / 3, 4 / 3)] == [1, 0, 0]  # seconds on the best type


def test_a_node_that_is_down_passes_its_sizes_on() -> None:
    desk = _cut([1.0, 1.0, 2.0, 4.0], cluster(2))
    desk.set(0, up=0)
    assert _node_of(desk, 1.0) == 1


def test_sizes_are_cut_where_bounded_pareto_sizes_have_equal_work() -> None:
    u = (np.arange(4096) + 0.5) / 4096
    desk = _cut(pareto_quantiles(u).tolist(), cluster(4))
    for j, cutoff in enumerate(pareto_cutoffs(np.array([0.25, 0.5, 0.75]))):
        assert _node_of(desk, 0.97 * cutoff) == j
        assert _node_of(desk, 1.03 * cutoff, 0.999) == j + 1


def test_waits_are_those_of_one_queue_for_each_range_of_sizes() -> None:
    """Pollaczek and Khinchine for each node, with the sizes between the exact cutoffs."""
    nodes, load = 2, 0.5
    cut = [LEAST, *pareto_cutoffs(np.array([0.5])), MOST]
    mean = pareto_moment(1, LEAST, MOST)
    expected = 0.0
    for low, high in pairwise(cut):
        share, first, second = (pareto_moment(k, low, high) for k in range(3))
        scv = second * share / first**2 - 1.0
        expected += share * mg1_wait_s(load * nodes / mean * share, first / share, scv)
    waits = []
    for seed in range(12):
        driver = _size_intervals(seed, 120_000, nodes, load)
        wait_s = driver.state.requests["start_s"] - driver.state.work["arrival_s"]
        waits.append(wait_s[int(WARM_UP * len(wait_s)) :].mean())
    assert np.mean(waits) == pytest.approx(expected, rel=0.1)


# --- rare reports


@pytest.mark.parametrize(
    ("report_s", "slots", "gap_s", "as_policy"),
    [("0", 2, 0.12, "least-connections"), ("1e9", 1, 0.25, "round-robin")],
)
def test_with_reports_before_each_decision_it_is_join_the_shortest_queue_and_without_any_round_robin(
    report_s: str, slots: int, gap_s: float, as_policy: str
) -> None:
    rng, c = np.random.default_rng(3), cluster(5, slots=slots)
    r = asked(c, np.cumsum(rng.exponential(gap_s, 400)).tolist(), rng.exponential(1.0, 400))
    found, expected = (
        played(c, r, policy=policy(spec)).state.requests["node_idx"]
        for spec in (f"hyper-scalable(report_s={report_s})", as_policy)
    )
    assert found.tolist() == expected.tolist()


def _with_rare_reports(
    arrival_s: np.ndarray, service_s: np.ndarray, servers: int, every_s: float
) -> list[int]:
    """The scheme on lists: estimates grow by one for each request sent, and are true again at each report."""
    estimate, ends, due_s, chosen = [0] * servers, [[] for _ in range(servers)], 0.0, []
    for at_s, takes_s in zip(arrival_s, service_s, strict=True):
        if at_s >= due_s:
            estimate = [sum(end > at_s for end in mine) for mine in ends]
            due_s = (1 + at_s // every_s) * every_s
        j = estimate.index(min(estimate))
        estimate[j] += 1
        ends[j].append(max([at_s, *ends[j][-1:]]) + takes_s)
        chosen.append(j)
    return chosen


@pytest.mark.parametrize("every_s", [0.7, 3.0])
def test_rare_reports_against_the_scheme_on_lists(every_s: float) -> None:
    rng, c = np.random.default_rng(3), cluster(6)
    arrival_s, service_s = np.cumsum(rng.exponential(0.2, 500)), rng.exponential(1.0, 500)
    spec = f"hyper-scalable(report_s={every_s})"
    got = played(c, asked(c, arrival_s.tolist(), service_s), policy=policy(spec)).state.requests["node_idx"]
    assert got.tolist() == _with_rare_reports(arrival_s, service_s, 6, every_s)
