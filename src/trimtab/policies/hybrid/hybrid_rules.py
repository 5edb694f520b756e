"""Hybrid: the rule of late binding, whose numbers a learner tunes while it runs, within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Floats
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, Fraction, NonNegative, OneOrMore, Positive, Tunable
from trimtab.domain.planning import History, Rollout, Variant
from trimtab.domain.view import Memory, Plan, View, empty_plan
from trimtab.policies.load_aware.late_binding import SLOTS, LateBinding, rank_held
from trimtab.policies.shared.online_descent import DescendingPolicy

LEARNED: Final = 3  # `w_load`, `w_waste` and `patient`


@dataclass(frozen=True)
class HybridRules(DescendingPolicy, LateBinding):
    """Late binding; its prices of loads and waste and its patience are learned online, within bounds.

    Idea
        The rule is `late-binding`. `w_load`, `w_waste` and `patient` are learned, each from 1 / `bound` to
        `bound` times what was given; `ageing` is not. Every `plan_period_s`, once `window` / 4 requests have
        come since, the recent past is simulated with numbers on both sides of the present ones, and with
        those that were given, and the numbers move towards lower log mean + `w_tail` · log of the longest 2 %
        of completions (`policies/shared/online_descent.py`). They are used while that is lower by
        `margin_frac` than with those that were given.
    Source
        James Spall: "Multivariate stochastic approximation using a simultaneous perturbation gradient
        approximation", IEEE Transactions on Automatic Control 37(3), 1992; directions: Shalabh Bhatnagar,
        Michael Fu, Steven Marcus, I-Jeng Wang: "Two-timescale simultaneous perturbation stochastic
        approximation using deterministic perturbation sequences", ACM Transactions on Modeling and Computer
        Simulation 13(2), 2003.
    Reads
        What `late-binding` reads; past arrivals and their nodes; waiting work; plan.params.
    Cost
        As `late-binding`, O(idle nodes) or by an index, a decision; a plan simulates 3 × `window` requests,
        twice as many where queues are long.
    When it wins / loses
        Changes little: neither mean nor p99 beyond chance on unseen clusters of 1,500 requests, and seldom
        for the worse (docs/benchmarks/learned.md). Made for long runs on traffic that the rule's numbers do
        not suit: a step takes `window` / 4 requests. A rollout ends before it could show that a request
        starves: with wider bounds than 2, or if `ageing` is learned too, it finds a lower mean at a far
        longer tail. So `ageing`, which bounds the tail, stays as it was given.
    Deviations from the source
        Gains are constant, because traffic changes, and steps are bounded. The function that is lowered is a
        simulation of what came last, by estimates, not a measurement of the process. Numbers that do worse
        there than those that were given are not used.
    """

    name: ClassVar[str] = "hybrid-rules"
    needs: ClassVar[frozenset[Need]] = LateBinding.needs | {Need.ROLLOUT}
    degrades: ClassVar[Mapping[Need, str]] = {
        **LateBinding.degrades,
        Need.ROLLOUT: "Its numbers stay as they were given.",
    }
    plan_period_s: Positive = 5.0
    bound: OneOrMore = 2.0
    window: Annotated[Count, Tunable(100, 2400, "log")] = 600  # requests
    w_tail: NonNegative = 0.5
    margin_frac: Annotated[NonNegative, Tunable(0.0, 0.2)] = 0.02
    kept: Fraction = 0.8  # of the regret, from step to step

    def plan(self, view: View, history: History, waiting: Any, rollout: Rollout | None) -> Plan | None:
        """The numbers in force, and all that was learned."""

        def weights_at(places: Floats | None) -> list[float]:
            ageing, *learned = self.weights
            if places is None:
                return [ageing, *learned]
            pairs = zip(learned, places.tolist(), strict=True)
            return [ageing, *(value * math.pow(self.bound, 2.0 * place - 1.0) for value, place in pairs)]

        def variant_at(places: Floats | None) -> Variant:
            return Variant(self, empty_plan()._replace(params=np.array(weights_at(places))))

        learned = self.learned((view, history), rollout, np.full(LEARNED, 0.5), variant_at)
        if learned is None:
            return None  # a plan without news would have held requests offered again
        params = [*weights_at(self.in_force(learned)), *learned.written()]
        return empty_plan()._replace(params=np.array(params))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank idle nodes by score under the numbers of the plan."""
        weights = plan.params if len(plan.params) >= SLOTS else memory.params
        return int(rank_held(view, memory, weights, work, ranking))
