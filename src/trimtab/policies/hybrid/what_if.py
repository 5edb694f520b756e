"""What-if: a portfolio of policies is simulated from the present state, and the best one takes over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from trimtab.domain.parameters import Count, NonNegative, Positive, Tunable
from trimtab.policies.shared.portfolio import TUNED, Floats, Notes, PortfolioPolicy, is_better


@dataclass(frozen=True)
class WhatIf(PortfolioPolicy):
    """Simulate the recent past under each policy of a portfolio from the present state; the best takes over.

    Idea
        Every `plan_period_s`, once `window` / 4 requests have come since: simulate the last `window` arrivals
        (up to twice as many where queues are long) from the reported state, under each candidate, and under
        the cost index with one weight doubled or halved. Only the second half counts, because work that
        other policies placed influences the first half. A candidate takes over if its mean is
        `hysteresis_frac` better, and the gain is significant in a paired test over batches of requests. The
        same holds for weights. With `w_price` each dollar of node time counts as that many seconds of
        completion, to the rollouts and to the cost index. At the start the declared workload is simulated, if
        the host declares one.
        Candidates: `late-binding` (the first), `cost-index`, `least-expected-wait`, `sampled-completion` with
        3 and 8 samples, `even-work`, `locality`, and `dual-price` with new prices for each rollout;
        `outage-aware` too while failures were seen or the calendar has outages to come, `downstream-aware`
        with ageing .2 and .8 where there are chains. There the completion of runs counts, and where runs have
        more than 8 stages in the mean a window holds fewer of them.
    Source
        Kefeng Deng, Junqiang Song, Kaijun Ren, Alexandru Iosup: "Exploring portfolio scheduling for long-term
        execution of scientific workloads in IaaS clouds", SC '13, 2013.
    Reads
        All that its candidates read, and plan.price; past arrivals and their nodes; waiting work.
    Cost
        O(the active candidate's cost) per request; a plan simulates 9 × `window` requests, 10 × while
        failures were seen or outages are planned, twice as many where queues are long; of runs of chains as
        many, with 8 stages each at most in the mean.
    When it wins / loses
        Wins where no policy is best all of the time, or the best one is unknown. Loses the cost of rollouts,
        and loses to the best fixed policy until there is evidence for a change. Rollouts have the planned
        outages of the calendar; of unplanned failures only `outage-aware` has rates.
    Deviations from the source
        Dispatch of single requests instead of provisioning and allocation of jobs; all candidates are
        simulated; the simulated work is the recent past, not the waiting work; a paired test.
    """

    name: ClassVar[str] = "what-if"
    plan_period_s: Positive = 5.0
    window: Annotated[Count, Tunable(100, 2400, "log")] = 600  # requests
    w_price: NonNegative = 0.0  # seconds per dollar of node time
    hysteresis_frac: Annotated[NonNegative, Tunable(0.0, 0.2)] = 0.02

    def best(self, notes: Notes, cost: Floats, active: int, has_gained: bool) -> tuple[int, Floats]:
        """The least mean, if it is better enough; the cost index counts with the change that gained."""
        if has_gained:
            cost[TUNED] = cost[-1]
        least = int(np.argmin(cost[:-1].mean(axis=1)))
        is_next = is_better(cost[least], cost[active], self.hysteresis_frac)
        return least if is_next else active, notes.scores
