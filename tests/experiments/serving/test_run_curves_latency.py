"""Completion over time, and the marks of what happened to nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.faults import fault_times
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.scenario.loader import parse_scenario
from trimtab.experiments.scenario.scenario_changes import WhatIf, with_what_if
from trimtab.experiments.serving.run import simulate
from trimtab.policies.static.random import Random
from trimtab.policies.static.round_robin import RoundRobin


def test_latency_is_the_mean_of_each_bin_and_failures_are_marked() -> None:
    changed = with_what_if(load_scenario("tiny"), WhatIf(fail=["node[0]@50+60"], slow=["slow@100+20x0.5"]))
    run = simulate(changed, "round-robin", mode="interpreted")
    curves = run.curves
    assert curves.marks == ((50.0, 110.0, "fast-1 down"), (100.0, 120.0, "4 nodes at 50 %"))
    table = run.requests.filter(run.requests["status"] == "finished")
    arrival_s, completion_s = (
        table["arrival_s"].to_numpy(),
        (table["finish_s"] - table["arrival_s"]).to_numpy(),
    )
    k = int(np.flatnonzero(np.isfinite(curves.latency_s))[3])
    low_s, high_s = curves.edges_s[k], curves.edges_s[k + 1]
    mine = (arrival_s >= low_s) & (arrival_s < high_s)
    assert curves.latency_s[k] == pytest.approx(completion_s[mine].mean())


RECURRING = """
name: failing
cluster:
  types: {a100: {memory_gib: 80, slots: 2}}
  nodes: [{type: a100, count: COUNT}]
classes: {chat: {fixed_s: 0.2, unit_s: 0.02}}
workload:
  generate:
    requests: 400
    arrival: {process: poisson, rate_per_s: 0.5}
    mix: {chat: {share: 1.0, size: {distribution: constant, value: 20}}}
faults: [{type: a100, mtbf_s: 200, mttr_s: 40}]
"""


def test_failures_that_recur_are_marked_where_the_run_has_them() -> None:
    run = simulate(parse_scenario(RECURRING.replace("COUNT", "1")), "round-robin", seed=3, mode="interpreted")
    start_s, end_s = run.records.start_s, run.records.end_s
    down_s = sum(max(0.0, min(b, end_s) - max(a, start_s)) for a, b, _ in run.curves.marks)
    assert run.records.nodes.up_s[0] == pytest.approx(end_s - start_s - down_s)
    assert 2 <= len(run.curves.marks) <= 20
    assert {name for *_, name in run.curves.marks} == {"a100-1 down"}


def test_many_failures_are_joined_and_cover_the_same_time() -> None:
    run = simulate(
        parse_scenario(RECURRING.replace("COUNT", "12")), "round-robin", seed=3, mode="interpreted"
    )
    marks = run.curves.marks
    edges_s = run.curves.edges_s
    every = [(a, b) for _, a, b in fault_times(run.inputs.options.faults, 3, float(edges_s[-1]))]
    assert len(every) > 20
    assert all(any(low <= a and b <= high for low, high, _ in marks) for a, b in every)
    assert all(later[0] - earlier[1] >= 2 * (edges_s[1] - edges_s[0]) for earlier, later in pairwise(marks))
    assert any("nodes down" in name for *_, name in marks)


@dataclass(frozen=True)
class Turning(Policy):
    """A composite that takes its candidates in turn, 20 s each."""

    name: ClassVar[str] = "turning"
    plan_period_s: float = 20.0

    dispatch = staticmethod(Random.dispatch)

    @property
    def candidates(self) -> tuple[Policy, ...]:
        return (Random(), RoundRobin())

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        return empty_plan()._replace(active_idx=np.array([round(view.context.now_s / 20.0) % 2]))


def test_switches_of_a_composite_are_kept_with_their_times() -> None:
    run = simulate("tiny", Turning(), mode="interpreted")
    times_s, names = zip(*run.curves.switches, strict=True)
    assert list(times_s[:3]) == pytest.approx([20.0, 40.0, 60.0])
    assert names[:3] == ("round-robin", "random", "round-robin")
