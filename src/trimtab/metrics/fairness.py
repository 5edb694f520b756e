"""How evenly the service was shared among tenants, and the load among nodes."""

from __future__ import annotations

import numpy as np

from trimtab.metrics.distribution import ratio
from trimtab.metrics.imbalance import busy_frac
from trimtab.metrics.records import FloatArray, Records, RequestRecords


def fairness_metrics(records: Records) -> dict[str, float]:
    """Jain's index over the tenants' mean relative speed, and over the nodes' busy utilisation."""
    return {
        "jain_tenants": jain_index(relative_speed_by_tenant(records.requests)),
        "jain_nodes": jain_index(busy_frac(records.nodes)),
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
