"""Fractions of requests by outcome, and attainment of their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from trimtab.domain.decision import MAX_REASON, Reason, Status
from trimtab.metrics.distribution import ratio
from trimtab.metrics.run_records import BoolArray, FloatArray, IntArray, Records, RequestRecords

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
        "slo_attained_frac": _share(slo_attained(requests, records.slo_s), requests.arrived),
        "deadline_satisfied_frac": _share(_in_time(requests), has_deadline),
    }


def slo_attained(requests: RequestRecords, slo_s: FloatArray) -> BoolArray:
    """Requests [n] that finished within the target of their class, slo_s [classes], and by their deadline."""
    return _in_time(requests) & (requests.completion_s <= slo_s[requests.class_idx])


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
