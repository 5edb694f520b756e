"""Predictive: prepares nodes and models for the forecast arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, Positive
from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Reason
from trimtab.domain.view import Memory, Plan, View, can_take, empty_plan, memory, needs_of
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.predictive.staffing import services_of_models_s, slots_needed, staffed
from trimtab.policies.predictive.watch import availability
from trimtab.policies.shared.delivery import has_outlook, with_outages_s
from trimtab.policies.shared.demand_forecast import STEPS, Expected, ForecasterName, expected, rates_per_s
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS

_LATE = -int(Reason.POLICY)
Mask = NDArray[np.uint8]


def spread_of(view: View, work: Any) -> Floats:
    """Squared coefficient of variation of the best services of each class [classes]; 1 where not known."""
    n_classes = len(view.fixed_s)
    count = np.bincount(work["class_idx"], minlength=n_classes)
    best_s = np.where(np.isfinite(work["estimate_s"]), work["estimate_s"], 0.0)
    mean = np.bincount(work["class_idx"], best_s, minlength=n_classes) / np.maximum(count, 1)
    square = np.bincount(work["class_idx"], best_s**2, minlength=n_classes) / np.maximum(count, 1)
    known = (count > 1) & (mean > 0.0)
    return np.where(known, square / np.where(known, mean, 1.0) ** 2 - 1.0, 1.0).clip(0.0)


def shared_out(view: View, work: Expected, rate_per_s: Floats, scv: Floats, wait_frac: float) -> Mask:
    """Nodes that each class is to use, u1 [classes, nodes]: as many slots as M/G/c wants, the best first.

    Classes that few nodes serve choose first. Nodes that no class needs are for all. If nodes are short, all
    classes get the same share of their need.
    """
    can = np.isfinite(work.own_s) & (view.nodes.up == 1)
    best_s = np.min(work.own_s, axis=1, where=can, initial=np.inf)
    has_work = np.isfinite(best_s) & (best_s > 0.0)  # a class unseen so far may have none
    comes = np.flatnonzero((rate_per_s > 0.0) & has_work)
    slots = np.asarray(view.nodes.slots, np.float64)
    need = np.zeros(len(can))
    for c in comes:
        mean_s = float(np.average(work.own_s[c, can[c]], weights=slots[can[c]] / work.own_s[c, can[c]]))
        need[c] = slots_needed(float(rate_per_s[c]), mean_s, float(scv[c]), wait_frac)
    need *= min(1.0, slots.sum() / max(need.sum(), 1.0))
    eligible, taken = np.zeros(can.shape, np.uint8), np.zeros(can.shape[1], bool)
    relative = np.where(can & has_work[:, None], work.own_s, 0.0) / np.where(has_work, best_s, 1.0)[:, None]
    usual = relative.sum(axis=0) / np.maximum(1, can.sum(axis=0))  # [nodes] how slow a node is for any class
    for c in sorted(comes, key=lambda c: int(can[c].sum())):
        free = np.flatnonzero(can[c] & ~taken)
        fit = relative[c, free] / usual[free]
        chosen = free[np.argsort(fit, kind="stable")]
        chosen = chosen[: int(np.searchsorted(np.cumsum(slots[chosen]), need[c] - 1e-9)) + 1]
        eligible[c, chosen], taken[chosen] = 1, True
    eligible[:, ~taken] = 1
    return eligible & can.astype(np.uint8)


def needs_of_models(view: View, work: Any, service_s: Floats, policy: Predictive) -> Floats:
    """Slots that each model needs [items], for arrivals until a model loaded now has served for a while."""
    n_items = view.resident.shape[1]
    of, step_s = work[work["model_idx"] >= 0], policy.plan_period_s
    need, served = np.zeros(n_items), np.isfinite(service_s).any(axis=1)
    if not len(of):
        return need
    load_s = view.load_s[served][:, np.unique(view.nodes.type_idx)].max(initial=0.0)
    mean_s = np.nanmean(np.where(np.isfinite(service_s[served]), service_s[served], np.nan))
    steps = min(STEPS, max(1, int(np.ceil((load_s + policy.services * mean_s) / step_s))))
    times = of["arrival_s"], of["model_idx"]
    rate = rates_per_s(*times, n_items, view.context.now_s, step_s, steps, policy.forecaster)
    for m in np.flatnonzero(served & (rate > 0.0)):
        own_s = service_s[m][np.isfinite(service_s[m])]
        need[m] = slots_needed(float(rate[m]), float(own_s.mean()), 1.0, policy.wait_frac)
    total = view.nodes.slots[view.nodes.up == 1].sum()
    return need * min(1.0, total / max(need.sum(), 1.0))


@dataclass(frozen=True)
class Predictive(Policy):
    """Forecast each class's arrivals; set aside the nodes that a queueing model says it needs.

    Idea
        Every `plan_period_s`: forecast the arrivals of each class over the next `services` mean services. The
        slots of a class are the fewest at which the mean wait of M/G/c is at most `wait_frac` of a service;
        it gets the nodes that suit it best, and nodes that none needs are for all. The same formula gives the
        slots of each model, from its forecast arrivals until a load that begins now is over. Nodes that hold
        a model keep it as far as it needs their slots. A model that lacks slots is loaded ahead, on nodes
        with slots to spare, in the room of models that need none there. score(node) = expected completion,
        plus `outside` best services on nodes set aside for others; least first, ties by node. Completion t on
        a node with failures of rate λ is (exp(λ t) - 1) / λ, by the failures that plans have seen and those
        of the node's type; work that a planned outage would cut short counts from its end. A request whose
        deadline no node is expected to meet, by `grace` services, is rejected, with `admission`. The
        `forecaster` is naive, ses, holt, arima or mixture.
    Source
        Forecast and staffing: Zhenhuan Gong, Xiaohui Gu, John Wilkes, "PRESS: predictive elastic resource
        scaling for cloud systems", CNSM, 2010, and Bhuvan Urgaonkar, Prashant Shenoy, Abhishek Chandra, Pawan
        Goyal, "Dynamic provisioning of multi-tier internet applications", ICAC, 2005. Waits in M/G/c: Ward
        Whitt, "Approximations for the GI/G/m queue", Production and Operations Management 2(2), 1993.
    Reads
        Past arrivals and their models, held requests; which nodes are up, and the maintenance calendar; what
        `least-expected-completion` reads; deadlines; plan.eligible and plan.price.
    Cost
        O(nodes) a decision; a plan forecasts the classes and tries O(classes · log nodes) formulas.
    When it wins / loses
        Wins where loads take much longer than services and demand moves slowly from model to model, as in the
        course of a day; where demand is steady, or in bursts without a forecast, placement neither gains nor
        costs: on `aigc-images` at loads 0.6 and 0.8 the mean without rejections is that of
        `least-expected-completion` to within 1 %. Gains by availability are small unless a failure in mid
        service is likely. Rejecting flatters the mean of those that are served: judge it by `goodput_per_s`,
        which rises by 2 % there at load 0.6 and by 38 % at 0.8.
    Deviations from the source
        Nodes are divided among classes, not started and stopped; a class may use others' nodes at a price; a
        gateway's nodes without `loading` load it with the first request for it. Failures that are repaired
        between two plans are not seen.
    """

    name: ClassVar[str] = "predictive"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.PLACEMENT, Need.DEADLINES})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.PLACEMENT: "Nodes keep what is placed on them, but load it with the first request for it.",
        Need.DEADLINES: "No request is rejected.",
    }
    plan_period_s: Positive = 10.0
    services: Positive = 4.0
    wait_frac: NonNegative = 0.25
    outside: NonNegative = 0.25
    grace: NonNegative = 0.0
    admission: bool = True
    forecaster: ForecasterName = "mixture"

    def init(self, cluster: Cluster) -> Memory:
        """The price of others' nodes, the grace (inf: nothing is rejected); notes of the nodes."""
        grace = self.grace if self.admission else np.inf
        return memory(params=[self.outside, grace], floats=notes_room(cluster.n_nodes))

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """Nodes of each class, and the models that they keep."""
        if not len(history.work):
            return None
        work = expected(view, history, waiting, self.plan_period_s, self.services)
        service_s = services_of_models_s(view, history.work)
        need = needs_of_models(view, history.work, service_s, self)
        memory_gib = view.memory_gib[view.nodes.type_idx]
        scv = spread_of(view, history.work)
        eligible = shared_out(view, work, work.requests / work.ahead_s, scv, self.wait_frac)
        placement = staffed(view, need, service_s, memory_gib).placement
        price, params = availability(view, history.plan.params)
        made = empty_plan()._replace(eligible=eligible, placement=placement)
        return made._replace(price=price, params=params)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by completion, its own first; reject what would be late everywhere."""
        needs, floats = needs_of(work), memory.floats
        soonest_s, is_planned, is_told = np.inf, len(plan.eligible) > 0, has_outlook(plan)
        outside_s = memory.params[0] * work.estimate_s
        for j in range(view.context.n_nodes):
            score = expected_completion_s(view, needs, j) if can_take(view, needs, j) else np.inf
            if is_told and score < np.inf:
                score = with_outages_s(view, plan, j, score)
            soonest_s = min(soonest_s, score)
            if is_planned:  # a product, not a branch, as with loads
                score += outside_s * (1 - plan.eligible[needs.class_idx, j])
            floats[NOTES + j] = score
        count = int(rank_noted(floats, ranking, view.context.n_nodes))
        late_s = view.context.now_s + soonest_s - work.deadline_s
        if count > 0 and work.deadline_s < np.inf and late_s > memory.params[1] * work.estimate_s:
            return _LATE
        return count
