"""Metrics of stages in Ray's own exporter: Prometheus scrapes them with those of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.util import metrics

from trimtab.live.stage_backend import Outcome, StageNode

_BOUNDARIES_S = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0]


class RayStageMetrics:
    """Counts attempts between two beats, and tells Ray at each: a value that is told once is not kept."""

    def __init__(self) -> None:
        stage_and_end = ("stage", "node", "outcome")
        self._ended = metrics.Counter(
            "trimtab_stage_attempts", "Attempts that ended, by outcome", tag_keys=stage_and_end
        )
        self._service_s = metrics.Histogram(
            "trimtab_stage_service_seconds",
            "Time in the code of stages",
            boundaries=_BOUNDARIES_S,
            tag_keys=("stage", "node"),
        )
        self._attempts = metrics.Gauge(
            "trimtab_node_attempts", "Attempts that a node's workers have", tag_keys=("node",)
        )
        self._workers = metrics.Gauge(
            "trimtab_node_workers", "Workers of a node that can be reached", tag_keys=("node",)
        )
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def note(self, node: StageNode, stage: str, outcome: Outcome) -> None:
        """An attempt has ended."""
        end = "done" if outcome.error is None else outcome.error.cause.value
        self._counts[stage, node.name, end] += 1
        if outcome.error is None:
            self._service_s.observe(outcome.service_s, {"stage": stage, "node": node.name})

    def tell(self, nodes: Sequence[StageNode], workers: Sequence[Sequence[Any]]) -> None:
        """Tell Ray, once a beat. `workers`: of each node."""
        for (stage, name, end), count in self._counts.items():
            self._ended.inc(count, {"stage": stage, "node": name, "outcome": end})
        self._counts.clear()
        for node, there in zip(nodes, workers, strict=True):
            tags = {"node": node.name}
            self._attempts.set(sum(len(worker.queue) for worker in there), tags)
            self._workers.set(sum(worker.is_reachable for worker in there), tags)
