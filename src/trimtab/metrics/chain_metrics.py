"""Metrics of runs of chains: how far they are from their critical path, and what their stages waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trimtab.metrics.run_records import BoolArray, FloatArray, IntArray, Records, StageRecords
from trimtab.metrics.statistics import mean, percentiles


def chain_metrics(records: Records) -> dict[str, float]:
    """Stretch, first outputs, queueing of stages and repeated work; nan where there are no chains."""
    stages = records.stages
    stretch = np.zeros(0) if stages is None else stretch_of(records, stages)
    first_s = np.zeros(0) if stages is None else first_outputs_s(records, stages)
    waited_s = np.zeros(0) if stages is None else (stages.start_s - stages.ready_s)[stages.served]
    return {
        "stretch_mean": mean(stretch),
        "stretch_p99": percentiles(stretch, 99)[0],
        "first_output_mean_s": mean(first_s),
        "stage_queueing_mean_s": mean(waited_s),
        "stage_queueing_p99_s": percentiles(waited_s, 99)[0],
        "recomputed_s": records.recomputed_s if stages is not None else float("nan"),
    }


def runs_of(stages: StageRecords) -> IntArray:
    """The requests that are runs of chains, ascending."""
    return np.unique(stages.run_idx)


def stretch_of(records: Records, stages: StageRecords) -> FloatArray:
    """Completion ÷ critical path with the best speeds, of each finished run."""
    runs = runs_of(stages)
    completion_s, path_s = records.requests.completion_s[runs], records.requests.best_work_s[runs]
    done = records.requests.finished[runs] & (path_s > 0.0)
    return completion_s[done] / path_s[done]


def first_outputs_s(records: Records, stages: StageRecords) -> FloatArray:
    """Seconds from a run's arrival to its first output of a last stage, of each finished run."""
    rows = np.flatnonzero(stages.served & stages.is_last[stages.stage_idx])
    first_s = np.full(len(records.requests.arrival_s), np.inf)
    np.minimum.at(first_s, stages.run_idx[rows], stages.finish_s[rows])
    runs = runs_of(stages)
    runs = runs[records.requests.finished[runs] & np.isfinite(first_s[runs])]
    return np.asarray(first_s[runs] - records.requests.arrival_s[runs])


def waiting_path(stages: StageRecords, run_idx: int) -> IntArray:
    """Rows that decided when a run ended, first to last: each waited for the output of the one before."""
    rows = np.flatnonzero((stages.run_idx == run_idx) & stages.served)
    if not len(rows):
        return np.zeros(0, np.int64)
    row, path = int(rows[np.argmax(stages.finish_s[rows])]), []
    while row >= 0:
        path.append(row)
        row = int(stages.waited_for[row])
    return np.array(path[::-1], np.int64)


class PathTimes(NamedTuple):
    """Seconds on the waiting paths of some runs."""

    own_s: FloatArray  # [stages, 3]: queueing and transfers, loading, service
    entering_s: float  # waits of stages without inputs: the run has entered when they are over
    laid_s: FloatArray  # [stages]: loading and service, and what any waited for nodes that the stage filled


def path_times(stages: StageRecords, runs: IntArray) -> PathTimes:
    """Where the time on the waiting paths of these runs went, and which stage it is laid on.

    A wait for a node is laid on the stages that it serves, by their shares in its time.
    """
    marks_s = (stages.ready_s, stages.start_s, stages.service_start_s, stages.finish_s)
    paths = [waiting_path(stages, run_idx) for run_idx in runs.tolist()]
    rows = np.concatenate(paths) if paths else np.zeros(0, np.int64)
    rows = rows[stages.served[rows]]
    seconds = np.zeros((len(stages.names), 3))
    for phase in range(3):
        spent_s = (marks_s[phase + 1] - marks_s[phase])[rows]
        np.add.at(seconds[:, phase], stages.stage_idx[rows], spent_s)
    waited_s = (stages.start_s - stages.ready_s)[rows]
    enters = stages.waited_for[rows] < 0
    np.subtract.at(seconds[:, 0], stages.stage_idx[rows][enters], waited_s[enters])
    at_nodes_s = np.bincount(stages.node_idx[rows], waited_s, int(stages.node_idx.max(initial=0)) + 1)
    laid_s = seconds[:, 1] + seconds[:, 2] + (_node_shares(stages) * at_nodes_s).sum(axis=1)
    return PathTimes(seconds, float(waited_s[enters].sum()), laid_s)


