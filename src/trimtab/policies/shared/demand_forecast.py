"""Expectations of planners: forecast arrivals per class, and the work of the next period on every node.

The view's estimates come as whole tables, for many requests and nodes at once. Prices of node time are the
dual of the assignment of expected work to nodes.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Floats
from trimtab.domain.planning import History
from trimtab.domain.view import Memory, Plan, View, can_take, missing_load_s, needs_of, service_s
from trimtab.policies.shared.selection import NOTES, NotingPolicy, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy
from trimtab.policies.shared.waits import expected_wait_s

ForecasterName: TypeAlias = Literal["naive", "ses", "holt", "arima", "mixture"]
FORECASTERS: tuple[ForecasterName, ...] = get_args(ForecasterName)
FEWEST = 3  # steps that a forecast needs
SES, HOLT = (0.4,), (0.4, 0.1, 0.9)  # α, and with the trend β and its damping φ
LOTS = 24  # that the expected work is divided into: the dual is linear in their number
STAGES_FRAC = (0.1, 0.03)  # of the smoothing
ITERATIONS = 15  # of a stage; it starts from the last prices


def services_s(view: View, work: Any) -> Floats:
    """Estimated service seconds of each row of WORK on each node type [requests, types]; inf: not served."""
    c = work["class_idx"]
    return np.asarray(view.fixed_s[c] + view.unit_s[c] * work["units"][:, None], np.float64)


def loads_s(view: View, work: Any) -> Floats:
    """Seconds of loading that each node would need before it can serve each row of WORK [requests, nodes]."""
    total = np.zeros((len(work), len(view.nodes)))
    for item in (work["model_idx"], work["adapter_idx"]):
        needs = np.flatnonzero(item >= 0)
        if len(needs):
            m = item[needs]
            total[needs] += np.where(view.resident.T[m] == 0, view.load_s[m][:, view.nodes.type_idx], 0.0)
    return total


def remaining_s(view: View) -> Floats:
    """Estimated seconds of work left at each node, queued and running [nodes]."""
    nodes = view.nodes
    worked_off_s = nodes.running * (view.context.now_s - nodes.anchor_s)
    return np.asarray(np.maximum(0.0, nodes.backlog_s - worked_off_s), np.float64)


def forecast_means(table: Floats, ahead_steps: int, name: str) -> Floats:
    """Mean over the next steps of each series [series], from its last steps [steps, series]; never below 0.

    "naive" repeats the last step, "ses" is simple exponential smoothing, "holt" has a damped trend, "arima"
    has a mean and its order by AICc, "mixture" is all of `trimtab.forecast`, weighed by recent error. The
    mean of what was seen, where that is too short.
    """
    if len(table) < FEWEST:
        return np.asarray(table.mean(axis=0), np.float64)
    if name == "naive":
        return np.asarray(table[-1], np.float64)
    if name == "arima":
        return np.array([_arima_mean(series, ahead_steps) for series in table.T])
    from trimtab.forecast import Forecaster, Smoother  # with the first forecast: it takes a moment

    chosen: dict[str, Any] = {
        "ses": {"smoothers": (Smoother("ses", *SES),), "has_filter": False},
        "holt": {"smoothers": (Smoother("holt", *HOLT),), "has_filter": False},
        "mixture": {},
    }
    forecaster = Forecaster(table.shape[1], horizon=ahead_steps, least=0.0, **chosen[name])
    forecaster.update(table)
    return np.asarray(forecaster.forecast(levels=()).mean.mean(axis=1), np.float64)


def _arima_mean(series: Floats, ahead_steps: int) -> float:
    from trimtab.forecast import arima_paths, quick_arima

    return max(0.0, float(arima_paths(quick_arima(series), series, ahead_steps)[-1].mean()))


STEPS = 32  # of the past, in which arrivals are counted
LOOK_BACK = 256  # arrivals that give the mix of models


def counts(times_s: Any, series: Any, n_series: int, now_s: float, step_s: float) -> Floats:
    """How often each series came in each of the last steps before now [steps, series], whole steps only."""
    steps = min(STEPS, int((now_s - times_s[0]) / step_s)) if len(times_s) else 0
    ago = np.floor((now_s - np.asarray(times_s)) / step_s).astype(np.int64)
    known = (ago >= 0) & (ago < steps)
    table = np.zeros((steps, n_series))
    np.add.at(table, (steps - 1 - ago[known], np.asarray(series)[known]), 1.0)
    return table


def rates_per_s(
    times_s: Any,
    series: Any,
    n_series: int,
    now_s: float,
    step_s: float,
    ahead_steps: int,
    forecaster: str = "mixture",
) -> Floats:
    """Expected arrivals per second of each series over the next steps [series].

    The forecaster gives them once there are enough steps; until then the mean does.
    """
    table = counts(times_s, series, n_series, now_s, step_s)
    if len(table) < FEWEST:
        seen_s = max(step_s, now_s - times_s[0]) if len(times_s) else step_s
        return np.bincount(series, minlength=n_series) / seen_s
    return forecast_means(table, ahead_steps, forecaster) / step_s


def mean_services_s(view: View, work: Any) -> tuple[Floats, Floats]:
    """Estimated service of each class's mean size [classes, types], inf: not served; requests [classes]."""
    n_classes = len(view.fixed_s)
    seen = np.bincount(work["class_idx"], minlength=n_classes)
    mean_units = np.bincount(work["class_idx"], work["units"], minlength=n_classes) / np.maximum(seen, 1)
    return view.fixed_s + view.unit_s * mean_units[:, None], seen.astype(np.float64)


