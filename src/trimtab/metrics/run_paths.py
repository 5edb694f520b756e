"""What decided when chosen runs ended: their stages one after another, and what each waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.metrics.chain_metrics import runs_of, waiting_path
from trimtab.metrics.run_records import Records, StageRecords

CHOSEN = (("median", 0.5), ("p99", 0.99), ("slowest", 1.0))  # of completion


@dataclass(frozen=True, slots=True)
class PathStep:
    """A stage that the run's next one, or its end, waited for."""

    stage: str
    node_idx: int
    queueing_s: float  # from its inputs to its slot, transfers included
    loading_s: float
    service_s: float
    moved_gib: float


@dataclass(frozen=True, slots=True)
class RunPath:
    """The stages that decided when one run ended, first to last. Their times add up to its completion."""

    which: str  # its place among all runs
    run_idx: int
    completion_s: float
    steps: tuple[PathStep, ...]


def chosen_paths(records: Records, stages: StageRecords) -> list[RunPath]:
    """The median, 99th percentile and slowest of the finished runs, each once."""
    runs = runs_of(stages)
    runs = runs[records.requests.finished[runs]]
    runs = runs[np.argsort(records.requests.completion_s[runs], kind="stable")]
    found = {int(runs[int(np.ceil(q * len(runs))) - 1]): which for which, q in reversed(CHOSEN) if len(runs)}
    return [_path(records, stages, run_idx, which) for run_idx, which in reversed(found.items())]


def _path(records: Records, stages: StageRecords, run_idx: int, which: str) -> RunPath:
    rows = waiting_path(stages, run_idx)
    steps = tuple(_step(stages, row) for row in rows[stages.served[rows]].tolist())
    return RunPath(which, run_idx, float(records.requests.completion_s[run_idx]), steps)


def _step(stages: StageRecords, row: int) -> PathStep:
    return PathStep(
        stage=stages.names[stages.stage_idx[row]],
        node_idx=int(stages.node_idx[row]),
        queueing_s=float(stages.start_s[row] - stages.ready_s[row]),
        loading_s=float(stages.service_start_s[row] - stages.start_s[row]),
        service_s=float(stages.finish_s[row] - stages.service_start_s[row]),
        moved_gib=float(stages.moved_gib[row]),
    )
