"""Metrics in groups by topic, the most used first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.metrics import Metric

_PREFIXES: Final[dict[str, tuple[str, ...]]] = {
    "Latency": ("completion_", "slowdown_"),
    "Queueing": ("queueing_",),
    "Balance": ("utilisation_", "idle_", "jain_nodes"),
    "Outcome": ("finished_", "rejected_", "cancelled_", "lost_", "unfinished_", "retries"),
    "Targets": ("slo_", "deadline_", "jain_tenants", "starvation_"),
    "Cost": ("throughput_", "goodput_", "makespan_", "model_", "adapter_", "moved_", "accelerator_", "usd"),
    "Caching": ("prefix_", "result_"),
    "Chains": ("stretch_", "first_output_", "stage_", "recomputed_"),
}
OTHER: Final = "Other"


def metric_groups(metrics: Mapping[str, Metric]) -> dict[str, tuple[Metric, ...]]:
    """These metrics, each in one group; metrics without a group come last, as `OTHER`."""
    groups: dict[str, list[Metric]] = {name: [] for name in (*_PREFIXES, OTHER)}
    for metric in metrics.values():
        groups[_group_of(metric.name)].append(metric)
    return {name: tuple(members) for name, members in groups.items() if members}


def headline_metrics(metrics: Mapping[str, Metric]) -> tuple[Metric, ...]:
    """The metrics that a comparison shows by default."""
    return tuple(metric for metric in metrics.values() if metric.headline)


def _group_of(name: str) -> str:
    return next((group for group, prefixes in _PREFIXES.items() if name.startswith(prefixes)), OTHER)
