"""Fairness: the shares of service among tenants, and of load among nodes."""

from __future__ import annotations

import math

import numpy as np

from trimtab.metrics.distribution import ratio
from trimtab.metrics.imbalance import busy_frac
from trimtab.metrics.run_records import FloatArray, Records, RequestRecords


def fairness_metrics(records: Records) -> dict[str, float]:
    """Jain's index over the tenants' mean relative speed and the nodes' utilisation; longest starvation."""
    return {
        "jain_tenants": jain_index(relative_speed_by_tenant(records.requests)),
        "jain_nodes": jain_index(busy_frac(records.nodes)),
        "starvation_max_s": longest_starvation_s(records.requests, records.end_s),
    }


def jain_index(shares: FloatArray) -> float:
    """Jain's fairness index (Σx)² ÷ (n Σx²) of shares x ≥ 0 [n]: 1 when all are equal, 1/n when one has all.

    nan when there are no shares or all are 0. Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of
    Fairness and Discrimination for Resource Allocation in Shared Computer Systems", DEC-TR-301, 1984.
    """
    return ratio(float(shares.sum()) ** 2, shares.size * float(np.square(shares).sum()))


def relative_speed_by_tenant(requests: RequestRecords) -> FloatArray:
    """Each tenant's mean of best work ÷ completion, 0 for a request that did not finish; [tenants seen]."""
    arrived = requests.arrived
    tenant_idx = requests.tenant_idx[arrived]
    count = np.bincount(tenant_idx)
    total = np.bincount(tenant_idx, weights=_relative_speed(requests)[arrived])
    return total[count > 0] / count[count > 0]


def _relative_speed(requests: RequestRecords) -> FloatArray:
    """Best work ÷ completion, [n]: the inverse of the unbounded slowdown; 1 for work done in no time."""
    speed = requests.finished.astype(np.float64)
    took_time = requests.finished & (requests.completion_s > 0)
    return np.divide(requests.best_work_s, requests.completion_s, out=speed, where=took_time)


def longest_starvation_s(requests: RequestRecords, end_s: float) -> float:
    """Longest time that one request waited while none of its tenant's took a slot; nan where nothing arrived.

    A request waits from its arrival until its last attempt takes a slot, or it ends without one, or `end_s`.
    """
    arrived = requests.arrived
    start_s, ended_s = requests.start_s[arrived], requests.ended_s[arrived]
    left_s = np.where(np.isnan(start_s), np.where(np.isnan(ended_s), end_s, ended_s), start_s)
    order = np.lexsort((left_s, requests.tenant_idx[arrived]))
    if not order.size:
        return math.nan
    borders = np.flatnonzero(np.diff(requests.tenant_idx[arrived][order])) + 1
    sorted_columns = (column[order] for column in (requests.arrival_s[arrived], start_s, left_s))
    by_tenant = zip(*(np.split(column, borders) for column in sorted_columns), strict=True)
    return max(_starvation_s(*columns) for columns in by_tenant)


def _starvation_s(arrival_s: FloatArray, start_s: FloatArray, left_s: FloatArray) -> float:
    """The same for one tenant, its requests sorted by `left_s` [requests]."""
    served_s = np.where(np.isnan(start_s), -np.inf, left_s)
    last_served_s = np.maximum.accumulate(np.concatenate([[-np.inf], served_s[:-1]]))
    earliest_s = np.minimum.accumulate(arrival_s[::-1])[::-1]  # of those that left no earlier
    return float((left_s - np.maximum(last_served_s, earliest_s)).max())
