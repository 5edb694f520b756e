"""Autoscalers by hand from their sources' formulas, and what pools do with their answers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.autoscaling.autoscaled_run import AutoscalingRecords, run_autoscaled
from trimtab.experiments.autoscaling.autoscalers import (
    AUTOSCALERS,
    Erlang,
    Fixed,
    Hpa,
    Keda,
    Knative,
    PoolState,
    Predictive,
    SloStaffing,
    canonical_autoscaler,
    find_autoscaler,
    settled,
)
from trimtab.experiments.autoscaling.autoscaling_kind import AUTOSCALING_KIND, AUTOSCALING_METRICS
from trimtab.experiments.kinds import load_any
from trimtab.forecast.queueing import erlang_c

GROUP = {"type": "gpu", "count": 6, "queue_max": 0}


def scenario(**changed: Any) -> dict[str, Any]:
    """400 requests of 8 to 12 s that come in two waves, on at most 6 nodes of 2 slots."""
    requests = {
        "cluster": {"types": {"gpu": {"memory_gib": 80, "slots": 2, "usd_per_hour": 3.6}}, "nodes": [GROUP]},
        "models": {"m": {"memory_gib": 30, "load_s": 5}},
        "classes": {"c": {"model": "m", "fixed_s": 8, "unit_s": 2, "slo_s": 40}},
        "workload": {
            "generate": {
                "requests": 400,
                "arrival": {"process": "diurnal", "rate_per_s": 0.5, "peak_to_trough": 8, "period_s": 400},
                "mix": {"c": {"share": 1, "size": {"distribution": "exponential", "mean": 1}}},
            }
        },
    }
    pools = {"gpu": {"least": 1, "start_s": 30}}
    return {"kind": "autoscaling", "requests": requests, "pools": pools, "period_s": 10} | changed


@cache
def run_of(rule: str, least: int = 1, cool_down_s: float = 0.0, start_s: float = 30.0) -> AutoscalingRecords:
    pools = {"gpu": {"least": least, "start_s": start_s, "cool_down_s": cool_down_s}}
    inputs = AUTOSCALING_KIND.build(load_any(scenario(pools=pools)), 0, None)
    return run_autoscaled(inputs, find_autoscaler(rule), "interpreted")


def pool(**changed: Any) -> PoolState:
    """Four nodes of two slots, of which five are in use; ten seconds a period."""
    flat = {
        name: np.full(12, value) for name, value in (("concurrency", 5.0), ("busy", 5.0), ("arrivals", 5.0))
    }
    given = {
        "now_s": 120.0,
        "period_s": 10.0,
        "start_s": 30.0,
        "ready": 4,
        "coming": 0,
        "slots": 2,
        "waiting": 0,
        "recent_s": np.full(50, 10.0),
        "slo_s": 40.0,
        "attained": np.full(12, 1.0),
        "answers": (),
    }
    return PoolState(**(given | flat | changed))


@pytest.mark.parametrize(
    ("used", "nodes"),
    [
        (5.6, 4),  # 0.70 of 8 slots: at the target
        (6.0, 4),  # ratio 1.07: within the tolerance of 0.1
        (7.2, 6),  # ratio 0.9 ÷ 0.7: ⌈4 · 1.286⌉
        (2.8, 2),  # ratio 0.5
        (0.0, 1),
    ],
)
def test_hpa_follows_the_published_formula(used: float, nodes: int) -> None:
    assert Hpa().wanted(pool(busy=np.array([used]))) == nodes


def test_hpa_counts_coming_nodes_when_it_scales_out_and_doubles_at_most() -> None:
    full = np.array([8.0])  # ratio 1 ÷ 0.7 of four ready nodes, and less with two that are coming
    assert Hpa().wanted(pool(busy=full, coming=2)) == 6
    assert Hpa(target=0.1).wanted(pool(busy=full)) == 8  # ⌈40⌉, but at most twice, or four more, in 15 s


def test_scale_in_waits_for_its_window() -> None:
    rule = Hpa(down_window_s=30.0)
    assert settled(pool(answers=(4, 4, 3, 2)), rule, 2) == 4  # the last three answers: 4, 3 and 2
    assert settled(pool(answers=(4, 3, 2, 2)), rule, 2) == 3
    assert settled(pool(answers=(9,)), rule, 2) == 4  # it never scales out by the past
    assert settled(pool(), rule, 7) == 7


def test_keda_divides_what_is_in_the_system_and_goes_to_zero_after_a_quiet_time() -> None:
    assert Keda().wanted(pool(concurrency=np.array([9.0]))) == 5
    assert Keda(target=3.0).wanted(pool(concurrency=np.array([9.0]))) == 2
    quiet = np.r_[1.0, np.zeros(30)]
    assert Keda().wanted(pool(concurrency=quiet)) == 0
    assert Keda().wanted(pool(concurrency=quiet[:30])) == 1  # 29 periods of 10 s, and one request before


def test_knative_panics_on_a_short_window_and_does_not_shrink_then() -> None:
    calm = np.full(12, 5.6)
    assert Knative().wanted(pool(concurrency=calm)) == 4  # ⌈5.6 ÷ (0.7 · 2)⌉
    surge = np.r_[calm, 14.0]  # 10 nodes by the panic window, 2.5 times those that serve
    assert Knative().wanted(pool(concurrency=surge)) == 10
    after = np.r_[surge, np.full(4, 1.0)]  # the surge is still within the stable window
    assert Knative().wanted(pool(concurrency=after, ready=4)) >= 4
    assert Knative().wanted(pool(concurrency=np.full(12, 0.0))) == 2  # at most to half in a step


def test_erlang_promises_the_wait() -> None:
    """Half a request a second of 10 s: 5 slots are offered; W = C(c, 5) · 10 ÷ (c − 5)."""
    for wait_s in (0.1, 2.0, 9.0):
        nodes = Erlang(wait_s=wait_s).wanted(pool())
        waits_s = {c: erlang_c(c, 5.0) * 10.0 / (c - 5.0) for c in range(6, 40)}
        assert waits_s[2 * nodes] <= wait_s
        if 2 * (nodes - 1) > 5:
            assert waits_s[2 * (nodes - 1)] > wait_s


def test_a_forecast_staffs_for_the_start_up_time() -> None:
    rising = np.repeat(np.arange(1.0, 33.0), 3)  # one request more each half minute
    later = Predictive(target=1.0, forecaster="holt").wanted(pool(arrivals=rising, start_s=120.0))
    soon = Predictive(target=1.0, forecaster="naive").wanted(pool(arrivals=rising, start_s=120.0))
    assert later > soon == math.ceil(3.2 * 10.0 / 2)


def test_staffing_for_the_goal_by_brute_force() -> None:
    """Steady arrivals, nothing waits, all in time: the least c whose tail of waits is within 1 − goal."""
    for goal in (0.9, 0.99, 0.999):
        found = SloStaffing(goal=goal, forecaster="naive").wanted(pool())
        late = {c: erlang_c(c, 5.0) * math.exp(-(c - 5.0) * 3.0) for c in range(6, 60)}
        least = min(c for c, share in late.items() if share <= 1.0 - goal)
        assert found == math.ceil(least / 2)


def test_staffing_grows_with_a_backlog_and_with_what_was_late() -> None:
    rule = SloStaffing(forecaster="naive")
    calm = rule.wanted(pool())
    assert rule.wanted(pool(waiting=200)) > calm
    assert rule.wanted(pool(attained=np.full(12, 0.5))) > calm


@pytest.mark.parametrize("name", AUTOSCALERS)
def test_every_rule_serves_all_and_pays_what_it_ordered(name: str) -> None:
    run = run_of(name)
    rows, nodes = run.requests.requests, run.requests.nodes
    assert rows.finished.all()
    assert (nodes.up_s >= nodes.busy_slot_s / 2 - 1e-6).all()  # no node works unpaid
    assert run.node_hours == pytest.approx(float(nodes.up_s.sum()) / 3600.0)
    found = AUTOSCALING_KIND.measure(run)
    assert list(found) == list(AUTOSCALING_METRICS)
    assert found["usd"] == pytest.approx(3.6 * run.node_hours)
    assert 1.0 <= found["nodes_most"] <= 6.0


def test_all_nodes_cost_most_and_serve_best() -> None:
    most = AUTOSCALING_KIND.measure(run_of("fixed"))
    for name in AUTOSCALERS:
        found = AUTOSCALING_KIND.measure(run_of(name))
        assert found["usd"] <= most["usd"] + 1e-9
        assert found["completion_mean_s"] >= most["completion_mean_s"] - 1.0  # it loads no model later


def test_a_node_serves_after_its_start_up_time_only() -> None:
    """The first request that a node which was ordered serves begins after the order and the time to start."""
    run = run_of("hpa", start_s=90.0)
    rows = run.requests.requests
    later = [j for j in range(1, 6) if (rows.node_idx == j).any()]
    assert later
    assert all(float(rows.start_s[rows.node_idx == j].min()) >= 90.0 for j in later)


def test_it_scales_to_zero_and_back() -> None:
    run = run_of("keda(cooldown_s=20,down_window_s=20)", least=0)
    assert run.requests.requests.finished.all()
    assert run.nodes_paid.min() == 0.0 or run.starts > 1


def test_a_cool_down_makes_fewer_changes() -> None:
    rule = "knative(stable_s=20)"
    assert run_of(rule, cool_down_s=200.0).starts <= run_of(rule).starts


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"pools": {"gpu": {"least": 5, "most": 2}}}, ("pools.gpu.least", "5", "at most 2")),
        ({"pools": {"gpu": {"most": 99}}}, ("pools.gpu.most", "99", "6 nodes")),
        ({"pools": {"cpu": {}}}, ("pools.cpu", "gpu")),
        ({"pools": {"gpu": {"initial": 0}}}, ("pools.gpu.initial", "0", "from 1 to 6")),
        ({"pools": {"gpu": {"start_s": -1}}}, ("pools.gpu.start_s", "-1")),
        ({"serve_with": "nothing"}, ("serve_with", "nothing")),
    ],
)
def test_bad_files_are_told(changed: dict[str, Any], told: tuple[str, ...]) -> None:
    with pytest.raises(ScenarioError) as caught:
        AUTOSCALING_KIND.read(load_any(scenario(**changed)), load=None, policies=None, seeds=None)
    assert all(word in str(caught.value) for word in told)


def test_rules_by_name() -> None:
    assert canonical_autoscaler("hpa(target=0.7)") == "hpa"
    assert canonical_autoscaler("fixed(nodes=3)") == "fixed(nodes=3)"
    assert find_autoscaler(Fixed(2)) == Fixed(2)
    for wrong in ("none", "hpa(goal=1)", "hpa(target=2)"):
        with pytest.raises(UsageError):
            find_autoscaler(wrong)
