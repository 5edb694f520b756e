"""A policy without `dispatch`: the loop stops at each decision, its host answers, and the loop goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given

from support.builders import cluster
from support.by_hand import asked, played, starts
from support.mini_policies import Emptiest
from support.scenarios import Case, cases
from trimtab.compiled.kernel import interpreted
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests, Status
from trimtab.engine.driver import Driver
from trimtab.engine.held_work import ASKED_ABOUT_HELD, ASKED_ABOUT_ONE
from trimtab.engine.loop import DECIDE, DONE
from trimtab.errors import PolicyError

ONE, TWO = cluster(1), cluster(2)


class Asks(Policy):
    """Each request by itself."""


class AsksAboutThree(Policy):
    """The first three held requests that a free node takes."""

    compares: ClassVar[int] = 3


def decided(driver: Driver, answer: Callable[[Driver], None]) -> Driver:
    """The run to its end, with the host's answers."""
    while (code := driver.advance()) == DECIDE:
        answer(driver)
    assert code == DONE
    return driver


def run_of(c: Any, r: Requests, policy: Policy, mode: str = "interpreted") -> Driver:
    return Driver(c, r, Options(), Decider.of(policy), mode=mode)


def to(driver: Driver, node_idx: int) -> None:
    """Send the request of the present decision to a node; -1 holds it."""
    driver.state.ranking["node_idx"][0] = node_idx
    driver.state.counts["answer"] = node_idx >= 0


def shortest(driver: Driver) -> None:
    """Start the shortest on an idle node; hold it where none is."""
    state, nodes = driver.state, driver.state.nodes
    free = np.flatnonzero(nodes["in_flight"] < nodes["slots"]).tolist()
    if state.counts["awaited"][0] == ASKED_ABOUT_ONE:
        to(driver, free[0] if free else -1)
        return
    assert state.counts["awaited"][0] == ASKED_ABOUT_HELD
    rows = state.passed_over[: state.counts["n_passed_over"][0]]
    state.counts["best"] = 1 + min(rows.tolist(), key=lambda r: (state.work["units"][r], r))
    state.counts["bound"] = 1 + free[0]


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_the_host_chooses_among_the_first_held_requests(mode: str) -> None:
    """As `ShortestOfThree` of test_comparing: the last is not among the first three when 0 ends."""
    units = [1.0, 5.0, 4.0, 3.0, 2.0]
    r = asked(ONE, [0.0, 0.1, 0.2, 0.3, 0.4], units)
    d = decided(run_of(ONE, r, AsksAboutThree(), mode), shortest)
    assert starts(d) == [0.0, 1.0 + 3.0 + 2.0 + 4.0, 1.0 + 3.0 + 2.0, 1.0, 1.0 + 3.0]


def test_a_host_that_waits_is_asked_again_when_something_changes() -> None:
    def second_time(driver: Driver) -> None:
        if driver.state.counts["awaited"][0] == ASKED_ABOUT_HELD and driver.now_s < 5.0:
            driver.state.counts["best"] = driver.state.counts["bound"] = 0
        else:
            shortest(driver)

    r = asked(TWO, [0.0, 0.0, 1.0, 2.0], [4.0, 5.0, 1.0, 1.0])
    d = decided(run_of(TWO, r, AsksAboutThree()), second_time)
    assert starts(d) == [0.0, 0.0, 5.0, 5.0]  # not when node 0 is free at 4, but when node 1 is


@given(cases)
def test_a_host_that_answers_as_a_policy_has_the_policys_run(case: Case) -> None:
    """Of several dispatchers, each answer is by its own view."""
    choose = interpreted(Emptiest.dispatch)

    def answer(driver: Driver) -> None:
        r, ranking = int(driver.state.counts["deciding"][0]), [-1]
        view = driver.view(r % case.options.dispatchers)
        count = choose(view, None, driver.state.work[r : r + 1].view(np.recarray)[0], None, None, ranking)
        to(driver, ranking[0] if count else -1)

    inside, outside = (
        Driver(
            case.cluster,
            case.requests,
            case.options,
            Decider.of(policy, case.order),
            seed=case.seed,
            mode="interpreted",
        )
        for policy in (Emptiest(), Asks())
    )
    while (code := outside.advance(case.options.horizon_s)) == DECIDE:
        answer(outside)
    assert code == inside.advance(case.options.horizon_s)
    for name in ("status", "node_idx", "start_s", "finish_s", "attempt"):
        np.testing.assert_array_equal(outside.state.requests[name], inside.state.requests[name])


def test_the_time_that_requests_spend_in_the_system_adds_up() -> None:
    r = asked(ONE, [0.0, 0.5, 2.0], [1.0, 2.0, 0.25])
    d = decided(run_of(ONE, r, Asks()), lambda driver: to(driver, 0))
    assert d.state.requests["status"].tolist() == [Status.FINISHED] * 3
    in_system_s = d.state.requests["finish_s"] - r.work["arrival_s"]
    assert d.state.counts["in_system_s"][0] == pytest.approx(in_system_s.sum())


def test_the_simulator_refuses_it() -> None:
    with pytest.raises(PolicyError, match="chooses no nodes: it has no dispatch"):
        played(ONE, asked(ONE, [0.0]), policy=Asks())
