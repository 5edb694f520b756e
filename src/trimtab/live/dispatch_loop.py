"""The dispatch loop that all live hosts share: dispatch due requests, begin plans, put plans in force."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from trimtab.domain.options import Options
from trimtab.domain.view import Plan
from trimtab.engine.loop import PLAN_DUE, PLAN_READY
from trimtab.live.planner import Planned, Planner

UNBOUNDED = 1 << 62


class PlannedDriver(Planned, Protocol):
    """State and loop of one policy: a Driver, or a LiveDriver."""

    @property
    def options(self) -> Options:
        """Switches of the host."""

    @property
    def now_s(self) -> float:
        """Time of the last event."""

    def advance(self, until_s: float, max_steps: int = ...) -> int:
        """Process all events up to a time; returns one of the loop's codes."""

    def adopt(self, plan: Plan, at_s: float) -> None:
        """Put a plan in force at a time."""

    def put_next_in_force(self) -> None:
        """Carry out PLAN_READY."""


class DispatchLoop:
    """Advances a driver and its planner.

    Args:
        clock: the host's time in seconds.
        came: called with each new plan, which may arrive between two steps.
    """

    def __init__(
        self,
        driver: PlannedDriver,
        planner: Planner,
        clock: Callable[[], float],
        came: Callable[[Plan], None],
    ) -> None:
        self._driver, self._planner, self._clock, self._came = driver, planner, clock, came

    def step(self, now_s: float, max_steps: int = UNBOUNDED) -> None:
        """Process due events, at most `max_steps`. Requests that a new plan releases are offered at once."""
        code = self._driver.advance(now_s, max_steps)
        while code in (PLAN_DUE, PLAN_READY):  # the event was a plan, not a decision
            self._plan(code)
            code = self._driver.advance(now_s, 0 if max_steps == 1 else max_steps)

    def _plan(self, code: int) -> None:
        if code == PLAN_DUE:
            self._planner.begin(self._driver, partial(self._adopt, self._driver.now_s))
        else:
            self._driver.put_next_in_force()

    def _adopt(self, started_s: float, plan: Plan) -> None:
        """Adopt a finished plan, which was begun at `started_s`."""
        ready_s = started_s + self._driver.options.plan_latency_s
        self._driver.adopt(plan, max(ready_s, self._clock()))
        self._came(plan)
