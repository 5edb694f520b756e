"""Planning beside the loop: what is told, what is accepted, and what happens when it goes wrong."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests
from support.planning_policies import Gate, Steering
from support.waiting import until
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Plan
from trimtab.engine.driver import Driver, PlanningLog
from trimtab.errors import UsageError
from trimtab.live.clock import VirtualClock
from trimtab.live.planner import PlanResult, ProcessPlanner, attempt, snapshot
from trimtab.live.runner import run_live
from trimtab.policies.catalogue import find

C = cluster(4, types=2, slots=2, models=2)


def driver_at(now_s: float, policy: Policy) -> Driver:
    """A run in full swing."""
    r = requests(C, 100, load=1.5)
    driver = Driver(C, r, Options(), Decider.of(Steering()), mode="interpreted")
    driver.policy = policy
    while driver.now_s < now_s:
        driver.advance(now_s, 1)
    return driver


class Session:
    """A planner at work; plans are delivered into a list."""

    def __init__(self, policy: Policy) -> None:
        self.log, self.plans = PlanningLog(), list[Plan]()
        self.driver = driver_at(3.0, policy)
        self._others = {child.pid for child in multiprocessing.active_children()}
        self.planner = ProcessPlanner(policy, self.log)

    def children(self) -> list[multiprocessing.process.BaseProcess]:
        """Processes that were started since."""
        return [child for child in multiprocessing.active_children() if child.pid not in self._others]

    def begin(self) -> None:
        self.planner.begin(self.driver, self.plans.append)

    def run(self, scene: Callable[[Session], Coroutine[Any, Any, None]]) -> Session:
        async def main() -> None:
            try:
                await self.planner.open()
                await asyncio.wait_for(scene(self), 60.0)
            finally:
                self.planner.close()

        asyncio.run(main())
        assert self.children() == []
        return self


def test_a_snapshot_is_a_copy_of_what_the_policy_may_see() -> None:
    driver = driver_at(3.0, Steering())
    told, again = snapshot(driver), driver.view()
    assert told.view.context.now_s == driver.now_s
    np.testing.assert_array_equal(told.view.nodes, again.nodes)
    assert not any(np.shares_memory(a, b) for a, b in zip(told.view, again, strict=True))


def test_a_plan_made_in_another_process_is_the_plan_made_here() -> None:
    async def scene(session: Session) -> None:
        session.begin()
        await until(lambda: bool(session.plans))

    policy = Steering()
    session = Session(policy).run(scene)
    here = attempt(policy, snapshot(session.driver)).plan
    assert here is not None
    assert len(np.unique(here.weights)) > 1
    for made, expected in zip(session.plans[0], here, strict=True):
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("plan", PlanResult.MADE),
        ("none", PlanResult.KEPT),
        ("raise", PlanResult.RAISED),
        ("text", PlanResult.INVALID),
        ("ragged", PlanResult.INVALID),
        ("words", PlanResult.INVALID),
        ("shape", PlanResult.INVALID),
        ("nan", PlanResult.INVALID),
    ],
)
def test_every_answer_is_judged(answer: str, result: PlanResult) -> None:
    policy = Gate(answer=answer)
    outcome = attempt(policy, snapshot(driver_at(1.0, policy)))
    assert outcome.result is result
    assert (outcome.plan is not None) == (result is PlanResult.MADE)
    assert bool(outcome.problem) == (result in (PlanResult.RAISED, PlanResult.INVALID))


@pytest.mark.parametrize(
    ("answer", "expected", "words"),
    [
        ("raise", PlanningLog(raised=1), "ArithmeticError"),
        ("text", PlanningLog(invalid=1), "expected a Plan"),
        ("die", PlanningLog(raised=1), "process"),
    ],
)
def test_what_goes_wrong_is_counted_and_logged(
    answer: str, expected: PlanningLog, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(session: Session) -> None:
        session.begin()
        await until(lambda: session.log != PlanningLog())

    with caplog.at_level(logging.WARNING, "trimtab"):
        session = Session(Gate(answer=answer)).run(scene)
    assert (session.log, session.plans) == (expected, [])
    assert words in caplog.text
    assert "last good plan" in caplog.text


def test_the_worker_ignores_ctrl_c_from_its_birth_and_the_host_does_not() -> None:
    async def scene(session: Session) -> None:
        (worker,) = session.children()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)
        session.begin()
        await until(lambda: bool(session.plans))

    assert Session(Gate()).run(scene).log == PlanningLog()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_a_worker_that_dies_is_replaced() -> None:
    async def scene(session: Session) -> None:
        for deaths in (1, 2):
            session.begin()
            await until(lambda deaths=deaths: session.log.raised == deaths)

    assert Session(Gate(answer="die")).run(scene).log == PlanningLog(raised=2)


def test_a_plan_that_is_late_is_counted_once_and_its_worker_ended_with_the_run() -> None:
    async def scene(session: Session) -> None:
        for _ in range(3):  # due three times while the first still hangs
            session.begin()

    session = Session(Gate(answer="hang")).run(scene)
    assert (session.log, session.plans) == (PlanningLog(late=1), [])


def test_a_late_plan_is_dropped_and_the_next_one_counts() -> None:
    async def scene(session: Session) -> None:
        session.begin()
        session.begin()  # due again before the loop could hear of the first
        await until(lambda: not session.planner.is_busy)
        assert session.plans == []
        session.begin()
        await until(lambda: bool(session.plans))

    session = Session(Gate()).run(scene)
    assert session.log == PlanningLog(late=1)
    assert len(session.plans) == 1


@pytest.mark.parametrize("answer", ["raise", "text", "none"])
def test_on_a_virtual_clock_bad_plans_leave_the_run_alone(answer: str) -> None:
    options = Options(horizon_s=12.0)
    driver = run_live(C, requests(C, 5), options, Decider.of(Gate(answer=answer)), clock=VirtualClock())
    bad = PlanningLog(raised=3 * (answer == "raise"), invalid=3 * (answer == "text"))
    assert driver.planning == bad  # planned at 0, 5 and 10 s
    assert driver.state.counts["finished"][0] == 0


POLICY_FILE = """
import numpy as np
from trimtab.domain.policy import Policy
from trimtab.domain.view import empty_plan

class FromFile(Policy):
    plan_period_s = 5.0

    def plan(self, view, history, waiting, rollout):
        return empty_plan()._replace(params=np.ones(1))

    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = 0
        return min(1, len(plan.params))
"""


def test_a_policy_of_a_file_plans_in_the_other_process_too(tmp_path: Path) -> None:
    file = tmp_path / "my_policy.py"
    file.write_text(POLICY_FILE)
    policy, order = find(f"{file}:FromFile")
    driver = run_live(C, requests(C, 5), Options(), Decider.of(policy, order), speed=20.0)
    assert driver.planning.made >= 1
    assert driver.state.counts["finished"][0] == 5


def test_a_policy_that_no_other_process_can_have_is_refused() -> None:
    class Local(Gate):
        """Not at the top of a module."""

    with pytest.raises(UsageError, match="Local"):
        run_live(C, requests(C, 5), Options(), Decider.of(Local()))