class Expected(NamedTuple):
    """The work of the next period, and the nodes' capacity for it."""

    requests: Floats  # [classes]
    own_s: Floats  # [classes, nodes] service and, on average, loading of one request; inf: not served
    capacity_s: Floats  # [nodes] of slots, less what is left of the work there
    ahead_s: float  # length of the period


def expected(view: View, history: History, waiting: Any, step_s: float, services: float) -> Expected:
    """Arriving and waiting work of the next `services` mean services, or of one step if that is longer."""
    n_classes, nodes, past = len(view.fixed_s), view.nodes, history.work
    service_s, seen = mean_services_s(view, past)
    served = np.isfinite(service_s).any(axis=1) & (seen > 0)
    best_s = (service_s.min(axis=1)[served] * seen[served]).sum() / max(1, seen[served].sum())
    steps = max(1, int(np.ceil(services * best_s / step_s)))
    ahead_s = steps * step_s
    times = past["arrival_s"], past["class_idx"]
    rate = rates_per_s(*times, n_classes, view.context.now_s, step_s, min(steps, STEPS))
    held = np.bincount(waiting["class_idx"], minlength=n_classes)
    free_s = np.maximum(0.0, nodes.slots * ahead_s - remaining_s(view)) * (nodes.up == 1)
    own_s = service_s[:, nodes.type_idx] + mean_loads_s(view, past[-LOOK_BACK:])
    return Expected((rate * ahead_s + held) * served, own_s, np.asarray(free_s, np.float64), ahead_s)


def mean_loads_s(view: View, work: Any) -> Floats:
    """Mean seconds of loading that each node would need for a request of each class [classes, nodes]."""
    n_classes, n_nodes, classes = len(view.fixed_s), len(view.nodes), work["class_idx"]
    cells = classes[:, None] * n_nodes + np.arange(n_nodes)
    total = np.bincount(cells.ravel(), loads_s(view, work).ravel(), n_classes * n_nodes)
    counts = np.maximum(1, np.bincount(classes, minlength=n_classes))
    return np.asarray(total.reshape(n_classes, n_nodes) / counts[:, None], np.float64)


def smoothed_prices(work: Expected, last_plan: Plan, left_out: float, kept: float) -> Floats:
    """New prices [nodes, 1], of which the last plan's are the share `kept`; see `node_prices`."""
    n, before = len(work.capacity_s), last_plan.price
    last = before[:, 0] if len(before) == n else np.zeros(n)
    return (kept * last + (1.0 - kept) * node_prices(work, last, left_out))[:, None]


def node_prices(work: Expected, start: Floats, left_out: float) -> Floats:
    """The price of a second of each node's time, in seconds of node time [nodes]; 0 without scarcity.

    Lots of work go where service, loading and what their time costs there are least, and are left out where
    that is more than `left_out` times their best; prices are such that no node gets more than it has. Solved
    as the fractional programme, from the prices `start` [nodes], by `solvers.dual`.
    """
    from trimtab.solvers.candidate_pairs import CandidatePairs
    from trimtab.solvers.dual import climb  # with the first plan: it takes a second

    n = len(work.capacity_s)
    comes = np.flatnonzero(work.requests > 0.0)
    if not len(comes):
        return np.zeros(n)
    lots = np.maximum(1, np.round(LOTS * work.requests[comes] / work.requests.sum())).astype(np.int64)
    demand = np.repeat(work.own_s[comes] * (work.requests[comes] / lots)[:, None], lots, axis=0)
    skip = left_out * demand.min(axis=1, keepdims=True)
    cost = np.hstack([demand, skip])  # the last column: left out, which takes no node's time
    order = np.argsort(cost, axis=1, kind="stable")
    cost = np.take_along_axis(cost, order, axis=1)
    is_pair = np.isfinite(cost)
    used = np.where(is_pair & (order < n), cost, 0.0)[..., None]
    capacity, nowhere = np.append(work.capacity_s, 0.0)[:, None], np.full(len(cost), np.inf)
    candidates = CandidatePairs(np.where(is_pair, order, -1).astype(np.int32), cost, used, capacity, nowhere)
    dual = climb(candidates, np.append(start, 0.0)[:, None], stages=STAGES_FRAC, iterations=ITERATIONS)
    return np.asarray(dual.prices[:n, 0], np.float64)


class PricePolicy(NotingPolicy, LoadsPolicy):
    """Base of policies that plan `weights`, factors of the nodes' estimates, or `price`, of their time."""

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by completion, corrected where there are weights, and price."""
        needs, floats = needs_of(work), memory.floats
        for j in range(view.context.n_nodes):
            weight = plan.weights[j] if len(plan.weights) > 0 else 1.0
            price = plan.price[j, 0] if len(plan.price) > 0 else 0.0
            there_s = weight * service_s(view, needs, j)
            own_s = missing_load_s(view, needs, j) + there_s
            score = weight * expected_wait_s(view, j) + (1.0 + price) * own_s
            floats[NOTES + j] = score if can_take(view, needs, j) else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
