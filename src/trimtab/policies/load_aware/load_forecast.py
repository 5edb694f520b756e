"""Load forecast: the node of least load, with a forecast of what others have sent since the last report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Floats
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, Positive
from trimtab.domain.planning import History
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    empty_plan,
    needs_of,
    service_s,
)
from trimtab.policies.shared.demand_forecast import ForecasterName, counts, forecast_means, mean_services_s
from trimtab.policies.shared.selection import NOTES, NotingPolicy, rank_noted
from trimtab.policies.shared.waits import OVERDUE_FRAC

PASSES = 8  # over the nodes, to find the level: each leaves out those above it, until none is
_CHOSEN = -1.0  # note of the node that is drawn: before all loads


def services_on_nodes_s(view: View, history: History) -> Floats:
    """Mean estimate of the past requests on each node that serves them [nodes].

    Nodes that serve none of them have the mean over the others.
    """
    service_s, seen = mean_services_s(view, history.work)
    weight = np.where(np.isfinite(service_s), seen[:, None], 0.0)
    total_s = (np.where(weight > 0.0, service_s, 0.0) * weight).sum(axis=0)
    of_type = weight.sum(axis=0)
    usual_s = total_s.sum() / max(of_type.sum(), 1.0)
    mean_s = np.where(of_type > 0.0, total_s / np.where(of_type > 0.0, of_type, 1.0), usual_s)
    return np.asarray(mean_s[view.nodes.type_idx], np.float64)


@helper(inline=True)
def load_s(view: View, j: int, at_s: float) -> float:
    """Estimated seconds of work left per slot of node j at a time, as `least-expected-wait` counts them."""
    nodes, slots = view.nodes, max(1, view.nodes.slots[j])
    left_s = nodes.anchor_s[j] + nodes.backlog_s[j] / slots - at_s
    if left_s > 0.0:
        return float(left_s)
    return 0.0 if nodes.in_flight[j] < slots else float(OVERDUE_FRAC * nodes.outstanding_s[j] / slots)


@helper(inline=True)
def _share(view: View, plan: Plan, j: int) -> float:
    """Requests that fill node j by a second."""
    return max(1, view.nodes.slots[j]) / max(1e-9, plan.weights[j])


@helper
def level_of(view: View, plan: Plan, floats: Any, requests: float) -> float:
    """The load up to which so many requests fill the nodes, least loaded first; loads are the notes.

    -1 where no node can take any.

    Newton's method from above on Σ share · max(0, level − load) = requests, which is convex.
    """
    level = np.inf
    for _ in range(PASSES):
        total, filled = 0.0, requests
        for j in range(view.context.n_nodes):
            if floats[NOTES + j] < level:
                share = _share(view, plan, j)
                total += share
                filled += share * floats[NOTES + j]
        if total <= 0.0 or filled >= level * total:
            return level if level < np.inf else -1.0
        level = filled / total
    return level


@helper
def draw_below(view: View, plan: Plan, floats: Any, level: float, u: float) -> int:
    """A node whose note is at most the level, in proportion to its share; -1 if there is none."""
    total, found = 0.0, -1
    for j in range(view.context.n_nodes):
        total += _share(view, plan, j) if floats[NOTES + j] <= level else 0.0
    left = u * total
    for j in range(view.context.n_nodes):
        if floats[NOTES + j] <= level:
            found = j
            left -= _share(view, plan, j)
            if left < 0.0:
                break
    return found


@dataclass(frozen=True)
class LoadForecast(NotingPolicy):
    """Send each request to the node of least load, by the report and a forecast of what came since.

    Idea
        Load of a node = seconds of work left per slot, as `least-expected-wait` counts them. With several
        dispatchers and old reports it lacks what the other dispatchers have sent since: n = forecast arrivals
        per second · age of the report · share of the others. All dispatchers fill the same nodes, the least
        loaded first, so the others' n requests fill them up to one level. A request goes to a node that is
        not above the level, drawn in proportion to slots / mean service; others follow by load. What a
        dispatcher sent itself is counted exactly. The arrivals of the next period are forecast every
        `plan_period_s` from the last 32 periods, by the `forecaster`: naive (the last value), ses (simple
        exponential smoothing), holt (with a damped trend), arima (with mean or drift, order by AICc) or
        mixture (of all but ARIMA, by recent error). With fresh reports, or one dispatcher, n = 0: the policy
        decides as `least-expected-wait`.
    Source
        Michael Dahlin: "Interpreting stale load information", IEEE Transactions on Parallel and Distributed
        Systems 11(10), 2000 (aggressive load interpretation). Water filling by several dispatchers at once:
        Guy Goren, Shay Vargaftik, Yoram Moses, "Distributed dispatching in the parallel server model", DISC,
        2020. Of both the abstracts were read; formulas are from memory. Choice among forecasters by their
        recent error: Rich Wolski, Neil Spring, Jim Hayes, "The network weather service: a distributed
        resource performance forecasting service for metacomputing", Future Generation Computer Systems
        15(5-6), 1999.
    Reads
        Backlog and its time, estimated outstanding seconds, requests in flight and slots of each node; the
        age of the report and the number of dispatchers; past arrivals; plan.weights and plan.params;
        estimates; which nodes are up, have room and serve the class.
    Cost
        O(nodes) a decision, with old reports up to ten times over the nodes.
    When it wins / loses
        Wins over `least-expected-wait` where reports are old and dispatchers many: these no longer send all
        to the same node. It gains nothing with fresh reports: what a scheduler sends makes the loads, so a
        forecast of loads from their past forecasts the scheduler itself. Forecasters differ little here.
        Blind to model loads and sizes when it draws.
    Deviations from the source
        The rate of arrivals is forecast, not known. Unequal nodes: shares by slots and mean service. A
        dispatcher counts its own requests exactly, not as part of the flow. Work is not drained between
        reports, which changes no order of loads until a node runs empty.
    """

    name: ClassVar[str] = "load-forecast"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.STALE_REPORTS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.STALE_REPORTS: "There is nothing to forecast: it decides as `least-expected-wait`."
    }
    draws: Count = 1
    plan_period_s: Positive = 2.0
    forecaster: ForecasterName = "mixture"

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """The forecast rate of arrivals, and the mean service on each node."""
        is_late = view.context.n_dispatchers > 1 and np.isfinite(view.context.reported_s)
        arrival_s, step_s = history.work["arrival_s"], self.plan_period_s
        table = counts(arrival_s, np.zeros(len(arrival_s), np.int64), 1, view.context.now_s, step_s)
        if not is_late or not len(table):
            return None
        rate_per_s = forecast_means(table, 1, self.forecaster) / step_s
        return empty_plan()._replace(weights=services_on_nodes_s(view, history), params=rate_per_s)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Draw a node below the level, if the report is old; rank the others by load."""
        context, floats, needs = view.context, memory.floats, needs_of(work)
        age_s, others = context.now_s - context.reported_s, context.n_dispatchers - 1
        is_late = age_s > 0.0 and others > 0 and len(plan.params) > 0
        at_s = context.reported_s if is_late else context.now_s
        for j in range(context.n_nodes):
            there_s = plan.weights[j] if is_late else service_s(view, needs, j)
            score = load_s(view, j, at_s) + there_s / max(1, view.nodes.slots[j])
            floats[NOTES + j] = score if can_take(view, needs, j) else np.inf
        if is_late:
            requests = plan.params[0] * age_s * others / context.n_dispatchers
            level = level_of(view, plan, floats, requests)
            j = draw_below(view, plan, floats, level, draws[0])
            if j >= 0:
                floats[NOTES + j] = _CHOSEN
        return int(rank_noted(floats, ranking, context.n_nodes))
