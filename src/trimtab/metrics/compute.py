"""Every metric of a run at once."""

from __future__ import annotations

from trimtab.metrics.chain_metrics import chain_metrics
from trimtab.metrics.efficiency import efficiency_metrics
from trimtab.metrics.imbalance import fairness_metrics, imbalance_metrics
from trimtab.metrics.latency import latency_metrics, outcome_metrics, target_metrics
from trimtab.metrics.run_records import Records


def compute(records: Records) -> dict[str, float]:
    """All metrics of `trimtab.metrics.METRICS`, in its order, in the units it states; nan where undefined.

    O(requests + nodes) time; a few temporary arrays as long as the requests.
    """
    return {
        **latency_metrics(records.requests),
        **imbalance_metrics(records),
        **outcome_metrics(records.requests),
        **target_metrics(records),
        **fairness_metrics(records),
        **efficiency_metrics(records),
        **chain_metrics(records),
    }
