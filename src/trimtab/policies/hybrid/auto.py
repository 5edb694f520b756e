"""Auto: no policy need be chosen; rollouts find the policy that serves the objective best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, Fraction, NonNegative, Positive
from trimtab.domain.planning import Evidence, History, Rollout
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, empty_plan
from trimtab.policies.shared.portfolio import (
    PORTFOLIO,
    TUNED,
    Floats,
    Notes,
    evidence_of,
    is_better,
    simulated,
)

Objective: TypeAlias = Literal["mean", "p99"]


@dataclass(frozen=True)
class Auto(Policy):
    """Let the policy decide that does best in rollouts of the recent past, over several of them.

    Idea
        The portfolio and the rollouts of `what-if`, with a memory. For each candidate it keeps the logarithm
        of the objective over the candidates' median, smoothed exponentially with weight `memory` on the
        past. A candidate takes over when its smoothed objective is `hysteresis_frac` lower. The objective is
        mean completion, or its 99th percentile, estimated by the mean of the longest 2 %. With `w_price` each
        dollar of node time counts as that many seconds of completion.
    Source
        Kefeng Deng, Junqiang Song, Kaijun Ren, Alexandru Iosup: "Exploring portfolio scheduling for long-term
        execution of scientific workloads in IaaS clouds", SC '13, 2013; smoothing: Robert Brown,
        "Statistical forecasting for inventory control", 1959.
    Reads
        All that its candidates read, and plan.price; past arrivals and their nodes; waiting work.
    Cost
        O(the active candidate's cost) per request; a plan simulates 9 × `window` requests, 10 × while
        failures were seen or outages are planned, twice as many where queues are long.
    When it wins / loses
        The policy for unknown traffic: close to its best candidate while traffic resembles the recent past,
        and better than each candidate where traffic changes. The policy notices a change in arrivals at most
        one window late. A window is too short to show that a candidate saturates the nodes slowly.
    Deviations from the source
        As `what-if`; results of earlier rollouts also count.
    """

    name: ClassVar[str] = "auto"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROLLOUT})
    plan_period_s: Positive = 5.0
    objective: Objective = "mean"
    window: Count = 600  # requests
    w_price: NonNegative = 0.0  # seconds per dollar of node time
    memory: Fraction = 0.5
    hysteresis_frac: NonNegative = 0.02

    dispatch = staticmethod(PORTFOLIO[0].dispatch)

    @property
    def candidates(self) -> tuple[Policy, ...]:
        """The portfolio."""
        return PORTFOLIO

    def init(self, cluster: Cluster) -> Memory:
        """The first candidate's."""
        return PORTFOLIO[0].init(cluster)

    def plan(self, view: View, history: History, waiting: Any, rollout: Rollout | None) -> Plan | None:
        """Simulate the candidates, add the results to the evidence, and let the best by that take over."""
        notes, active = Notes.read(history.plan.params, self.w_price), int(history.plan.active_idx[0])
        told = view, history, waiting
        found = simulated(notes, active, told, rollout, self.window, self.objective)
        if found is None:
            return None
        cost = found.cost
        has_gained = is_better(cost[-1], cost[TUNED], self.hysteresis_frac)
        after = notes.after(history, found, active, has_gained)
        scores = _smoothed(notes.scores, cost[:-1], self.memory)
        best = int(np.argmin(scores))
        if scores[best] < scores[active] - self.hysteresis_frac:
            active = best
        params = after._replace(scores=scores).written()
        return empty_plan()._replace(params=params, active_idx=np.array([active]), price=found.price)

    def evidence(self, plan: Plan) -> Evidence | None:
        """The last rollout. The decision also uses the smoothed results of earlier rollouts."""
        return evidence_of(plan, self.objective)


def _smoothed(before: Floats, cost: Floats, memory: float) -> Floats:
    """Evidence [candidates] after one more rollout with costs [candidates, requests]."""
    logs = elementwise(math.log, np.maximum(cost.mean(axis=1), 1e-12))
    news: Floats = logs - np.median(logs)
    return news if len(before) == 0 else memory * before + (1.0 - memory) * news
