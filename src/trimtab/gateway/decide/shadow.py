"""The shadow policy: its own plans, and how its decisions compare with those of the live policy.

Two figures, never one number:

- how often it would have chosen another node: exact; - the predicted completion of this one request there:
model-based, and blind to the effect of its choice on later requests. `trimtab replay` of a recording shows
that effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan, View, empty_plan
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import LiveDriver
from trimtab.engine.rollout import Rollouts
from trimtab.live.planner import InlinePlanner, Planner, ProcessPlanner

Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class ShadowPlanner:
    """Plans for the shadow policy, on its own period. `live` may be replaced at any time."""

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
        """Begin to plan, once."""
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
        """The view as of now; no event has updated its time."""
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


NOTED = 256  # decisions that are counted together: one by one takes several times as long


@dataclass(frozen=True, slots=True)
class ShadowSummary:
    """Comparison of the shadow's decisions with the live ones."""

    decisions: int
    differ: int
    disagreement_frac: float  # exact; nan before the first decision
    predicted_difference_s: float  # mean, model-based: shadow − live, per decision that both gave a node
    predicted: int  # decisions behind it
    predicted_difference_frac: float | None  # of the live choice's mean; None before there is one


Compared = tuple[float, float, float, float, float]
"""A decision of both: nodes that the live policy sent it to, that its session lives on and that the shadow
chose, −1 = none; predicted completions from now on the first and on the last, in seconds."""


class ShadowStatistics:
    """Counts decisions as they come; constant memory."""

    def __init__(self) -> None:
        self._decisions = 0
        self._differ = 0
        self._predicted = 0  # decisions behind the two sums
        self._difference_total_s = 0.0
        self._live_total_s = 0.0
        self._noted: list[Compared] = []  # and not counted yet

    @property
    def counts(self) -> tuple[int, int]:
        """Decisions, and those that differ."""
        self._count()
        return self._decisions, self._differ

    def note(self, decisions: Iterable[Compared]) -> None:
        """Decisions of both policies."""
        self._noted += decisions
        if len(self._noted) >= NOTED:
            self._count()

    def _count(self) -> None:
        """Count what was noted."""
        if not self._noted:
            return
        live_idx, affinity_node_idx, shadow_idx, live_s, shadow_s = np.array(self._noted).T
        self._noted.clear()
        is_home = (live_idx >= 0) & (live_idx == affinity_node_idx)  # by session affinity
        differs = (live_idx != shadow_idx) & ~is_home
        self._decisions += len(live_idx)
        self._differ += int(differs.sum())
        with np.errstate(invalid="ignore"):  # two estimates that are infinite
            difference_s = np.where(is_home, 0.0, shadow_s - live_s)
        is_held = differs & ((live_idx < 0) | (shadow_idx < 0))
        is_predicted = (np.abs(difference_s) < _FOREVER_S) & ~is_held & (np.abs(live_s) < np.inf)
        self._live_total_s += float(live_s[is_predicted].sum())
        self._difference_total_s += float(difference_s[is_predicted].sum())
        self._predicted += int(is_predicted.sum())

    def figures(self) -> ShadowSummary:
        """So far."""
        self._count()
        n = self._decisions
        frac = self._differ / n if n else float("nan")
        total_s, count = self._difference_total_s, self._predicted
        mean_s = total_s / count if count else float("nan")
        of_live_frac = total_s / self._live_total_s if self._live_total_s > 0.0 else None
        return ShadowSummary(n, self._differ, frac, mean_s, count, of_live_frac)


_FOREVER_S = 1e9  # an estimate for a node that cannot serve it
