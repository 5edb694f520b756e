"""Plans of a policy that is only asked: made on its own period, in force for its own decisions only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan, View, empty_plan
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import LiveDriver
from trimtab.engine.rollout import Rollouts
from trimtab.live.planner import InlinePlanner, Planner, ProcessPlanner

Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class ShadowPlans:
    """`live` may be replaced: its next plan is for the new one."""

    def __init__(
        self,
        policy: Policy,
        live: LiveDriver,
        later: Later,
        now: Callable[[], float],
        log: PlanningLog,
        *,
        inline: bool,
    ) -> None:
        self.policy, self.live, self._now = policy, live, now
        self._log, self._last_plan = log, empty_plan()
        self._planner: Planner = (InlinePlanner if inline else ProcessPlanner)(policy, log)
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._rollouts_for: LiveDriver | None = None
        self._rollouts: Rollouts | None = None

    async def open(self) -> None:
        """Begin to plan, unless it was begun."""
        if self._timer is None:
            await self._planner.open()
            self._plan()

    def _plan(self) -> None:
        self._planner.begin(self, self._adopt)
        self._timer = self._later(self.policy.plan_period_s, self._plan)

    def _adopt(self, plan: Plan) -> None:
        self._log.made += 1
        self._last_plan = plan
        self.live.adopt_for_shadow(plan)

    def view(self) -> View:
        """What the policy sees now; no event of the loop has brought it up to the present."""
        view = self.live.view()
        view.context.now_s = self._now()
        return view

    def history(self) -> History:
        """The recent past."""
        return self.live.history()._replace(plan=self._last_plan)

    def waiting(self) -> np.ndarray:
        """The first held requests by queue key, as WORK rows."""
        return self.live.waiting()

    @property
    def rollouts(self) -> Rollouts | None:
        """The rollouts for the policy; anew for every state."""
        if self._rollouts_for is not self.live:
            self._rollouts_for, self._rollouts = self.live, self.live.rollouts_for(self.policy)
        return self._rollouts

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
        self._planner.close()
