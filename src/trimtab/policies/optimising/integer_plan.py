"""Integer plan: an integer programme sets in advance how many requests of each class go to each node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.parameters import NonNegative, Positive
from trimtab.domain.planning import History
from trimtab.domain.view import Memory, Plan, View, can_take, empty_plan, memory, needs_of
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.shared.demand_forecast import Expected, expected
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy

# Of the search. No time limit: the same state gives the same plan.
MOST_BRANCHES = 50
GAP_FRAC = 0.01


def quotas(work: Expected, group_idx: Any, left_out: float) -> Floats | None:
    """Requests of each class for each node [classes, nodes], by the integer programme over groups of nodes.

    Whole numbers of requests for groups of equal nodes: least node time, no group with more than it has; a
    request may be left out at `left_out` times its best time. A group's share is divided among its nodes as
    their time is. None where no solution was found.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # with the first plan: it takes a moment

    _, group = np.unique(group_idx, return_inverse=True)
    capacity_s = np.bincount(group, work.capacity_s)
    own_s = np.stack([np.bincount(group, row) for row in work.own_s]) / np.bincount(group)
    n_classes, n_groups = own_s.shape
    can = np.isfinite(own_s)
    skip_s = left_out * np.where(can.any(axis=1), np.min(own_s, axis=1), 0.0)
    cost_s = np.append(np.where(can, own_s, 0.0).reshape(-1), skip_s)
    number = np.round(work.requests)
    all_once = np.hstack([np.kron(np.eye(n_classes), np.ones(n_groups)), np.eye(n_classes)])
    time_used = np.zeros((n_groups, cost_s.size))
    for g in range(n_groups):
        time_used[g, g : n_classes * n_groups : n_groups] = cost_s[g : n_classes * n_groups : n_groups]
    limits = LinearConstraint(all_once, number, number), LinearConstraint(time_used, ub=capacity_s)
    most = np.append(np.where(can, np.inf, 0.0).reshape(-1), np.full(n_classes, np.inf))
    found = milp(
        cost_s,
        integrality=np.ones(cost_s.size, np.int64),
        bounds=Bounds(0.0, most),
        constraints=limits,
        options={"node_limit": MOST_BRANCHES, "mip_rel_gap": GAP_FRAC},
    )
    if found.x is None:
        return None
    by_group = np.round(found.x[: n_classes * n_groups]).reshape(n_classes, n_groups)
    share = work.capacity_s / np.maximum(capacity_s[group], 1e-9)
    return np.asarray(by_group[:, group] * share, np.float64)


@helper(inline=True)
def _credits_at(view: View) -> int:
    """Where credits [classes, nodes] begin in memory.floats, just behind the begin of the plan followed."""
    return NOTES + view.context.n_nodes + 1


@helper
def _begin_plan(view: View, plan: Plan, memory: Memory) -> None:
    """The first decision under a plan: every class has its quotas as credit."""
    first = _credits_at(view)
    if memory.floats[first - 1] != plan.params[0]:
        memory.floats[first - 1] = plan.params[0]
        for c in range(len(plan.quota)):
            for j in range(view.context.n_nodes):
                memory.floats[first + c * view.context.n_nodes + j] = plan.quota[c, j]


@helper
def _add_rounds(view: View, plan: Plan, work: Any, memory: Memory) -> None:
    """Where no able node has credit for this class: as many rounds of quotas as one of them needs."""
    n, rounds = view.context.n_nodes, np.inf
    first, c = _credits_at(view) + work.class_idx * n, work.class_idx
    for j in range(n):
        if plan.quota[c, j] > 0.0 and can_take(view, work, j):
            if memory.floats[first + j] > 0.0:
                return
            rounds = min(rounds, math.floor(-memory.floats[first + j] / plan.quota[c, j]) + 1.0)
    if rounds < np.inf:
        for j in range(n):
            memory.floats[first + j] += rounds * plan.quota[c, j]


@dataclass(frozen=True)
class IntegerPlan(LoadsPolicy):
    """Plan how many requests of each class each node gets; follow that by deficit round robin.

    Idea
        Every `plan_period_s`: forecast the arrivals per class over the next `services` mean services, add
        what waits, and solve the integer programme class → group of equal nodes: least node time, within the
        time that the slots have left; work may be left out at `left_out` times its best time. A node has its
        quota as credit, and one less for every request of the class. score(node) = expected completion, plus
        `patience` best services where no credit is left; least first, ties by node. When no node has credit,
        all get their quota again.
    Source
        The generalised assignment problem: G. Terry Ross, Richard Soland, "A branch and bound algorithm for
        the generalized assignment problem", Mathematical Programming 8, 1975. Quotas are followed as in M.
        Shreedhar, George Varghese: "Efficient fair queuing using deficit round robin", ACM SIGCOMM, 1995.
        From memory.
    Reads
        Past arrivals and their models, held requests; what `least-expected-completion` reads; plan.quota.
    Cost
        O(nodes) a decision; a plan is an integer programme with a number for each class and group of nodes,
        searched by at most 50 nodes of branch and bound.
    When it wins / loses
        Wins where a class has few nodes, or few good ones, and a greedy choice would fill them with other
        classes. Loses a little where nodes differ by their models rather than by type: quotas are per class.
    Deviations from the source
        A queue's turn is a node's turn. Quotas give way where a request would wait for long. Within a group
        they are fractions. Debts beyond one request are cancelled. A class is as many equal jobs as are
        expected; branch and bound is HiGHS's, up to a gap of 1 %.
    """

    name: ClassVar[str] = "integer-plan"
    plan_period_s: Positive = 5.0
    services: Positive = 12.0
    left_out: NonNegative = 3.0
    patience: NonNegative = 0.5

    def init(self, cluster: Cluster) -> Memory:
        """The patience; notes of the nodes, the plan that is followed, credits [classes, nodes]."""
        notes, cells = notes_room(cluster.n_nodes), len(cluster.class_names) * cluster.n_nodes
        floats = np.concatenate([np.zeros(notes), [-1.0], np.zeros(cells)])
        return memory(params=[self.patience], floats=floats)

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """Quotas of the classes; params say when the plan was made."""
        work = expected(view, history, waiting, self.plan_period_s, self.services)
        quota = quotas(work, view.nodes.group_idx, self.left_out)
        if quota is None:
            return None
        return empty_plan()._replace(quota=quota, params=np.array([float(view.context.now_s)]))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion, those without credit as if later."""
        n, needs, is_planned = view.context.n_nodes, needs_of(work), len(plan.quota) > 0
        floats, first = memory.floats, _credits_at(view) + work.class_idx * n
        if is_planned:
            _begin_plan(view, plan, memory)
            _add_rounds(view, plan, needs, memory)
        patience_s = memory.params[0] * work.estimate_s
        for j in range(n):
            late_s = patience_s if is_planned and floats[first + j] <= 0.0 else 0.0
            completion_s = expected_completion_s(view, needs, j) + late_s
            floats[NOTES + j] = completion_s if can_take(view, needs, j) else np.inf
        count = int(rank_noted(floats, ranking, n))
        if count > 0 and is_planned:
            j = ranking.node_idx[0]
            floats[first + j] = max(-1.0, floats[first + j] - 1.0)
        return count
