"""Load forecast: the node whose load will be least, by forecasts of each node's load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    empty_plan,
    estimate_s,
    estimates_s,
    memory,
    needs_of,
    type_of_node,
)
from trimtab.errors import UsageError
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted

STEPS = 32  # of the past, one period each
METHODS = ("naive", "ses", "holt", "ar", "mixture")


def past_loads_s(view: View, history: History, step_s: float) -> Floats:
    """Estimated seconds of the work in flight per slot of each node, now and at steps before [steps, nodes].

    The history of arrivals gives the node and the end of each request. A request counts from its arrival on,
    in full until it ends.
    """
    nodes, now_s, work = view.nodes, view.context.now_s, history.work
    n, sent = len(nodes), history.node_idx >= 0
    known = sent & (history.in_flight | np.isfinite(history.finish_s))
    work, node, finish_s = work[known], history.node_idx[known], history.finish_s[known]
    if not len(work):
        return np.zeros((1, n))
    steps = 1 + min(STEPS - 1, int((now_s - work["arrival_s"][0]) / step_s))
    at_s = now_s - step_s * np.arange(steps - 1, -1, -1)
    estimate = estimates_s(view, work, node)
    estimate = np.where(np.isfinite(estimate), estimate, 0.0)
    first = np.searchsorted(at_s, work["arrival_s"], side="left")
    last = np.searchsorted(at_s, np.where(np.isnan(finish_s), np.inf, finish_s), side="left")
    change = np.zeros((steps + 1, n))
    np.add.at(change, (first, node), estimate)
    np.add.at(change, (last, node), -estimate)
    return np.asarray(np.maximum(0.0, np.cumsum(change, axis=0)[:steps]) / nodes.slots, np.float64)


def forecast_loads_s(loads_s: Floats, method: str) -> Floats:
    """Load of each node one step ahead [nodes], from the loads so far [steps, nodes]."""
    if method == "naive" or len(loads_s) < 3:
        return loads_s[-1]
    from trimtab.forecast import Forecaster, Smoother  # with the first forecast: it takes a moment

    chosen: dict[str, Any] = {
        "ses": {"smoothers": (Smoother("ses", 0.4),), "has_filter": False},
        "holt": {"smoothers": (Smoother("holt", 0.4, 0.1, 0.9),), "has_filter": False},
        "ar": {"smoothers": (), "medians": ()},
        "mixture": {},
    }
    forecaster = Forecaster(loads_s.shape[1], least=0.0, **chosen[method])
    forecaster.update(loads_s)
    return forecaster.forecast(levels=()).mean[:, 0]


@dataclass(frozen=True)
class LoadForecast(Policy):
    """Send each request to the node whose load is forecast to be least.

    Idea
        Load of a node = estimated seconds of its work in flight per slot. Every `plan_period_s` the load of
        each node one period ahead is forecast from its last 32 periods, by `method`: naive (the last value),
        ses (simple exponential smoothing), holt (with a damped trend), ar (an autoregressive filter) or
        mixture (of all, by recent error). score(node) = present load + forecast change + own estimate per
        slot; least first, ties by node.
    Source
        Peter Dinda, David O'Hallaron: "Host load prediction using linear models", Cluster Computing 3(4),
        2000 (autoregressive models suffice to forecast host load); choice among methods by their recent
        error: Rich Wolski, Neil Spring, Jim Hayes, "The network weather service: a distributed resource
        performance forecasting service for metacomputing", Future Generation Computer Systems 15(5-6), 1999.
    Reads
        Past arrivals, where they went and when they ended; plan.weights; estimates and slots; which nodes are
        up, have room and serve the class.
    Cost
        O(nodes) a decision; a plan takes in 32 values of each node.
    When it wins / loses
        Wins where slow nodes keep their load and other nodes lose it. With the method naive the policy is
        `least-expected-wait`. Where periods are long compared with services, forecasts add noise. Blind to
        model loads.
    Deviations from the source
        Load is counted from the scheduler's own records, not measured at the host, and the forecast of its
        change is added to what is reported now; filters are of order 8, run over a window anew for each plan.
    """

    name: ClassVar[str] = "load-forecast"
    plan_period_s: float = 2.0
    method: str = "mixture"

    def __post_init__(self) -> None:
        """Check the method."""
        if self.method not in METHODS:
            expected = ", ".join(METHODS)
            raise UsageError("unknown", field="load-forecast.method", value=self.method, expected=expected)

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes."""
        return memory(floats=notes_room(cluster.n_nodes))

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan:
        """The forecast change of each node's load."""
        loads_s = past_loads_s(view, history, self.plan_period_s)
        return empty_plan()._replace(weights=forecast_loads_s(loads_s, self.method) - loads_s[-1])

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by forecast load."""
        nodes, floats, needs = view.nodes, memory.floats, needs_of(work)
        for j in range(view.context.n_nodes):
            present_s = nodes.outstanding_s[j] + estimate_s(view, needs, type_of_node(view, j))
            change_s = plan.weights[j] if len(plan.weights) > 0 else 0.0
            score = present_s / max(1, nodes.slots[j]) + change_s
            floats[NOTES + j] = score if can_take(view, needs, j) else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
