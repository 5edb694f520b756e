"""Each policy's decisions in cases small enough to work out by hand."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from support.builders import cluster
from support.dispatch_by_hand import Desk
from trimtab.compiled.kernel import interpreted
from trimtab.domain.policy import Policy
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.static.bounded_hash import BoundedHash, position_of, ring


def policy(spec: str) -> Policy:
    return find(spec)[0]


def test_round_robin_skips_nodes_that_are_down_or_full() -> None:
    desk = Desk(cluster(4), policy("round-robin"))
    desk.set(1, up=0)
    desk.set(3, room=0)
    assert [desk.decide()[0] for _ in range(4)] == [0, 2, 0, 2]
    desk.set(3, room=1)
    assert [desk.decide() for _ in range(3)] == [[3, 0], [0, 2], [2, 3]]


def test_round_robin_gives_each_node_its_turn() -> None:
    desk = Desk(cluster(5), policy("round-robin"))
    assert [desk.decide()[0] for _ in range(10)] == [0, 1, 2, 3, 4] * 2


def test_smooth_weighted_round_robin_plays_the_published_sequence() -> None:
    desk = Desk(cluster(3), policy("weighted-round-robin"))
    desk.nodes["weight"] = [5, 1, 1]
    assert "".join("abc"[desk.decide()[0]] for _ in range(14)) == "aabacaa" * 2


def test_smooth_weighted_round_robin_shares_by_weight_among_able_nodes() -> None:
    desk = Desk(cluster(4), policy("weighted-round-robin"))
    desk.nodes["weight"] = [4, 3, 2, 1]
    desk.set(0, up=0)
    assert Counter(desk.decide()[0] for _ in range(60)) == {1: 30, 2: 20, 3: 10}


def test_random_is_uniform_among_able_nodes() -> None:
    desk = Desk(cluster(7), policy("random"))
    for j in (0, 4, 5):
        desk.set(j, up=0)
    draws = np.random.default_rng(5).random(4000)
    counts = Counter(desk.decide([u])[0] for u in draws)
    assert set(counts) == {1, 2, 3, 6}
    assert chisquare(list(counts.values())).pvalue > 0.001


def test_random_on_an_even_grid_is_exactly_uniform() -> None:
    desk = Desk(cluster(4), policy("random"))
    desk.set(2, room=0)
    counts = Counter(desk.decide([(i + 0.5) / 1200])[0] for i in range(1200))
    assert counts == {0: 400, 1: 400, 3: 400}


def test_power_of_two_takes_the_less_busy_of_its_samples() -> None:
    desk = Desk(cluster(4), policy("power-of-d"))
    for j, in_flight in enumerate([4, 3, 2, 1]):
        desk.set(j, in_flight=in_flight)
    assert desk.decide([0.1, 0.6]) == [2, 0]
    assert desk.decide([0.9, 0.3]) == [3, 1]


def test_power_of_d_takes_as_many_samples_as_it_is_told() -> None:
    assert policy("power-of-d(d=5)").draws == 5
    desk = Desk(cluster(4), policy("power-of-d(d=3)"))
    for j, in_flight in enumerate([4, 3, 2, 1]):
        desk.set(j, in_flight=in_flight)
    assert desk.decide([0.1, 0.3, 0.6]) == [2, 1, 0]


@pytest.mark.parametrize(
    "spec",
    [
        "power-of-d(d=0)",
        "power-of-d(d=9)",
        "bounded-hash(c=1.0)",
        "bounded-hash(points=0)",
        "hungarian(plan_period_s=-1)",
        "dual-price(plan_period_s=1e999)",
        "auto(window=0)",
        "what-if(window=-5)",
    ],
)
def test_parameters_out_of_range_are_named(spec: str) -> None:
    parameter = re.escape(spec.partition("=")[0].replace("(", "."))
    with pytest.raises(UsageError, match=parameter + ": "):
        find(spec)


def test_least_expected_completion_adds_wait_load_and_service() -> None:
    desk = Desk(
        cluster(3, types=3, speeds=[1, 2, 4], models=1, load_s=8.0), policy("least-expected-completion")
    )
    desk.work["units"], desk.work["model_idx"] = 4.0, 0
    assert desk.decide() == [2, 1, 0]  # idle and empty: 8/4 + 1, 8/2 + 2, 8 + 4
    desk.state.resident[:, 0] = [1, 0, 0]
    assert desk.decide() == [2, 0, 1]  # 3, 4, 6
    desk.set(2, in_flight=1, running=1, backlog_s=5.0, anchor_s=10.0)
    desk.at(11.0)
    assert desk.decide() == [0, 1, 2]  # 4, 6, 5 − 1 + 3 = 7
    desk.at(12.5)
    assert desk.decide() == [0, 2, 1]  # 4, 5 − 2.5 + 3 = 5.5, 6
    desk.at(99.0)
    assert desk.decide() == [2, 0, 1]  # overdue work is expected to end now


def test_least_expected_completion_waits_only_where_no_slot_is_free() -> None:
    desk = Desk(cluster(2, slots=2), policy("least-expected-completion"))
    desk.set(0, in_flight=1, running=1, backlog_s=50.0)
    desk.set(1, in_flight=2, running=2, backlog_s=1.0)
    assert desk.decide() == [0, 1]


def test_bounded_hash_keeps_a_key_on_its_node_and_moves_on_when_that_is_too_busy() -> None:
    desk = Desk(cluster(8), policy("bounded-hash"))
    desk.work["key"] = 77
    home = desk.decide()[0]
    assert desk.decide() == [home]
    desk.set(home, in_flight=2)  # the bound is ⌈1.25 · 3 / 8⌉ = 1
    following, passed = desk.decide()
    assert passed == home
    assert following == _walk(desk, 77, bound=1)


def _walk(desk: Desk, key: int, bound: int) -> int:
    """Clockwise from the key, by sorting distances."""
    positions, node_idx = ring(desk.cluster.node_names, BoundedHash().points)
    start = interpreted(position_of)(key)
    for i in np.argsort((positions - start) % ((1 << 31) - 1), kind="stable"):
        if desk.nodes["in_flight"][node_idx[i]] < bound:
            return int(node_idx[i])
    raise AssertionError("all nodes are at the bound")


def test_bounded_hash_holds_every_node_to_its_bound_and_agrees_with_a_walk() -> None:
    desk, rng = Desk(cluster(10), policy("bounded-hash(c=1.5)")), np.random.default_rng(3)
    for m in range(1, 200):
        key = int(rng.integers(0, 12))
        desk.work["key"] = key
        bound = math.ceil(1.5 * m / 10)
        j = desk.decide()[0]
        assert j == _walk(desk, key, bound)
        desk.set(j, in_flight=desk.nodes["in_flight"][j] + 1)
        assert desk.nodes["in_flight"].max() <= bound


def test_bounded_hash_counts_nodes_that_are_up() -> None:
    desk = Desk(cluster(3), policy("bounded-hash"))
    desk.decide()
    for j in range(3):
        desk.set(j, in_flight=2)
    desk.set(0, up=0)  # 4 in flight on 2 nodes: the bound is ⌈1.25 · 5 / 2⌉ = 4
    assert desk.decide()[0] in {1, 2}
    desk.set(1, in_flight=4)  # 6 in flight: ⌈1.25 · 7 / 2⌉ = 5
    keys = {}
    for key in range(50):
        desk.work["key"] = key
        keys[key] = desk.decide()[0]
    assert set(keys.values()) == {1, 2}


def test_bounded_hash_moves_few_keys_when_a_node_joins() -> None:
    few, more = Desk(cluster(20), policy("bounded-hash")), Desk(cluster(21), policy("bounded-hash"))
    moved = 0
    for key in range(1000):
        few.work["key"] = more.work["key"] = key
        before, after = few.decide()[0], more.decide()[0]
        assert after in {before, 20}  # a key stays, or moves to the new node
        moved += before != after
    assert 0 < moved < 150  # 1000 / 21 on average


def test_keys_spread_evenly_around_the_circle() -> None:
    places = [interpreted(position_of)(key) for key in range(-2000, 2000)]
    counts, _ = np.histogram(places, bins=20, range=(0, (1 << 31) - 1))
    assert chisquare(counts).pvalue > 0.001
