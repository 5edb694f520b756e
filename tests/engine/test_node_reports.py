"""What a live host writes into a state from outside: views, change logs, rollouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from trimtab.domain.options import Options
from trimtab.domain.planning import Variant
from trimtab.domain.policy import Decider
from trimtab.domain.view import new_work
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.policies import find

PLAIN = cluster(2, types=2)
TWO = replace(
    PLAIN,
    fixed_s=np.array([[1.0, 2.0]]),
    unit_s=np.zeros((1, 2)),
    item_names=(),
    item_gib=np.zeros(0),
    item_is_adapter=np.zeros(0, np.uint8),
    load_s=np.zeros((0, 2)),
    type_idx=np.array([0, 1]),
    slots=np.array([4, 4]),
    weight=np.ones(2),
    queue_max=np.zeros(2, np.int64),
    zone_names=("a", "b"),
    zone_idx=np.array([0, 1]),
    rtt_s=np.zeros((2, 2)),
    zone_gib_per_s=np.full(2, np.inf),
    resource_names=("cpu_cores",),
    capacity=np.full((2, 1), 8.0),
    demand=np.ones((1, 1)),
)
BUSY = np.array([[7.75], [0.0]])
AGES = np.array([0.5, np.inf])  # when they were reported


def live(policy: str, **options: Any) -> LiveDriver:
    assert len(PLAIN.class_names) == 1
    return LiveDriver(TWO, Options(), Decider.of(*find(policy)), rows=16, mode="interpreted", **options)


def started(driver: LiveDriver, spec: RequestSpec, now_s: float) -> int:
    """Where a request starts; -1 = it waits."""
    driver.enter(spec, now_s)
    driver.advance(now_s)
    found = driver.take_started()
    return found[0][1] if found else -1


def test_what_others_use_is_seen_and_bounds_no_request() -> None:
    driver = live("load-aware")
    assert started(driver, RequestSpec(0, 1.0), 0.0) == 0
    driver.reports.set_used(np.array([[8.75], [0.0]]), AGES, 1.0)
    driver.advance(1.0)
    assert driver.view().used.tolist() == [[8.75], [0.0]]
    assert driver.view().use_reported_s.tolist() == [0.5, np.inf]
    assert started(driver, RequestSpec(0, 1.0), 1.0) == 1
    driver.switch(1, up=False, now_s=2.0)
    assert started(driver, RequestSpec(0, 1.0), 2.0) == 0, "full by what it reports: the policy decides"
    driver.complete(0, 3.0)
    driver.advance(3.0)
    assert driver.view().used.tolist() == [[8.75], [1.0]], "each gives back what it took"


@pytest.mark.parametrize("many", [1, 2])
def test_changes_reach_the_log_of_every_policy_once(many: int) -> None:
    driver = live("fragmentation-gradient", shadow=find("random")[0])
    assert started(driver, RequestSpec(0, 1.0), 0.0) >= 0
    for k in range(many):
        driver.reports.set_used(np.array([[0.0], [1.0 + k]]), AGES, 1.0)
    state = driver.state
    logs = [state.changed[d][: int(n)].tolist() for d, n in enumerate(state.contexts["n_changed"])]
    assert [sorted(log) for log in logs] == [[0, 1], [0, 1]] or [sorted(log) for log in logs] == [[1], [1]]
    assert all(len(set(log)) == len(log) for log in logs)


def test_a_demand_that_changes_is_taken_from_then_on() -> None:
    driver = live("best-fit")
    assert started(driver, RequestSpec(0, 1.0), 0.0) == 0
    driver.reports.set_demand(np.array([[5.0]]), 1.0)
    driver.reports.set_used(np.array([[5.0], [0.0]]), AGES, 1.0)
    assert started(driver, RequestSpec(0, 1.0), 1.0) == 1, "it fits no longer beside the first"
    assert driver.view().used.tolist() == [[5.0], [5.0]]
    driver.complete(0, 2.0)
    driver.advance(2.0)
    assert driver.view().used.tolist() == [[0.0], [5.0]]


def simulated_s(driver: LiveDriver, policy: str) -> float:
    """What a rollout from the present state tells of one request."""
    rollouts = driver.rollouts_for(find("what-if")[0])
    assert rollouts is not None
    work = new_work(1)
    work["units"], work["estimate_s"], work["deadline_s"], work["arrival_s"] = 1.0, 1.0, np.inf, 0.0
    work["model_idx"] = work["adapter_idx"] = -1
    rollout = rollouts.from_state(driver.view(), driver.history(), driver.waiting())
    return float(rollout([Variant(find(policy)[0])], work)[0][0])


def test_rollouts_start_from_what_is_reported_and_measured() -> None:
    driver = live("what-if")
    driver.advance(0.0)
    assert simulated_s(driver, "load-aware(cpu=9)") == 1.0
    driver.reports.set_used(BUSY, AGES, 0.0)
    assert simulated_s(driver, "load-aware(cpu=9)") == 2.0, "on the slow node, since the other is busy"
    driver.reports.set_used(np.zeros((2, 1)), AGES, 0.0)
    driver.reports.set_round_trips(np.array([[5.0, 0.5], [0.5, 0.0]]), 0.0)
    assert simulated_s(driver, "locality") == 2.5, "on the near node"
    assert driver.view().used.tolist() == [[0.0], [0.0]], "a rollout changes nothing here"
