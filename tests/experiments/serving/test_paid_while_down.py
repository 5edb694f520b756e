"""What a fleet costs while a node is down, paid or not."""

from __future__ import annotations

import pytest

from trimtab.experiments.scenario.loader import parse_scenario
from trimtab.experiments.serving.run import simulate

SCENARIO = """
name: spot
cluster:
  types:
    owned: {memory_gib: 80, usd_per_hour: 3.0}
    spot: {memory_gib: 80, usd_per_hour: 1.0, paid_while_down: false}
  nodes: [{type: owned, count: 2}, {type: spot, count: 2}]
classes: {chat: {fixed_s: 0.2, unit_s: 0.02}}
workload:
  generate:
    requests: 100
    arrival: {process: poisson, rate_per_s: 1.0}
    mix: {chat: {share: 1.0, size: {distribution: constant, value: 20}}}
faults: [{node: NODE, at_s: 30, duration_s: 20}]
"""


@pytest.mark.parametrize(("node", "unpaid_s"), [("owned-1", 0.0), ("spot-1", 20.0)])
def test_a_node_that_is_down_is_paid_unless_its_type_says_otherwise(node: str, unpaid_s: float) -> None:
    run = simulate(parse_scenario(SCENARIO.replace("NODE", node)), "round-robin", mode="interpreted")
    window_s = run.records.end_s - run.records.start_s
    usd = (8.0 * window_s - 1.0 * unpaid_s) / 3600.0  # 2 × 3 + 2 × 1 USD an hour
    assert run.metrics["usd"] == pytest.approx(usd)
    assert run.metrics["usd_per_hour"] == pytest.approx(usd / window_s * 3600.0)
    assert run.metrics["usd_per_1k"] == pytest.approx(1000.0 * usd / 100)
