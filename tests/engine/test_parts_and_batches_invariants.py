"""Splitting and batching in random scenarios with everything on: nothing is lost, and off means off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.invariants import check_every_moment
from support.same_state import differences
from support.scenarios import Case, case
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.driver import Driver

EVENTS_MOST = 200
OFF = {
    "runs",
    "groups",
    "stages",
    "stage_specs",
    "recent",
    "held_rows",
    "held_at",
    "class_in_flight",
    "join_s",
    "batch",
    "batch_marginal",
    "queues",
    "config",
    "work",
    "requests",
    "truth",
    "events",
}

numbers = st.integers(0, 1 << 40)


def with_both(given_case: Case, seed: int) -> tuple[Case, Plan]:
    """The case with requests of up to 4 parts, classes that can be batched, and a plan that asks for it."""
    pick = np.random.default_rng(seed)
    classes = len(given_case.cluster.class_names)
    given_case.requests.work["parts_max"] = pick.integers(0, 5, len(given_case.requests))
    options = replace(
        given_case.options,
        join_s=pick.choice([0.0, 0.25], classes) if pick.random() < 0.8 else None,
        batch_marginal_frac=pick.choice([-1.0, 0.0, 0.3], classes) if pick.random() < 0.8 else None,
    )
    plan = empty_plan()._replace(
        split_max=pick.integers(0, 5, classes),
        batch_max=pick.integers(0, 4, classes),
        batch_window_s=pick.choice([0.0, 0.5, 3.0], classes),
    )
    return replace(given_case, options=options), plan


def driver_of(c: Case, plan: Plan, mode: str = "interpreted") -> Driver:
    driver = c.driver(mode)
    driver.adopt(plan, 0.0)
    return driver


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(numbers)
def test_every_moment_adds_up(seed: int) -> None:
    c, plan = with_both(case(seed, n=20), seed)
    check_every_moment(driver_of(c, plan), c.options.telemetry_period_s, EVENTS_MOST)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(numbers)
def test_a_plan_of_ones_changes_no_bit(seed: int) -> None:
    """The mechanisms on, but at most one part and one of a batch: as if they were off."""
    c = case(seed, n=30)
    classes, n = len(c.cluster.class_names), len(c.requests)
    c.requests.work["parts_max"] = 4
    one = np.ones(classes, np.int64)
    plan = empty_plan()._replace(split_max=one, batch_max=one, batch_window_s=np.full(classes, 2.0))
    on = replace(c.options, join_s=np.ones(classes), batch_marginal_frac=np.full(classes, 0.5))
    plain, both = driver_of(c, empty_plan()), driver_of(replace(c, options=on), plan)
    for driver in (plain, both):
        driver.advance(max_steps=EVENTS_MOST)
    a, b = plain.state, both.state
    for name in ("ready", "n_held"):  # counted only where there may be runs
        b.counts[name] = 0
    assert a.counts.tobytes() == b.counts.tobytes()
    b = b._replace(work=b.work[:n].copy(), requests=b.requests[:n].copy())
    same = [f for f in differences(a, b) if f.split(".")[0] not in OFF]
    of_contexts = ("run_left_s", "run_path_s", "run_rest_s", "n_runs")
    only_of_runs = ("requests.next", "requests.child", *(f"contexts.{name}" for name in of_contexts))
    assert [f for f in same if f not in only_of_runs] == []
