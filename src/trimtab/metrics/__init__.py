"""Metrics of speed, balance, fairness and cost from the arrays of a run's records (see GLOSSARY.md)."""

from __future__ import annotations

from trimtab.metrics.chain_metrics import chain_metrics
from trimtab.metrics.definitions import METRICS, Metric
from trimtab.metrics.efficiency import efficiency_metrics, queue_length_over_time, utilisation_over_time
from trimtab.metrics.imbalance import fairness_metrics, imbalance_metrics, link_frac, link_metrics
from trimtab.metrics.latency import (
    RANKED_FROM,
    batch_ci95,
    latency_metrics,
    outcome_metrics,
    served_frac,
    target_metrics,
)
from trimtab.metrics.queue_metrics import queue_metrics
from trimtab.metrics.run_records import (
    LinkRecords,
    NodeRecords,
    QueueRecords,
    Records,
    RequestRecords,
    ResourceRecords,
    StageRecords,
    TokenRecords,
    TokenTargets,
)
from trimtab.metrics.statistics import Estimate, mean_ci95, paired_difference_ci95
from trimtab.metrics.token_metrics import token_metrics

__all__ = [
    "METRICS",
    "RANKED_FROM",
    "Estimate",
    "LinkRecords",
    "Metric",
    "NodeRecords",
    "QueueRecords",
    "Records",
    "RequestRecords",
    "ResourceRecords",
    "StageRecords",
    "TokenRecords",
    "TokenTargets",
    "batch_ci95",
    "compute",
    "link_frac",
    "mean_ci95",
    "paired_difference_ci95",
    "queue_length_over_time",
    "served_frac",
    "utilisation_over_time",
]


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
        **link_metrics(records),
        **chain_metrics(records),
        **token_metrics(records),
        **queue_metrics(records),
    }
