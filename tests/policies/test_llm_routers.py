"""Routers of requests to language models: decisions worked out by hand, with and without engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.dispatch_by_hand import Desk
from support.engines import engine_cluster, finished, model_type, token_requests
from trimtab.domain.needs import Need
from trimtab.domain.policy import Decider
from trimtab.engine.provided import SIMULATOR
from trimtab.policies import find, names, policy_class
from trimtab.policies.shared.engine_load import N_TIMES, token_times

ROUTERS = [name for name in names("dispatch") if Need.ENGINE_LOAD in policy_class(name).needs]


def desk(
    spec: str, kinds: list[dict[str, Any]] | None = None, *, prompt: int = 100, output: int = 50, n: int = 2
) -> Desk:
    """A request of so many tokens before n engines, where a prompt token takes 1 ms."""
    kinds = kinds or [model_type(kv_tokens=10_000, batch_max=64)]
    c = engine_cluster(kinds, [j % len(kinds) for j in range(n)], slots=8)
    made = Desk(c, find(spec).dispatch)
    made.work["input_tokens"], made.work["output_tokens"] = prompt, output
    made.state.engine_load["step_s"] = 0.01
    return made


def report(made: Desk, j: int, *, cached: float | None = None, in_flight: int = 0, **load: float) -> None:
    for name, value in load.items():
        made.state.engine_load[name][j] = value
    made.set(j, in_flight=in_flight, running=min(in_flight, 8))
    if cached is not None:
        made.state.prefix_tokens[j] = cached


def test_kv_cost_weighs_what_is_to_be_read_against_what_is_held() -> None:
    for weight, first in ((1.0, 1), (0.0, 0)):  # 1,100 + 1,100 against 100 + 1,600; then 1,100 against 1,600
        made = desk(f"kv-cost(overlap_weight={weight})")
        report(made, 0, waiting_tokens=1000)
        report(made, 1, kv_used=1500)
        assert made.decide([0.5]) == [first, 1 - first]
    report(made, 1, kv_used=1000, kv_per_s=20.0)
    made.adopt(find("kv-cost").dispatch)
    made.at(60.0)  # the memory of node 1 has grown to 2,200 tokens
    assert made.decide([0.5]) == [0, 1]


def test_kv_cost_counts_what_is_cached_only_once_to_read() -> None:
    made = desk("kv-cost", prompt=1000)
    report(made, 0, kv_used=900)
    report(made, 1, kv_used=2000, cached=2000.0)  # one token is always read
    assert made.decide([0.5]) == [1, 0]
    assert made.score() == 2002.0


def test_kv_cost_draws_the_first_candidate_by_temperature() -> None:
    made = desk("kv-cost(temperature=1)")
    report(made, 1, kv_used=500)
    share = 1.0 / (1.0 + np.exp(-1.0))
    assert made.decide([share - 0.01]) == [0, 1]
    assert made.decide([share + 0.01]) == [1, 0]


def test_scorers_add_up_with_the_published_weights() -> None:
    made = desk("scorers", n=3)
    report(made, 0, kv_used=5000)  # 2 · 1 + 2 · 0.5
    report(made, 1, in_flight=10)  # 2 · 0 + 2 · 1
    report(made, 2, in_flight=9, kv_used=5000, cached=50.0)  # 3 · 0.5 + 2 · 0.5 + 2 · 0.5
    assert made.decide([0.0]) == [2, 0, 1]
    assert made.score() == pytest.approx(-3.5 - 1.0, abs=1e-6)  # no adapter is asked for


def test_scorers_turn_among_equals() -> None:
    made = desk("scorers", n=4)
    assert [made.decide([u])[0] for u in (0.0, 0.3, 0.6, 0.9)] == [0, 1, 2, 3]


def test_cache_aware_follows_prefixes_until_the_load_is_out_of_balance() -> None:
    made = desk("cache-aware(balance_abs_threshold=4)")
    report(made, 0, cached=40.0, in_flight=4)
    assert made.decide() == [0, 1]
    report(made, 0, cached=40.0, in_flight=5)
    assert made.decide() == [1, 0]
    report(made, 0, cached=20.0, in_flight=1)  # too little is cached: by what was sent, 60 and 100 new tokens
    assert made.decide() == [0, 1]
    assert made.decide() == [1, 0]


def test_predicted_latency_takes_the_least_headroom_that_is_enough() -> None:
    fast, slow = model_type(kv_tokens=10_000), model_type(kv_tokens=10_000, token_s=0.004)
    for ttft_slo_s, first in ((0.0, 0), (1.0, 1), (0.3, 0), (0.01, 0)):  # the slow one takes 0.4 s
        made = desk(f"predicted-latency(ttft_slo_s={ttft_slo_s})", [fast, slow])
        assert made.decide([0.5, 0.5])[0] == first


def test_predicted_latency_derives_an_slo_from_a_deadline() -> None:
    fast, slow = model_type(kv_tokens=10_000), model_type(kv_tokens=10_000, token_s=0.004)
    made = desk("predicted-latency", [fast, slow])
    made.work["deadline_s"] = 100.0
    assert made.decide([0.5, 0.5])[0] == 1


def test_predicted_latency_keeps_to_caches_but_for_some() -> None:
    made = desk("predicted-latency")
    report(made, 1, cached=90.0, in_flight=5, waiting_tokens=500.0)
    assert made.decide([0.5, 0.5]) == [1]
    assert made.decide([0.0, 0.5]) == [0, 1]
    made.adopt(find("predicted-latency(pick=weighted)").dispatch)
    assert [made.decide([0.0, u])[0] for u in (0.6, 0.7)] == [0, 1]  # weights 2 and 1


def test_llm_headroom_sends_a_request_that_is_late_anyway_where_it_delays_the_fewest() -> None:
    made = desk("llm-headroom(ttft_s=1,tpot_s=0.1)", prompt=900)
    report(made, 0, waiting_tokens=100.0, in_flight=30, decoding=30)
    report(made, 1, waiting_tokens=9000.0, in_flight=30, decoding=30)
    made.work["input_tokens"] = 100
    assert made.decide() == [0, 1]
    made.work["input_tokens"] = 2000
    assert made.decide() == [1, 0]
    made.adopt(find("llm-headroom(ttft_s=1,tpot_s=0.1,others=0)").dispatch)
    assert made.decide() == [0, 1]


def test_llm_headroom_weighs_both_targets() -> None:
    for targets, first in (("ttft_s=0.3,tpot_s=1", 1), ("ttft_s=60,tpot_s=0.02", 0)):
        made = desk(f"llm-headroom({targets})")
        report(made, 0, waiting_tokens=400.0, in_flight=1)
        report(made, 1, kv_used=1000, in_flight=12, decoding=12, step_s=0.021)
        assert made.decide()[0] == first


def test_times_of_tokens_come_from_profiles_and_else_from_estimates() -> None:
    kinds = [model_type(context_s=1e-6, batch_max=8, token_budget=64), {}]
    c = replace(engine_cluster(kinds, [0, 1]), prompt_token_units=np.array([0.2]))
    profile, none = token_times(c)[:-1].reshape(-1, N_TIMES)
    assert profile == pytest.approx([(0.01 + 64 * 0.001) / 64, 1e-6, 0.011, 64])
    assert none.tolist() == [0.0, 0.0, 0.0, np.inf]
    assert token_times(replace(c, engines=None)).tolist() == [*none, *none, 0.2]


@pytest.mark.parametrize("name", ROUTERS)
def test_without_engines_a_router_says_what_it_does_and_takes_the_least_busy(name: str) -> None:
    policy = find(name).dispatch
    effects = {found.need for found in Decider.of(policy).degraded(SIMULATOR, SIMULATOR.always())}
    assert {Need.ENGINE_LOAD, Need.TOKENS} <= effects
    made = Desk(cluster(3), policy)
    for j, busy in enumerate((3, 0, 2)):
        made.set(j, in_flight=busy, running=min(busy, 1), outstanding_s=float(busy), backlog_s=float(busy))
    assert made.decide([0.5, 0.5]) == [1, 2, 0]


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_sends_more_to_the_faster_of_two_engines(name: str) -> None:
    """At a load where the slow engine alone can't follow, no router of these sends half of the work there."""
    kinds = [model_type(kv_tokens=4000), model_type(kv_tokens=4000, step_s=0.04, token_s=0.004)]
    c = engine_cluster(kinds, [0, 1])
    g = np.random.default_rng(3)
    r = token_requests(
        c, np.cumsum(g.exponential(0.1, 300)), g.integers(10, 100, 300), g.integers(5, 40, 300)
    )
    rows = finished(c, r, name).state.requests
    assert (rows["node_idx"] == 0).mean() > 0.6
