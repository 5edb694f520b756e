"""Timing of decisions and plans: what is measured, and that measuring changes nothing that it should not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests
from trimtab.compiled.kernel import kernel
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Memory, empty_plan, memory
from trimtab.engine.driver import Driver
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.serving.policy_timing import decision_s, time_policies

PLAN_S = 0.003


@dataclass(frozen=True)
class SlowPlanner(Policy):
    """Takes its time over plans; counts its decisions and what changed between them."""

    plan_period_s: float = 20.0

    def init(self, cluster: Any) -> Memory:
        return memory(ints=2)

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        time.sleep(PLAN_S)
        return empty_plan()

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        memory.ints[0] += 1
        memory.ints[1] += view.context.n_changed
        ranking[0] = work.serial % view.context.n_nodes
        return 1


def test_plans_are_timed_and_policies_left_as_they_are() -> None:
    policy = SlowPlanner()
    (timing,) = time_policies(load_scenario("tiny"), [policy], seed=0)
    assert timing.n_nodes == 6
    assert timing.plans >= 2
    assert PLAN_S <= timing.plan_mean_s <= timing.plan_max_s
    assert timing.decision_s > 0.0
    assert "plan" not in vars(policy)


def test_decisions_repeated_are_decisions_each_after_a_change_of_two_nodes() -> None:
    c, policy = cluster(5), SlowPlanner(plan_period_s=0.0)
    driver = Driver(c, requests(c, 50), Options(dispatchers=2), Decider.of(policy), mode="compiled")
    driver.advance(1e9, 20)
    decided, in_flight = driver.state.memories[0].ints[0], np.sort(driver.state.nodes["in_flight"])
    changed = driver.state.memories[0].ints[1]
    assert decision_s(driver) > 0.0
    decisions = driver.state.memories[0].ints[0] - decided
    assert decisions > 1000
    assert 2 * decisions <= driver.state.memories[0].ints[1] - changed <= 2 * decisions + 5
    np.testing.assert_array_equal(np.sort(driver.state.nodes["in_flight"]), in_flight)  # nodes only trade


def test_an_interpreted_run_is_not_timed() -> None:
    c = cluster(2)
    driver = Driver(c, requests(c, 10), Options(), Decider.of(SlowPlanner()), mode="interpreted")
    with pytest.raises(RuntimeError, match="interpreted"):
        decision_s(driver)


def test_the_table_shows_what_made_no_plan_as_such() -> None:
    from rich.console import Console

    from trimtab.report.terminal_tables import timing_table

    timings = time_policies(load_scenario("tiny"), ["round-robin", SlowPlanner()], seed=0)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(timing_table(timings))
    text = capture.get()
    assert "decision" in text
    row = next(line.split() for line in text.splitlines() if "round-robin" in line)
    assert row[2:] == ["0", "–", "–"]
