"""What planners are told of the past, by a host that keeps all rows and by one that uses them again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from trimtab.domain.options import Options
from trimtab.domain.planning import HISTORY
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.driver import Driver
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.errors import PolicyError
from trimtab.policies.catalogue import find

ONE = cluster(1, slots=1)
POLICY = find("least-connections")[0]


def test_the_simulator_tells_where_requests_are_and_what_has_finished() -> None:
    driver = Driver(ONE, asked(ONE, [0.0, 1.0, 2.0], 2.5), Options(), Decider.of(POLICY), mode="interpreted")
    driver.advance(4.0)
    past = driver.history()
    np.testing.assert_array_equal(past.work["arrival_s"], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(past.finish_s, [2.5, np.nan, np.nan])
    np.testing.assert_array_equal(past.node_idx, [0, 0, 0])
    np.testing.assert_array_equal(past.in_flight, [False, True, True])
    driver.state.work["units"] = 0.0
    assert (past.work["units"] == 2.5).all()  # a copy


def test_a_live_host_tells_the_same_when_rows_were_used_again() -> None:
    live = LiveDriver(cluster(2), Options(), Decider.of(POLICY), rows=2, mode="interpreted")
    first = live.enter(RequestSpec(0, 3.0, 3.0), 0.0)
    live.advance(0.0)
    live.take_started()
    live.complete(first, 1.0)
    live.advance(1.0)
    second = live.enter(RequestSpec(0, 4.0, 4.0), 2.0)
    third = live.enter(RequestSpec(0, 5.0, 5.0), 3.0)
    live.advance(3.0)
    assert {second, third} == {0, 1}  # the first one's row among them
    live.abort(third, 3.5)
    live.advance(3.5)
    past = live.history()
    np.testing.assert_array_equal(past.work["units"], [3.0, 4.0, 5.0])
    np.testing.assert_array_equal(past.work["serial"], [0, 1, 2])
    np.testing.assert_array_equal(past.finish_s, [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(past.node_idx, [0, 0, -1])
    np.testing.assert_array_equal(past.in_flight, [False, True, False])


def test_a_live_host_forgets_what_was_long_ago() -> None:
    live = LiveDriver(cluster(2), Options(), Decider.of(POLICY), rows=2, mode="interpreted")
    stays = live.enter(RequestSpec(0, 0.5, 0.5), 0.0)
    live.advance(0.0)
    live.take_started()
    for i in range(HISTORY):
        row = live.enter(RequestSpec(0, 1.0 + i, 1.0), 1.0 + i)
        live.advance(1.0 + i)
        live.take_started()
        live.complete(row, 1.5 + i)
        live.advance(1.5 + i)
    live.complete(stays, 1e6)  # nobody remembers it
    past = live.history()
    np.testing.assert_array_equal(past.work["units"], 1.0 + np.arange(HISTORY))
    np.testing.assert_array_equal(past.finish_s, 1.5 + np.arange(HISTORY))
    assert not past.in_flight.any()


class _Scribbles(Policy):
    """Plans by writing to what it was told of the past."""

    name = "scribbles"
    plan_period_s: float = 1.0
    dispatch = POLICY.dispatch

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> None:
        """Write."""
        history.work["units"] = 0.0


def test_a_planner_of_the_simulator_cannot_change_the_past() -> None:
    driver = Driver(
        ONE, asked(ONE, [0.0, 1.0, 2.0], 2.5), Options(), Decider.of(_Scribbles()), mode="interpreted"
    )
    with pytest.raises(PolicyError, match="read-only"):
        driver.make_plan()
