"""The stages of runs of chains: where their time goes, and which of them decide when runs end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.metrics.chain_metrics import path_times, runs_of
from trimtab.metrics.run_records import BoolArray, StageRecords

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
