"""Sizing finds the fleet that a simulation of every fleet finds, and its margins are what they say."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.loader import scenario_on
from trimtab.experiments.serving.objectives import objectives_of
from trimtab.experiments.serving.run import simulate
from trimtab.experiments.serving.sizing import load_node_types, parse_node_types, size_fleet, with_counts

TYPES = """
types:
  fast: {memory_gib: 80, usd_per_hour: 3.1, speed: 2.0}
  slow: {memory_gib: 24, usd_per_hour: 1.0, speed: 0.7, slots: 1}
classes:
  chat: {unit_s: 1.0, slo_s: 6.0}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    rng = np.random.default_rng(5)
    arrival_s, size = np.cumsum(rng.exponential(0.5, 150)), rng.lognormal(0.0, 0.5, 150)
    rows = "".join(f"{t},{x}\n" for t, x in zip(arrival_s - arrival_s[0], size, strict=True))
    (tmp_path / "t.csv").write_text("arrival_s,size\n" + rows)
    (tmp_path / "types.yaml").write_text(TYPES)
    return scenario_on(tmp_path / "t.csv", load_node_types(tmp_path / "types.yaml"))


def p99(scenario: Scenario, fast: int, slow: int) -> float:
    part = with_counts(scenario, {"fast": fast, "slow": slow})
    run = simulate(scenario.with_overrides(cluster=part), "late-binding", mode="interpreted")
    return float(run.metrics["completion_p99_s"])


def cost(fast: int, slow: int) -> float:
    return 3.1 * fast + 1.0 * slow


def test_simulating_every_fleet_finds_no_cheaper_one(scenario: Scenario) -> None:
    done = size_fleet(scenario, objectives_of("completion_p99<5s"), nodes_max=4)
    every = [(f, s) for f, s in itertools.product(range(5), range(5)) if 0 < f + s <= 4]
    met = {mix for mix in every if p99(scenario, *mix) < 5.0}
    assert done.is_proven
    assert done.best is not None
    assert done.best.usd_per_hour == pytest.approx(min(cost(*mix) for mix in met))
    assert tuple(done.best.nodes.values()) in met
    assert len(done.fleets) < len(every)
    assert done.best.metrics["completion_p99_s"] == p99(scenario, *done.best.nodes.values())
    prices = [fleet.usd_per_hour for fleet in done.frontier()]
    assert prices == sorted(prices)


def test_a_failed_node_is_paid_and_serves_nothing(scenario: Scenario) -> None:
    plain = size_fleet(scenario, objectives_of("completion_p99<5s"), nodes_max=7)
    spare = size_fleet(scenario, objectives_of("completion_p99<5s"), nodes_max=7, fail=1)
    assert plain.best is not None
    assert spare.best is not None
    assert spare.best.usd_per_hour > plain.best.usd_per_hour
    fast, slow = spare.best.nodes.values()
    left = (fast - 1, slow) if fast else (fast, slow - 1)  # the strongest is gone
    assert spare.best.metrics["completion_p99_s"] == p99(scenario, *left) < 5.0
    unpaid = parse_node_types(TYPES.replace("speed: 2.0", "speed: 2.0, paid_while_down: false"))
    spot = size_fleet(
        scenario.with_overrides(cluster=unpaid), objectives_of("completion_p99<5s"), nodes_max=7, fail=1
    )
    assert spot.best is not None
    every = [(f, s) for f, s in itertools.product(range(8), range(8)) if 1 < f + s <= 7]
    costs = [
        cost(f, s) - (3.1 if f else 0.0)
        for f, s in every
        if p99(scenario, max(f - 1, 0), s if f else s - 1) < 5.0
    ]
    assert spot.best.usd_per_hour == pytest.approx(min(costs))
    assert spot.is_proven


