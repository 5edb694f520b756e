"""Predictive: prepares nodes and models for the forecast arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster, Floats, Ints
from trimtab.domain.decision import Reason
from trimtab.domain.needs import Need
from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, empty_plan, memory, needs_of
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.shared.demand_forecast import LOOK_BACK, Expected, expected
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.without import NO_LOADS

_LATE = -int(Reason.POLICY)
Mask = NDArray[np.uint8]


def slots_needed(rate_per_s: float, mean_s: float, scv: float, wait_frac: float) -> int:
    """Fewest servers at which the mean wait of M/G/c is at most `wait_frac` mean services; by bisection."""
    from trimtab.forecast.queueing import mgc  # with the first plan: it takes a moment

    def is_enough(servers: int) -> bool:
        return mgc(servers, rate_per_s, mean_s, scv).wait_s <= wait_frac * mean_s

    few, enough = int(rate_per_s * mean_s), int(rate_per_s * mean_s) + 1
    while not is_enough(enough):
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if is_enough(middle) else (middle, enough)
    return enough


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
    comes = np.flatnonzero((rate_per_s > 0.0) & can.any(axis=1))
    slots = np.asarray(view.nodes.slots, np.float64)
    need = np.zeros(len(can))
    for c in comes:
        mean_s = float(np.average(work.own_s[c, can[c]], weights=slots[can[c]] / work.own_s[c, can[c]]))
        need[c] = slots_needed(float(rate_per_s[c]), mean_s, float(scv[c]), wait_frac)
    need *= min(1.0, slots.sum() / max(need.sum(), 1.0))
    eligible, taken = np.zeros(can.shape, np.uint8), np.zeros(can.shape[1], bool)
    best_s = np.min(work.own_s, axis=1, where=can, initial=np.inf)
    relative = np.where(can, work.own_s, 0.0) / best_s[:, None]
    usual = relative.sum(axis=0) / np.maximum(1, can.sum(axis=0))  # [nodes] how slow a node is for any class
    for c in sorted(comes, key=lambda c: int(can[c].sum())):
        free = np.flatnonzero(can[c] & ~taken)
        fit = relative[c, free] / usual[free]
        chosen = free[np.argsort(fit, kind="stable")]
        chosen = chosen[: int(np.searchsorted(np.cumsum(slots[chosen]), need[c] - 1e-9)) + 1]
        eligible[c, chosen], taken[chosen] = 1, True
    eligible[:, ~taken] = 1
    return eligible & can.astype(np.uint8)


def placed(view: View, eligible: Mask, work: Any) -> Mask:
    """Items to keep, u1 [nodes, items]: its class's models, by how often they were asked for.

    One model a node; a node that holds the model already is given it first.
    """
    placement = np.zeros(view.resident.shape, np.uint8)
    own = eligible.sum(axis=0) == 1  # nodes of one class
    for c in np.unique(work["class_idx"]):
        nodes = np.flatnonzero(own & (eligible[c] == 1))
        items, count = np.unique(work["model_idx"][work["class_idx"] == c], return_counts=True)
        count = count[items >= 0]
        items = items[items >= 0]
        if len(nodes) and len(items):
            _place(view, placement, nodes, items, count / count.sum() * len(nodes))
    return placement


def _place(view: View, placement: Mask, nodes: Ints, items: Ints, share: Floats) -> None:
    """Give each of `nodes` one of `items`, in proportion to `share` [items], which adds up to the nodes."""
    whole = np.floor(share).astype(np.int64)
    largest = np.argsort(whole - share, kind="stable")[: len(nodes) - int(whole.sum())]
    whole[largest] += 1
    free = list(nodes)
    for k in np.argsort(-share, kind="stable"):
        holders = sorted(free, key=lambda j: int(view.resident[j, items[k]] == 0))[: whole[k]]
        placement[holders, items[k]] = 1
        free = [j for j in free if j not in holders]


@dataclass(frozen=True)
class Predictive(Policy):
    """Forecast each class's arrivals; set aside the nodes that a queueing model says it needs.

    Idea
        Every `plan_period_s`: forecast the arrivals of each class over the next `services` mean services. The
        slots of a class are the fewest at which the mean wait of M/G/c is at most `wait_frac` of a service;
        it gets the nodes that suit it best, and nodes that none needs are for all. A node of one class keeps
        one of its models, in proportion to how often they are asked for. score(node) = expected completion,
        plus `outside` best services on nodes set aside for others; least first, ties by node. A request whose
        deadline no node is expected to meet, by `grace` services, is rejected.
    Source
        Forecast and staffing: Zhenhuan Gong, Xiaohui Gu, John Wilkes, "PRESS: predictive elastic resource
        scaling for cloud systems", CNSM, 2010, and Bhuvan Urgaonkar, Prashant Shenoy, Abhishek Chandra, Pawan
        Goyal, "Dynamic provisioning of multi-tier internet applications", ICAC, 2005. Waits in M/G/c: Ward
        Whitt, "Approximations for the GI/G/m queue", Production and Operations Management 2(2), 1993.
    Reads
        Past arrivals and their models, held requests; what `least-expected-completion` reads; deadlines;
        plan.eligible.
    Cost
        O(nodes) a decision; a plan forecasts the classes and tries O(classes · log nodes) formulas.
    When it wins / loses
        Wins where deadlines are tight: it rejects requests that would be late anyway, so that others meet
        theirs. The partition costs little where `outside` is small, and hinders in bursts without a forecast.
    Deviations from the source
        Nodes are divided among classes, not started and stopped; a class may use others' nodes at a price; a
        gateway's nodes keep what is placed, but load it with the first request for it.
    """

    name: ClassVar[str] = "predictive"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.PLACEMENT, Need.DEADLINES})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.PLACEMENT: "Nodes keep what is placed on them, but load it with the first request for it.",
        Need.DEADLINES: "No request is rejected.",
    }
    plan_period_s: float = 10.0
    services: float = 4.0
    wait_frac: float = 0.25
    outside: float = 0.25
    grace: float = 0.0
    admission: bool = True

    def init(self, cluster: Cluster) -> Memory:
        """The price of others' nodes, the grace (inf: nothing is rejected); notes of the nodes."""
        grace = self.grace if self.admission else np.inf
        return memory(params=[self.outside, grace], floats=notes_room(cluster.n_nodes))

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """Nodes of each class, and the models that they keep."""
        if not len(history.work):
            return None
        work = expected(view, history, waiting, self.plan_period_s, self.services)
        recent = history.work[-LOOK_BACK:]
        scv = spread_of(view, history.work)
        eligible = shared_out(view, work, work.requests / work.ahead_s, scv, self.wait_frac)
        return empty_plan()._replace(eligible=eligible, placement=placed(view, eligible, recent))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by completion, its own first; reject what would be late everywhere."""
        needs, floats = needs_of(work), memory.floats
        soonest_s, is_planned = np.inf, len(plan.eligible) > 0
        outside_s = memory.params[0] * work.estimate_s
        for j in range(view.context.n_nodes):
            score = expected_completion_s(view, needs, j) if can_take(view, needs, j) else np.inf
            soonest_s = min(soonest_s, score)
            if is_planned:  # a product, not a branch, as with loads
                score += outside_s * (1 - plan.eligible[needs.class_idx, j])
            floats[NOTES + j] = score
        count = int(rank_noted(floats, ranking, view.context.n_nodes))
        late_s = view.context.now_s + soonest_s - work.deadline_s
        if count > 0 and work.deadline_s < np.inf and late_s > memory.params[1] * work.estimate_s:
            return _LATE
        return count
