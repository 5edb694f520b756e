"""Metrics of speed, balance, fairness and cost from the arrays of a run's records (see GLOSSARY.md)."""

from trimtab.metrics.compute import compute
from trimtab.metrics.definitions import METRICS, Metric
from trimtab.metrics.efficiency import queue_length_over_time, utilisation_over_time
from trimtab.metrics.latency import RANKED_FROM, batch_ci95, served_frac
from trimtab.metrics.run_records import NodeRecords, Records, RequestRecords, ResourceRecords, StageRecords
from trimtab.metrics.statistics import Estimate, mean_ci95, paired_difference_ci95

__all__ = [
    "METRICS",
    "RANKED_FROM",
    "Estimate",
    "Metric",
    "NodeRecords",
    "Records",
    "RequestRecords",
    "ResourceRecords",
    "StageRecords",
    "batch_ci95",
    "compute",
    "mean_ci95",
    "paired_difference_ci95",
    "queue_length_over_time",
    "served_frac",
    "utilisation_over_time",
]
