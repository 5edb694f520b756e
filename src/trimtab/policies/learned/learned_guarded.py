"""Learned weights while rollouts find that they do no harm; otherwise the rule that they correct."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, Fraction, NonNegative, Positive, Tunable
from trimtab.domain.planning import History, Rollout, Variant
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, empty_plan
from trimtab.policies.learned.learned_residual import LearnedResidual
from trimtab.policies.load_aware.late_binding import LateBinding
from trimtab.policies.shared.learned_score import CorrectedPolicy
from trimtab.policies.shared.portfolio import (
    SERVICE_CV,
    Objective,
    costs,
    last_serial_of,
    recent_work,
)

_RULE = LateBinding()


@dataclass(frozen=True)
class LearnedGuarded(CorrectedPolicy):
    """Let learned weights decide while their regret in rollouts stays below a bound.

    Idea
        Every `plan_period_s`, once `window` / 4 requests have come since, `late-binding` and
        `learned-residual` are simulated on the last `window` arrivals from the present state. Regret is the
        logarithm of the objective of the second over that of the first, smoothed exponentially with weight
        `memory` on the past. The weights decide while regret is at most `regret_frac`, otherwise
        `late-binding` does, which also decides until the first rollout.
    Source
        Kefeng Deng, Junqiang Song, Kaijun Ren, Alexandru Iosup: "Exploring portfolio scheduling for long-term
        execution of scientific workloads in IaaS clouds", SC '13, 2013 (a choice by simulation); a policy
        that falls back to a safe one: Philip Thomas, Georgios Theocharous, Mohammad Ghavamzadeh: "High
        confidence policy improvement", ICML 2015.
    Reads
        What `learned-residual` reads; past arrivals and their nodes; waiting work.
    Cost
        O(the active one's cost) a decision; a plan simulates 2 × `window` requests, twice as
        many where queues are long.
    When it wins / loses
        Where weights were trained on other traffic, it is the rule again after a window. A rollout is short
        and takes estimates for the truth, so what harms only in the long run passes
        (docs/benchmarks/learned.md).
    Deviations from the source
        Two policies instead of a portfolio. The published bound holds with a chosen confidence for logged
        episodes; here a smoothed estimate on simulated arrivals is compared with a number.
    """

    name: ClassVar[str] = "learned-guarded"
    trained_as: ClassVar[str] = LearnedResidual.name
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROLLOUT})
    plan_period_s: Positive = 5.0
    objective: Objective = "mean"
    window: Annotated[Count, Tunable(100, 2400, "log")] = 600  # requests
    regret_frac: Annotated[NonNegative, Tunable(0.0, 0.2)] = 0.02
    memory: Fraction = 0.5

    dispatch = staticmethod(LateBinding.dispatch)

    @property
    def candidates(self) -> tuple[Policy, ...]:
        """The rule, and the rule with weights."""
        return _RULE, LearnedResidual(artifact=self.artifact, bound=self.bound, in_range=self.in_range)

    def init(self, cluster: Cluster) -> Memory:
        """The rule's."""
        return _RULE.init(cluster)

    def plan(self, view: View, history: History, waiting: Any, rollout: Rollout | None) -> Plan | None:
        """Simulate both, and let the weights decide where they do no harm."""
        last, regret = history.plan.params if len(history.plan.params) else (-1.0, math.nan)
        work = recent_work(view, history, rollout, self.window, last)
        if rollout is None or work is None:
            return None
        variants = [Variant(policy, empty_plan()) for policy in self.candidates]
        completion_s = rollout(variants, work, SERVICE_CV, 0.0)
        cost = costs(completion_s[:, completion_s.shape[1] // 2 :], self.objective, 0).mean(axis=1)
        now = math.log(max(cost[1], 1e-12) / max(cost[0], 1e-12))
        regret = now if math.isnan(regret) else self.memory * regret + (1.0 - self.memory) * now
        params = np.array([last_serial_of(history), regret])
        active = int(regret <= self.regret_frac)
        return empty_plan()._replace(params=params, active_idx=np.array([active]))
