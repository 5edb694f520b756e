"""A policy in plain Python does not keep its host from other work."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from support import builders
from trimtab.domain.cluster_state import ClusterState, Request
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.engine import decision_budget
from trimtab.engine.decision_budget import DecisionBudget, TooSlow
from trimtab.engine.live_driver import LiveDriver, RequestSpec

ONE = RequestSpec(class_idx=0, units=1.0)


class Clock:
    """Calls take as long as they say."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def takes(self, seconds: float) -> str:
        self.now_s += seconds
        return "done"


def test_calls_take_half_of_a_span_and_are_then_not_made_for_growing_times() -> None:
    clock = Clock()
    budget = DecisionBudget(clock)
    for suspended_s in (10.0, 20.0, 40.0):
        for _ in range(6):
            assert budget.call(clock.takes, 0.45) == "done"  # 2.7 s of 5 s
        with pytest.raises(TooSlow, match=rf"6 decisions took 2\.7 s in 5 s: .* {suspended_s:g} s"):
            budget.call(clock.takes, 0.0)
        clock.now_s += suspended_s
    for _ in range(100):  # 2.2 s of each 5 s: good spans
        budget.call(clock.takes, 0.22)
        clock.now_s += 0.28
    budget.call(clock.takes, 0.6)
    with pytest.raises(TooSlow, match=r"a decision took 0.6 s: it is not asked for 10 s"):
        budget.call(clock.takes, 0.0)


def _endless() -> None:
    while True:
        try:
            time.sleep(60.0)
        except TooSlow:  # a policy that catches everything
            time.sleep(60.0)


def test_a_call_without_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_budget, "CALL_S", 0.02)
    budget = DecisionBudget()
    with pytest.raises(TooSlow, match=r"more than 0.02 s"):
        budget.call(_endless)
    with pytest.raises(TooSlow, match="not asked for 10 s"):
        budget.call(_endless)


def _spins(n_caught: int) -> None:
    for _ in range(n_caught):
        with contextlib.suppress(TooSlow):
            while True:
                pass
    if not n_caught:
        time.sleep(0.05)  # the exception comes as it ends, or not at all


@pytest.mark.parametrize("n_caught", [0, 1, 2])
def test_on_another_thread_too_and_nothing_comes_after_the_call(
    monkeypatch: pytest.MonkeyPatch, n_caught: int
) -> None:
    monkeypatch.setattr(decision_budget, "CALL_S", 0.02)
    told = list[str]()

    def ask() -> None:
        budget = DecisionBudget()
        with contextlib.suppress(TooSlow):
            budget.call(_spins, n_caught)
        ends_s = time.monotonic() + 0.1
        while time.monotonic() < ends_s:  # an exception that is left over would come here
            pass
        try:
            budget.call(_spins, 0)
        except TooSlow as error:
            told.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(told) == 1
    assert "not asked for 10 s" in told[0]


@dataclass(frozen=True)
class Stuck(Policy):
    """Never answers about requests of two units."""

    name: ClassVar[str] = ""

    def choose(self, cluster: ClusterState, request: Request) -> Any:
        while request.units == 2.0:
            pass
        return 1


@dataclass(frozen=True)
class StuckOrder(Policy):
    """Never tells the key of a request of two units."""

    name: ClassVar[str] = ""

    @staticmethod
    def order(view: Any, plan: Any, work: Any, memory: Any) -> float:
        while work.units == 2.0:
            pass
        return 0.0


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize(
    "decider", [Decider.of(Stuck()), Decider(Stuck(), StuckOrder())], ids=["choose", "+order"]
)
def test_least_connections_decides_where_a_policy_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, mode: str, decider: Decider
) -> None:
    monkeypatch.setattr(decision_budget, "CALL_S", 0.02)
    c = builders.cluster(2, slots=5, queue_max=0)
    options = Options(cancel=Cancel.WAITING)
    live = LiveDriver(c, options, decider, rows=10, mode=mode, bounds_time=True)
    row = live.enter(ONE, 0.0)
    live.advance(0.0)
    assert live.take_started() == [(row, 1)]
    for k in range(3):  # once it is interrupted, then it is not asked
        row = live.enter(ONE._replace(units=2.0), float(k + 1))
        live.advance(float(k + 1))
        assert [started for started, _ in live.take_started()] == [row]
        assert live.policy_failures == k + 1
    assert "not asked for 10 s" in live.last_failure
