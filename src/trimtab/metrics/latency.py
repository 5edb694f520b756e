"""Latency of requests: completion, queueing and slowdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from trimtab.domain.requests import MAX_REASON, Reason, Status
from trimtab.metrics.run_records import BoolArray, FloatArray, IntArray, Records, RequestRecords
from trimtab.metrics.statistics import (
    batch_means_ci95,
    coefficient_of_variation,
    mean,
    p99_ci95,
    percentiles,
    ratio,
    variance,
)
from trimtab.metrics.token_metrics import are_tokens_in_time

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


RANKED_FROM: Final = 0.999  # share served from which a policy is compared: the means of fewer flatter it


def outcome_metrics(requests: RequestRecords) -> dict[str, float]:
    """Fractions of the arrived requests by status; with finished_frac they add up to 1."""
    count = np.bincount(requests.status, minlength=len(Status))
    arrived = int(count.sum() - count[Status.PENDING])
    in_flight = int(count[Status.HELD : Status.FINISHED].sum())
    return {
        "finished_frac": ratio(count[Status.FINISHED], arrived),
        "rejected_frac": ratio(count[Status.REJECTED], arrived),
        **_rejected_by_reason(requests, arrived),
        "cancelled_frac": ratio(count[Status.CANCELLED], arrived),
        "lost_frac": ratio(count[Status.LOST], arrived),
        "unfinished_frac": ratio(in_flight, arrived),
    }


def served_frac(metrics: Mapping[str, float], *, ends_early: bool = False) -> float:
    """Fraction that finished, of the requests that some node could serve; nan without such requests.

    Rejected, cancelled and lost requests, and those held for ever, count as not served. `ends_early`: the run
    has a horizon, so what is in flight at its end counts neither way, unless nothing finished at all.
    """
    finished, unfit = metrics["finished_frac"], metrics["rejected_fits_no_node_frac"]
    in_flight = metrics["unfinished_frac"] if ends_early and finished > 0.0 else 0.0
    return ratio(finished, 1.0 - unfit - in_flight)


def target_metrics(records: Records) -> dict[str, float]:
    """SLO attainment and deadline satisfaction; a request that did not finish missed both."""
    requests = records.requests
    has_deadline = requests.arrived & (requests.deadline_s < np.inf)
    return {
        "slo_attained_frac": _share(slo_attained(records), requests.arrived),
        "deadline_satisfied_frac": _share(_in_time(requests), has_deadline),
    }


def slo_attained(records: Records) -> BoolArray:
    """Requests [n] that finished within all targets of their class, and by their deadline."""
    requests = records.requests
    is_complete = requests.completion_s <= records.slo_s[requests.class_idx]
    return _in_time(requests) & is_complete & are_tokens_in_time(records)


def _share(good: BoolArray, among: BoolArray) -> float:
    return ratio(int(np.count_nonzero(good & among)), int(np.count_nonzero(among)))


def _in_time(requests: RequestRecords) -> BoolArray:
    return requests.finished & (requests.finish_s <= requests.deadline_s)


def _rejected_by_reason(requests: RequestRecords, arrived: int) -> dict[str, float]:
    reasons: IntArray = requests.reason[requests.status == Status.REJECTED]
    count = np.bincount(reasons, minlength=MAX_REASON + 1)
    return {
        "rejected_fits_no_node_frac": ratio(count[Reason.FITS_NO_NODE], arrived),
        "rejected_refused_frac": ratio(count[Reason.REFUSED], arrived),
        "rejected_queue_full_frac": ratio(count[Reason.QUEUE_FULL], arrived),
        "rejected_policy_frac": ratio(int(count[Reason.POLICY :].sum()), arrived),
    }