def _node_shares(stages: StageRecords) -> FloatArray:
    """Share of each stage in the time that a node serves, [stages, nodes]."""
    rows = np.flatnonzero(stages.served)
    busy_s = np.zeros((len(stages.names), int(stages.node_idx.max(initial=0)) + 1))
    np.add.at(
        busy_s, (stages.stage_idx[rows], stages.node_idx[rows]), (stages.finish_s - stages.start_s)[rows]
    )
    shares: FloatArray = busy_s / np.maximum(busy_s.sum(axis=0), 1e-300)
    return shares


PATHS = 2000  # runs whose waiting paths are followed, evenly over all finished ones


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage over all runs; times are means over its served instances."""

    stage: str
    served: int
    queueing_s: float  # from its inputs to its slot, transfers included
    service_s: float  # in its slot, loading included
    moved_gib: float  # inputs moved to its nodes, in all
    path_queueing_frac: float  # of the time on the paths that decided when runs ended, but waiting to enter
    path_loading_frac: float
    path_service_frac: float  # computing
    path_laid_frac: float  # loading, computing, and what any stage waited for nodes that this one filled

    @property
    def path_frac(self) -> float:
        """Share of the time on the paths that decided when runs ended."""
        return self.path_queueing_frac + self.path_loading_frac + self.path_service_frac


def stage_summaries(stages: StageRecords, is_finished: BoolArray) -> list[StageSummary]:
    """The stages in their order, with their share of what decided when runs ended. `is_finished` [runs]."""
    runs = runs_of(stages)
    runs = runs[is_finished[runs]]
    chosen = runs[np.unique(np.linspace(0, len(runs) - 1, PATHS).astype(np.int64))] if len(runs) else runs
    times = path_times(stages, chosen)
    total_s = max(float(times.own_s.sum()) + times.entering_s, 1e-300)
    shares = np.column_stack((times.own_s, times.laid_s)) / total_s
    return [_summary(stages, k, *shares[k].tolist()) for k in range(len(stages.names))]


def _summary(
    stages: StageRecords, k: int, queueing: float, loading: float, service: float, laid: float
) -> StageSummary:
    rows = np.flatnonzero((stages.stage_idx == k) & stages.served)
    queueing_s, service_s = (stages.start_s - stages.ready_s)[rows], (stages.finish_s - stages.start_s)[rows]
    return StageSummary(
        stage=stages.names[k],
        served=len(rows),
        queueing_s=float(queueing_s.mean()) if len(rows) else float("nan"),
        service_s=float(service_s.mean()) if len(rows) else float("nan"),
        moved_gib=float(stages.moved_gib[rows].sum()),
        path_queueing_frac=queueing,
        path_loading_frac=loading,
        path_service_frac=service,
        path_laid_frac=laid,
    )


def entering_frac(summaries: Sequence[StageSummary]) -> float:
    """Share of the time on the deciding paths in which runs waited to enter."""
    return max(0.0, 1.0 - sum(summary.path_frac for summary in summaries))


def bottleneck(summaries: Sequence[StageSummary]) -> StageSummary:
    """The stage that most of the time on the deciding paths is laid on."""
    return max(summaries, key=lambda summary: summary.path_laid_frac)


def bottleneck_text(summaries: Sequence[StageSummary]) -> str:
    """The bottleneck, and what would help, in words."""
    first = bottleneck(summaries)
    share = 1.0 / first.path_laid_frac if first.path_laid_frac > 0.0 else 0.0
    loading_frac = first.path_loading_frac * share
    waiting_frac = max(0.0, 1.0 - loading_frac - first.path_service_frac * share)
    loading = f" and {100 * loading_frac:.0f} % loading" if loading_frac >= 0.005 else ""
    return (
        f"{first.stage} is the bottleneck: {100 * first.path_laid_frac:.0f} % of the time on the paths that "
        f"decide when runs end, {100 * waiting_frac:.0f} % of it waiting for nodes that it fills{loading}; "
        f"{_remedy(waiting_frac, loading_frac)} would help"
    )


def _remedy(waiting_frac: float, loading_frac: float) -> str:
    if loading_frac >= 0.5:
        return "nodes that keep what it loads"
    return f"{'more' if waiting_frac >= 0.5 else 'faster'} nodes that serve it"


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
