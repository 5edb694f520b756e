"""Latency of requests: completion, queueing and slowdown."""

from __future__ import annotations

import numpy as np

from trimtab.metrics.distribution import coefficient_of_variation, mean, percentiles, variance
from trimtab.metrics.run_records import FloatArray, Records, RequestRecords
from trimtab.metrics.statistics import batch_means_ci95, p99_ci95

SLOWDOWN_FLOOR_S = 1.0  # the usual 10 s suits jobs of minutes to hours, not requests


def latency_metrics(requests: RequestRecords) -> dict[str, float]:
    """Completion and slowdown of the finished requests, queueing of the requests that took a slot."""
    finished = requests.finished
    completion_s = requests.completion_s[finished]
    slowdown = bounded_slowdown(completion_s, requests.best_work_s[finished])
    return {**_completion(completion_s), **_queueing(requests), **_slowdown(slowdown)}


def batch_ci95(records: Records) -> dict[str, float]:
    """95 % half-widths of means over requests and of their p99, from one run; shares of nodes have none."""
    requests = records.requests
    order = np.argsort(requests.arrival_s, kind="stable")
    completion_s, started_s = requests.completion_s[order], (requests.start_s - requests.arrival_s)[order]
    slowdown = bounded_slowdown(completion_s, requests.best_work_s[order])
    found: dict[str, float | None] = {}
    for name, unit, values in (
        ("completion", "_s", completion_s),
        ("queueing", "_s", started_s),
        ("slowdown", "", slowdown),
    ):
        defined = values[np.isfinite(values)]
        found |= {f"{name}_mean{unit}": batch_means_ci95(defined), f"{name}_p99{unit}": p99_ci95(defined)}
    return {name: ci95 for name, ci95 in found.items() if ci95 is not None}


def bounded_slowdown(completion_s: FloatArray, best_work_s: FloatArray) -> FloatArray:
    """Bounded slowdown max(1, completion ÷ max(best work, 1 s)) of shape [n], dimensionless.

    Source: D. G. Feitelson, L. Rudolph, "Metrics and Benchmarking for Parallel Job Scheduling", JSSPP 1998.
    Deviations: the floor is 1 s instead of 10 s, and the run time is that on the fastest node type, so
    that a slow choice of node counts as slowdown.
    """
    return np.maximum(1.0, completion_s / np.maximum(best_work_s, SLOWDOWN_FLOOR_S))


def _completion(completion_s: FloatArray) -> dict[str, float]:
    p50_s, p90_s, p99_s = percentiles(completion_s, 50, 90, 99)
    return {
        "completion_mean_s": mean(completion_s),
        "completion_p50_s": p50_s,
        "completion_p90_s": p90_s,
        "completion_p99_s": p99_s,
        "completion_var_s2": variance(completion_s),
        "completion_cv": coefficient_of_variation(completion_s),
    }


def _queueing(requests: RequestRecords) -> dict[str, float]:
    queueing_s = requests.start_s - requests.arrival_s
    queueing_s = queueing_s[~np.isnan(queueing_s)]
    p50_s, p90_s, p99_s = percentiles(queueing_s, 50, 90, 99)
    return {
        "queueing_mean_s": mean(queueing_s),
        "queueing_p50_s": p50_s,
        "queueing_p90_s": p90_s,
        "queueing_p99_s": p99_s,
    }


def _slowdown(slowdown: FloatArray) -> dict[str, float]:
    p50, p99 = percentiles(slowdown, 50, 99)
    return {"slowdown_mean": mean(slowdown), "slowdown_p50": p50, "slowdown_p99": p99}
