"""Metrics of runs of chains: how far they are from their critical path, and what their stages waited for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab.metrics.distribution import mean, percentiles
from trimtab.metrics.run_records import FloatArray, IntArray, Records, StageRecords


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
