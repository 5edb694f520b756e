"""Auto: no policy need be chosen; rollouts find the policy that serves the objective best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.parameters import Count, Fraction, NonNegative, Positive, Tunable
from trimtab.policies.shared.portfolio import Floats, Notes, Objective, PortfolioPolicy


@dataclass(frozen=True)
class Auto(PortfolioPolicy):
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
        failures were seen or outages are planned, twice as many where queues are long; of runs of chains as
        many, with 8 stages each at most in the mean.
    When it wins / loses
        The policy for unknown traffic: close to its best candidate while traffic resembles the recent past,
        and better than each candidate where traffic changes. The policy notices a change in arrivals at most
        one window late. A window is too short to show that a candidate saturates the nodes slowly.
    Deviations from the source
        As `what-if`; results of earlier rollouts also count.
    """

    name: ClassVar[str] = "auto"
    plan_period_s: Positive = 5.0
    objective: Objective = "mean"
    window: Annotated[Count, Tunable(100, 2400, "log")] = 600  # requests
    w_price: NonNegative = 0.0  # seconds per dollar of node time
    memory: Fraction = 0.5
    hysteresis_frac: Annotated[NonNegative, Tunable(0.0, 0.2)] = 0.02

    def best(self, notes: Notes, cost: Floats, active: int, has_gained: bool) -> tuple[int, Floats]:
        """The least smoothed objective, if it is lower enough."""
        scores = _smoothed(notes.scores, cost[:-1], self.memory)
        least = int(np.argmin(scores))
        return least if scores[least] < scores[active] - self.hysteresis_frac else active, scores


def _smoothed(before: Floats, cost: Floats, memory: float) -> Floats:
    """Evidence [candidates] after one more rollout with costs [candidates, requests]."""
    logs = elementwise(math.log, np.maximum(cost.mean(axis=1), 1e-12))
    news: Floats = logs - np.median(logs)
    return news if len(before) == 0 else memory * before + (1.0 - memory) * news