def test_growth_is_a_faster_trace_and_a_budget_gives_the_nearest_miss(scenario: Scenario) -> None:
    done = size_fleet(scenario, objectives_of("completion_p99<5s"), nodes_max=9, growth=2.0)
    assert done.best is not None
    plain = size_fleet(scenario, objectives_of("completion_p99<5s"), nodes_max=9)
    assert plain.best is not None
    assert done.best.usd_per_hour > plain.best.usd_per_hour
    assert done.span_s == pytest.approx(plain.span_s / 2)
    poor = size_fleet(scenario, objectives_of("completion_p99<5s"), usd_per_hour_max=3.5)
    assert poor.best is None
    assert poor.nearest.usd_per_hour <= 3.5
    assert poor.nearest.overshoot == min(fleet.overshoot for fleet in poor.fleets) > 0


def test_what_cannot_be_sized_is_refused(scenario: Scenario) -> None:
    with pytest.raises(UsageError, match="a load follows the nodes"):
        size_fleet(scenario.with_overrides(load=0.5), objectives_of("completion_p99<5s"))
    with pytest.raises(UsageError, match="pay for the work alone"):
        size_fleet(scenario, objectives_of("completion_p99<5s"), usd_per_hour_max=0.5)
    free = with_counts(scenario, {"fast": 1})
    types = {name: kind.model_copy(update={"usd_per_hour": 0.0}) for name, kind in free.cluster.types.items()}
    unpriced = free.model_copy(update={"cluster": free.cluster.model_copy(update={"types": types})})
    with pytest.raises(UsageError, match="price above 0"):
        size_fleet(scenario.with_overrides(cluster=unpriced), objectives_of("completion_p99<5s"))


POOLS = """
types:
  reader: {memory_gib: 80, usd_per_hour: 4, service: {kind: llm, profile: h100-llama-3.1-8b, role: prefill}}
  maker: {memory_gib: 48, usd_per_hour: 1.5, service: {kind: llm, profile: l40s-llama-3.1-8b, role: decode}}
  quick: {memory_gib: 80, usd_per_hour: 4, service: {kind: llm, profile: h100-llama-3.1-8b, role: decode}}
classes:
  chat: {unit: output token, prompt_token_units: 0.05, disaggregated: true}
"""


def test_nodes_of_both_pools_are_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = "".join(f"{t / 6},{2000 + int(900 * x)},120\n" for t, x in enumerate(rng.random(120)))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    (tmp_path / "types.yaml").write_text(POOLS)
    pools = scenario_on(tmp_path / "t.csv", load_node_types(tmp_path / "types.yaml"))
    objectives = objectives_of("ttft_p99<0.5s, tpot_p99<30ms")
    done = size_fleet(pools, objectives, nodes_max=6)

    def is_met(reader: int, maker: int, quick: int) -> bool:
        part = with_counts(pools, {"reader": reader, "maker": maker, "quick": quick})
        metrics = simulate(pools.with_overrides(cluster=part), "late-binding").metrics
        return all(objective.overshoot(metrics) <= 0.0 for objective in objectives)

    every = [
        (r, m, q) for r, m, q in itertools.product(range(1, 6), range(6), range(6)) if 1 < r + m + q <= 6
    ]
    every = [mix for mix in every if mix[1] + mix[2] > 0]
    cheapest = min((mix for mix in every if is_met(*mix)), key=lambda mix: np.dot((4.0, 1.5, 4.0), mix))
    assert done.is_proven
    assert done.best is not None
    assert tuple(done.best.nodes.values()) == cheapest
    assert cheapest[0] != cheapest[1] + cheapest[2]
    assert len(done.fleets) < len(every)
    assert all(sum(fleet.nodes.values()) <= 6 for fleet in done.fleets)
    with pytest.raises(ScenarioError, match=r"disaggregated: has no nodes for a role \(got 'decode'\)"):
        size_fleet(
            pools.with_overrides(cluster=parse_node_types(POOLS.replace("role: decode", "role: prefill"))),
            objectives,
        )
