"""Summaries of the metric store: the balance of the nodes, and traffic by second and by minute.

The balance has the names and definitions of `trimtab.metrics`, over the last minute. The gateway knows the
slots in use at a backend, not its computation. So its utilisation is the allocated one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from trimtab.gateway.observe.metric_store import MetricStore
from trimtab.gateway.observe.window import Second, percentiles_s, pooled, variance_s2
from trimtab.metrics.definitions import RESOURCE_METRIC_NAMES
from trimtab.metrics.imbalance import resource_figures, spread_figures
from trimtab.metrics.statistics import mean, ratio

MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node's use over the last minute; nan = it was not up."""

    utilisation_frac: float
    busy_frac: float
    used_slot_s: float
    slot_s: float  # while it was up


def node_use(store: MetricStore) -> dict[str, NodeUse]:
    """Each node's use over the spans that the store keeps."""
    sums: dict[str, list[float]] = {}
    for nodes in store.use.values():
        for name, use in nodes.items():
            before = sums.setdefault(name, [0.0, 0.0, 0.0])
            sums[name] = [a + b for a, b in zip(before, use, strict=True)]
    slots = {labels[0]: row[0] for labels, row in store.tables.get("trimtab_node_capacity", {}).items()}
    return {
        name: NodeUse(
            ratio(used_s, there_s),
            ratio(busy_s * slots[name], there_s),
            used_s * slots[name],
            there_s * slots[name],
        )
        for name, (used_s, busy_s, there_s) in sums.items()
        if name in slots
    }


def balance(store: MetricStore) -> dict[str, float]:
    """The figures of `BALANCE`, over the nodes that were up; nan = no data, or no node reports a resource."""
    uses = [use for use in node_use(store).values() if not isnan(use.utilisation_frac)]
    each = np.array([use.utilisation_frac for use in uses])
    lived = pooled(last_seconds(store, MINUTE_S))
    return {
        **spread_figures("utilisation_allocated", each),
        "idle_frac": 1.0 - ratio(sum(use.used_slot_s for use in uses), sum(use.slot_s for use in uses)),
        "idle_node_frac": 1.0 - mean(each),
        "completion_mean_s": ratio(lived.sum_s, lived.timed),
        "completion_var_s2": variance_s2(lived),
        "queueing_mean_s": ratio(lived.queued_s, lived.queued),
        "rejected_frac": ratio(lived.refused, lived.requests),
        **_resource_figures(store),
    }


def _resource_figures(store: MetricStore) -> dict[str, float]:
    sums: dict[str, dict[str, list[float]]] = {}
    for nodes in store.resources.values():
        for (resource, node), (used, capacity) in nodes.items():
            row = sums.setdefault(resource, {}).setdefault(node, [0.0, 0.0])
            row[0] += used
            row[1] += capacity
    figures: dict[str, float] = {}
    for name in RESOURCE_METRIC_NAMES:
        pairs = np.array([*sums.get(name, {}).values()]).reshape(-1, 2)
        figures |= resource_figures(name, pairs[:, 0], pairs[:, 1], np.ones(len(pairs)))
    return figures


def last_seconds(store: MetricStore, count: int) -> list[Second]:
    """The latest completed seconds, oldest first."""
    return [store.seconds[at] for at in sorted(store.seconds)[:-1][-count:]]


def traffic(store: MetricStore, seconds: int = 10) -> dict[str, float | None]:
    """Rates and percentiles over the latest seconds; None = no data."""
    lived = last_seconds(store, seconds)
    total, span = pooled(lived), max(1, len(lived))
    p50, p95, p99 = percentiles_s(total.durations, 50, 95, 99)
    first50, first99 = percentiles_s(total.first_bytes, 50, 99)
    figures = {
        "requests_per_s": total.requests / span,
        "failed_per_s": total.failed / span,
        "refused_per_s": total.refused / span,
        "p50_s": p50,
        "p95_s": p95,
        "p99_s": p99,
        "first_byte_p50_s": first50,
        "first_byte_p99_s": first99,
    }
    return {name: plain(value) for name, value in figures.items()}


def history(store: MetricStore) -> list[dict[str, Any]]:
    """The last two minutes by second: the values of `traffic`, and the queue at the second's start."""
    return [_point(at, store.seconds[at]) for at in sorted(store.seconds)[:-1]]


def _point(at: int, second: Second) -> dict[str, Any]:
    p50, p95, p99 = percentiles_s(second.durations, 50, 95, 99)
    (first50,) = percentiles_s(second.first_bytes, 50)
    return {
        "at_s": at,
        "requests_per_s": second.requests,
        "failed_per_s": second.failed,
        "queue": second.queue_length,
        "p50_s": plain(p50),
        "p95_s": plain(p95),
        "p99_s": plain(p99),
        "first_byte_p50_s": plain(first50),
    }


def prediction(store: MetricStore) -> list[dict[str, Any]]:
    """Per class with answers: their number, mean |error| ÷ actual, and predicted ÷ actual seconds."""
    found = []
    for labels, row in store.tables.get("trimtab_prediction_error_ratio", {}).items():
        count = sum(row[:-1])
        if count:
            predicted = store.tables["trimtab_predicted_seconds_total"][labels][0]
            actual = store.tables["trimtab_actual_seconds_total"][labels][0]
            error, bias = row[-1] / count, predicted / actual
            found.append({"class": labels[0], "count": int(count), "error_ratio": error, "bias_ratio": bias})
    return found


def tenants(store: MetricStore) -> list[dict[str, Any]]:
    """Requests and tokens by tenant, since the start."""
    tokens = store.tables.get("trimtab_tokens_total", {})
    return [
        {
            "name": name,
            "requests": int(row[0]),
            "prompt_tokens": int(tokens.get((name, "prompt"), [0.0])[0]),
            "completion_tokens": int(tokens.get((name, "completion"), [0.0])[0]),
            "cached_tokens": int(tokens.get((name, "cached"), [0.0])[0]),
        }
        for (name,), row in store.tables.get("trimtab_tenant_requests_total", {}).items()
    ]


def plain(value: float) -> float | None:
    """The value for JSON: None for nan."""
    return None if isnan(value) else value
