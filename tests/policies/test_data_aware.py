"""Locality and prefix affinity: decisions worked out by hand, and the hot prompt that must not spiral."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, requests
from support.by_hand import asked, count
from support.dispatch_by_hand import Desk
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Prefixes, Requests
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.data_aware.e2 import E2

TOKEN_UNITS = 0.01


def policy(spec: str) -> Policy:
    return find(spec)[0]


def prompted(c: Cluster) -> Cluster:
    return replace(c, prompt_token_units=np.full(len(c.class_names), TOKEN_UNITS))


# --- models that do not fit beside each other


def mean_s_and_loads(spec: str, load: float, seed: int) -> tuple[float, int]:
    """Two models on three nodes that hold one each; a load takes five mean services."""
    c = cluster(3, models=2, memory_gib=8.0, load_s=5.0)
    r = requests(c, 400, load=load, seed=seed)
    rows = run(c, r, Options(), Decider.of(policy(spec)), mode="interpreted").state.requests
    loads = rows["service_start_s"] > rows["start_s"] + 1e-9
    return float((rows["finish_s"] - r.work["arrival_s"]).mean()), int(loads.sum())


def test_a_price_of_loads_ends_the_swapping_of_models_and_costs_little_where_nothing_waits() -> None:
    greedy, priced = "least-expected-completion", "least-expected-completion(w_load=3)"
    for load, most in ((0.5, 0.3), (0.2, 1.2)):  # at a low load a swap is sooner, if anything
        pairs = [(mean_s_and_loads(greedy, load, k), mean_s_and_loads(priced, load, k)) for k in range(3)]
        swapping, staying = np.mean(pairs, axis=0)
        assert staying[0] < most * swapping[0]
        assert staying[1] <= 3.0
    with pytest.raises(UsageError, match="w_load"):
        policy("least-expected-completion(w_load=-1)")


# --- prefix affinity


def test_prefix_affinity_takes_what_is_cached_off_the_completion() -> None:
    desk = Desk(prompted(cluster(3)), policy("prefix-affinity(weight=1)"))
    desk.work["units"] = 10.0
    desk.state.prefix_tokens[:] = [0, 400, 100]
    assert desk.decide() == [1, 2, 0]  # 10 − 4, 10 − 1, 10
    desk.set(1, in_flight=1, running=1, backlog_s=3.5)
    assert desk.decide() == [2, 1, 0]  # 9, 3.5 + 6, 10
    desk.set(1, backlog_s=2.5)
    assert desk.decide() == [1, 2, 0]  # 8.5, 9, 10


def test_prefix_affinity_counts_savings_more_than_once_up_to_its_escape() -> None:
    desk = Desk(prompted(cluster(2)), policy("prefix-affinity(weight=3,escape=0.5)"))
    desk.work["units"] = 10.0
    desk.state.prefix_tokens[:] = [0, 200]
    desk.set(1, in_flight=1, running=1, backlog_s=4.9)
    assert desk.decide() == [1, 0]  # 4.9 + 10 − 3 · 2 < 10
    desk.set(1, backlog_s=5.1)
    assert desk.decide() == [0, 1]  # above half a service beyond the least wait: 5.1 + 10 − 2 > 10


def test_a_cached_prompt_saves_no_more_than_the_work() -> None:
    desk = Desk(prompted(cluster(2)), policy("prefix-affinity"))
    desk.work["units"] = 1.0
    desk.state.prefix_tokens[:] = [1e9, 0.0]
    desk.set(0, in_flight=1, running=1, backlog_s=2.5)
    assert desk.decide() == [1, 0]


def test_without_prompts_prefix_affinity_is_least_expected_completion() -> None:
    desk = Desk(cluster(3, types=3, speeds=[1, 2, 4]), policy("prefix-affinity"))
    desk.state.prefix_tokens[:] = [900, 0, 0]  # no class has work units of a prompt token
    assert desk.decide() == [2, 1, 0]


def _one_hot_prompt(n: int = 600) -> tuple[Cluster, Requests]:
    """Every request begins with the same 10 blocks, which make half of its work; load .8 without any hit."""
    c = prompted(cluster(4))
    r = asked(c, np.arange(n) * (2.0 / 4 / 0.8), 2.0)
    blocks = np.tile(np.arange(10, dtype=np.int32), n)
    return c, replace(r, prefixes=Prefixes(blocks, np.arange(n + 1) * 10, np.full(n, 100.0), 10.0))


def _hot(spec: str) -> Driver:
    c, r = _one_hot_prompt()
    return run(c, r, Options(prefix_blocks=20), Decider.of(policy(spec)), mode="interpreted")


def test_without_escape_a_hot_prompt_drowns_its_node_and_with_it_the_queue_stays_short() -> None:
    spiral, escaped = _hot("prefix-affinity(weight=1e9,escape=1e9)"), _hot("prefix-affinity")
    rows = spiral.state.requests
    assert set(rows["node_idx"].tolist()) == {0}  # one node, at 1.6 requests a second of which it serves one
    waits_s = (rows["start_s"] - spiral.state.work["arrival_s"])[[149, 299, 449, 599]]
    assert np.diff(waits_s) == pytest.approx(np.full(3, 150 * (1.0 - 1 / 1.6)), rel=1e-6)  # grows for ever
    rows = escaped.state.requests
    assert set(rows["node_idx"].tolist()) == {0, 1}  # as many as it takes: each serves one a second
    assert (rows["start_s"] - escaped.state.work["arrival_s"]).max() <= 2.0 + 1e-9
    hit_frac = count(escaped, "cached_tokens") / count(escaped, "prompt_tokens")
    assert hit_frac >= 1.0 - 2 / 600  # each node computed the prompt once


# --- E2


def asks(desk: Desk, prompt: float, cached: list[float], units: float = 10.0) -> list[int]:
    """Candidates for a prompt of so many tokens, of which nodes have so many."""
    desk.state.contexts["prompt_tokens"] = prompt
    desk.state.prefix_tokens[:] = cached
    desk.work["units"] = units
    return desk.decide()


def test_e2_exploits_only_what_is_most_of_the_prompt() -> None:
    desk = Desk(prompted(cluster(3)), E2(rebalance=math.inf))
    assert asks(desk, 900.0, [0, 0, 0], units=30.0)[0] == 0  # all equal; node 0 has 30 s of work now
    assert asks(desk, 900.0, [500, 0, 0]) == [0]  # 500 > 400: where it is, whatever the load
    assert asks(desk, 900.0, [400, 0, 0])[0] == 1  # 400 < 500: the least load
    assert asks(desk, 900.0, [500, 0, 500]) == [2, 0]  # of both the one of less load
    assert asks(desk, 0.0, [0, 0, 0])[0] == 2  # 30 + 5, 10 and 5 s so far


def test_e2_counts_what_it_would_evict() -> None:
    """Node 0 found all of its prompts cached, so what it evicts will be computed again; node 1 nothing."""
    desk = Desk(prompted(cluster(2)), E2(rebalance=math.inf))
    asks(desk, 100.0, [100, 0], units=6.0)  # 6 − 1 s
    asks(desk, 100.0, [0, 101], units=6.0)  # 6 − 1 s at node 1
    assert asks(desk, 1000.0, [0, 0])[0] == 0  # equal: work of 5 s, everything cached
    desk = Desk(prompted(cluster(2)), E2(rebalance=math.inf))
    asks(desk, 100.0, [100, 0], units=6.0)  # node 0: 5 s of work, all cached: evictions cost once more
    assert asks(desk, 400.0, [0, 0], units=9.0) == [1, 0]  # 0 + 4 against 5 + 2 × 4
    asks(desk, 100.0, [100, 0], units=2.0)  # 6 s and 9 s
    assert asks(desk, 200.0, [0, 0]) == [0, 1]  # 6 + 2 × 2 = 10 against 9 + 2 = 11
    asks(desk, 100.0, [100, 0], units=2.0)
    assert asks(desk, 0.0, [0, 0]) == [1, 0]


def test_e2_moves_requests_from_the_node_of_most_load() -> None:
    desk = Desk(prompted(cluster(2)), policy("e2(rebalance=2)"))
    asks(desk, 100.0, [100, 0], units=11.0)  # 10 s of work at node 0
    asks(desk, 100.0, [0, 100], units=7.0)  # 6 s at node 1
    assert asks(desk, 100.0, [100, 0], units=2.0) == [0]  # 10 < 2 × 6
    asks(desk, 100.0, [100, 0], units=3.0)  # 11 + 2 = 13 s
    assert asks(desk, 100.0, [100, 0]) == [1, 0]  # 13 > 2 × 6: 6 + 1 + its evictions of 1 is less


def test_e2_forgets_work_that_has_left_the_window() -> None:
    desk = Desk(prompted(cluster(2)), E2(window_s=16.0, rebalance=math.inf))
    assert asks(desk, 0.0, [0, 0])[0] == 0
    for now_s, node in ((15.9, 1), (16.1, 0)):  # node 0 is charged at 0 s and has none of it from 16 s on
        desk.at(now_s)
        fresh = Desk(prompted(cluster(2)), E2(window_s=16.0, rebalance=math.inf))
        assert asks(fresh, 0.0, [0, 0])[0] == 0
        fresh.at(now_s)
        assert asks(fresh, 0.0, [0, 0])[0] == node


class PlainE2:
    """The rule over a list of all that was sent, with sums made anew for every request."""

    def __init__(self, nodes: int, window_s: float, rebalance: float) -> None:
        self.sent: list[tuple[int, int, float, float, float]] = []  # step, node, work, cached, prompt
        self.nodes, self.step_s, self.rebalance = range(nodes), window_s / 16, rebalance

    def ask(self, now_s: float, prompt: float, cached: list[float], units: float) -> int:
        step = int(now_s // self.step_s)
        recent = [row for row in self.sent if row[0] > step - 16]
        total = [[sum(row[k] for row in recent if row[1] == j) for j in self.nodes] for k in (2, 3, 4)]
        work_s, hits, prompts = total

        def cost_s(j: int) -> float:
            prefill_s = TOKEN_UNITS * max(0.0, prompt - cached[j])
            reuse = hits[j] / prompts[j] if prompts[j] else 0.0
            return work_s[j] + prefill_s + reuse * prefill_s

        best = max(cached)
        owners = [j for j in self.nodes if cached[j] == best] if best > prompt - best else list(self.nodes)
        j = min(owners, key=lambda k: (cost_s(k), k))
        if best > prompt - best and work_s[j] == max(work_s) > self.rebalance * min(work_s):
            j = min(self.nodes, key=lambda k: (cost_s(k), k))
        self.sent.append((step, j, max(0.0, units - TOKEN_UNITS * cached[j]), cached[j], prompt))
        return j


def test_e2_against_the_rule_on_lists() -> None:
    nodes, rng = 4, np.random.default_rng(8)
    desk, plain = Desk(prompted(cluster(nodes)), policy("e2(window_s=40)")), PlainE2(nodes, 40.0, 2.0)
    has = np.zeros((12, nodes))  # tokens of each prompt that each node has, as if caches had no bound
    chosen, expected, now_s = [], [], 0.0
    for _ in range(600):
        now_s += float(rng.exponential(1.0))
        kind = int(rng.zipf(1.5)) % 12
        prompt, share = 200.0 + 16.0 * kind, rng.choice([0.25, 0.5, 1.0])
        cached = (has[kind] * share).tolist()
        units = float(rng.integers(4, 20))
        desk.at(now_s)
        chosen.append(asks(desk, prompt, cached, units)[0])
        expected.append(plain.ask(now_s, prompt, cached, units))
        has[kind, chosen[-1]] = prompt
    assert chosen == expected
    assert len(set(chosen)) == nodes


def test_e2_keeps_popular_prompts_where_they_are_and_spreads_new_ones() -> None:
    rng, n, c = np.random.default_rng(5), 800, prompted(cluster(4))
    r = asked(c, np.cumsum(rng.exponential(0.5, n)).tolist(), 1.2)
    kind = rng.integers(0, 16, n)  # 16 prompts of 100 tokens, of which no cache holds more than six
    blocks = (kind[:, None] * 10 + np.arange(10)).ravel().astype(np.int32)
    r = replace(r, prefixes=Prefixes(blocks, np.arange(n + 1) * 10, np.full(n, 100.0), 10.0))
    hits = {}
    for spec in ("e2", "least-connections"):
        d = run(c, r, Options(prefix_blocks=60), Decider.of(policy(spec)), mode="interpreted")
        hits[spec] = count(d, "cached_tokens") / count(d, "prompt_tokens")
        assert len(set(d.state.requests["node_idx"].tolist())) == 4
    assert hits["e2"] > 0.8 > 0.6 > hits["least-connections"]


# --- locality


def near_and_far() -> Desk:
    """Node 0 holds the model, which takes 8 s to load elsewhere; the work itself takes 4 s."""
    desk = Desk(cluster(3, models=1, load_s=8.0), policy("locality"))
    desk.work["units"], desk.work["model_idx"], desk.work["arrival_s"] = 4.0, 0, 0.0
    desk.state.resident[:, 0] = [1, 0, 0]
    return desk


def test_locality_goes_where_the_model_is() -> None:
    assert near_and_far().decide() == [0, 1, 2]


def test_locality_waits_a_quarter_of_what_it_gains() -> None:
    desk = near_and_far()
    desk.set(0, in_flight=1, running=1, backlog_s=1.9)
    assert desk.decide() == [0, 1, 2]  # 1.9 s for 8
    desk.set(0, backlog_s=2.1)
    assert desk.decide() == [1, 2]
    desk.set(0, backlog_s=1.9)
    desk.work["arrival_s"] = -0.2
    assert desk.decide() == [1, 2]  # it has waited .2 s already


def test_locality_holds_one_request_for_a_full_node() -> None:
    desk = near_and_far()
    desk.set(0, in_flight=1, running=1, backlog_s=8.1, room=0)
    assert desk.decide() == [1, 2]
    desk.set(0, in_flight=1, running=1, backlog_s=1.0)
    assert desk.decide() == []
    assert desk.decide() == []  # offered again: the node was kept for it
    desk.work["serial"] = 7
    assert desk.decide() == [1, 2]  # for another it is not
    desk.at(1.5)
    desk.set(0, anchor_s=1.5)  # reported anew: the first did not come in time
    desk.work["arrival_s"] = 1.5
    assert desk.decide() == []


def test_locality_holds_nothing_where_no_node_is_free() -> None:
    desk = near_and_far()
    for j, backlog_s in enumerate([9.0, 0.5, 3.0]):
        desk.set(j, in_flight=1, running=1, backlog_s=backlog_s)
    assert desk.decide() == [1, 0, 2]  # 12.5, 13, 15
    desk.set(0, room=0)
    assert desk.decide() == [1, 2]


def test_locality_counts_the_round_trip() -> None:
    desk = Desk(cluster(4, zones=2, rtt_s=3.0), policy("locality"))
    desk.work["zone_idx"] = 1
    assert desk.decide() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    "spec",
    [
        "prefix-affinity(weight=0.5)",
        "prefix-affinity(escape=-1)",
        "locality(patience=-1)",
        "locality(hold=-1)",
    ],
)
def test_parameters_that_cannot_be_are_named(spec: str) -> None:
    with pytest.raises(UsageError, match=r"prefix-affinity\.(weight|escape)|locality"):
        find(spec)
