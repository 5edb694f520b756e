"""Tables of the stages of a run of chains, for files, reports and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.engine.stage_results import LEAST_GIB
from trimtab.experiments.bounds.caching import volume_bound_hits
from trimtab.experiments.scenario.build import RunInputs
from trimtab.metrics import Records, StageRecords
from trimtab.metrics.chain_metrics import path_shares, runs_of

if TYPE_CHECKING:
    import polars as pl

PATHS = 2000  # runs whose waiting paths are followed, evenly over all finished ones


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage over all runs; times are means over its served instances."""

    stage: str
    served: int
    queueing_s: float  # from its inputs to its slot, transfers included
    service_s: float
    moved_gib: float  # inputs moved to its nodes, in all
    path_queueing_frac: float  # of the time on the paths that decided when runs ended
    path_service_frac: float

    @property
    def path_frac(self) -> float:
        """Share of the time on the paths that decided when runs ended."""
        return self.path_queueing_frac + self.path_service_frac


def stage_table(records: Records, cluster: Cluster) -> pl.DataFrame:
    """One typed row per stage instance; `*_s` are seconds from the start, null = never happened."""
    import polars as pl

    stages = _stages_of(records)
    names = np.array(stages.names)
    nodes = np.array([*cluster.node_names, ""])
    table = pl.DataFrame(
        {
            "request_id": stages.run_idx.astype(np.int64),
            "stage": names[stages.stage_idx],
            "ready_s": stages.ready_s,
            "start_s": stages.start_s,
            "service_start_s": stages.service_start_s,
            "finish_s": stages.finish_s,
            "node": np.where(stages.node_idx >= 0, nodes[stages.node_idx], ""),
            "moved_gib": stages.moved_gib,
        }
    )
    return table.with_columns(pl.col(pl.Float64).fill_nan(None))


def stage_summaries(records: Records) -> list[StageSummary]:
    """The stages in their order, with their share of what decided when runs ended."""
    stages = _stages_of(records)
    runs = runs_of(stages)
    runs = runs[records.requests.finished[runs]]
    chosen = runs[np.unique(np.linspace(0, len(runs) - 1, PATHS).astype(np.int64))] if len(runs) else runs
    shares = path_shares(stages, chosen)
    shares /= max(float(shares.sum()), 1e-300)
    return [_summary(stages, k, shares[k, 0], shares[k, 1]) for k in range(len(stages.names))]


def _summary(stages: StageRecords, k: int, queueing_frac: float, service_frac: float) -> StageSummary:
    rows = np.flatnonzero((stages.stage_idx == k) & stages.served)
    queueing_s, service_s = (stages.start_s - stages.ready_s)[rows], (stages.finish_s - stages.start_s)[rows]
    return StageSummary(
        stage=stages.names[k],
        served=len(rows),
        queueing_s=float(queueing_s.mean()) if len(rows) else float("nan"),
        service_s=float(service_s.mean()) if len(rows) else float("nan"),
        moved_gib=float(stages.moved_gib[rows].sum()),
        path_queueing_frac=float(queueing_frac),
        path_service_frac=float(service_frac),
    )


def best_store_hit_frac(records: Records, inputs: RunInputs) -> float:
    """The largest share of the repeatable stages that any store of this size can answer, in this order.

    nan where there is no store, or nothing is repeatable.
    """
    chains, capacity_gib = inputs.requests.chains, inputs.options.stage_results_gib
    if chains is None or chains.content_idx is None or capacity_gib == 0.0 or records.repeatable == 0:
        return float("nan")
    ready_s = _stages_of(records).ready_s
    rows = np.flatnonzero((chains.content_idx >= 0) & ~np.isnan(ready_s) & ~chains.is_skipped)
    rows = rows[np.argsort(ready_s[rows], kind="stable")]
    size_gib = np.zeros(int(chains.content_idx.max()) + 1)
    size_gib[chains.content_idx[rows]] = np.maximum(chains.output_gib[rows], LEAST_GIB)
    hits = volume_bound_hits(chains.content_idx[rows].tolist(), size_gib, capacity_gib)
    return hits / records.repeatable


def bottleneck_text(summaries: list[StageSummary]) -> str:
    """The stage that takes most of the time on the deciding paths, in words."""
    first = max(summaries, key=lambda summary: summary.path_frac)
    queueing_frac = first.path_queueing_frac / first.path_frac if first.path_frac > 0.0 else 0.0
    remedy = "more" if queueing_frac >= 0.5 else "faster"
    return (
        f"{first.stage} is the bottleneck: {100 * first.path_frac:.0f} % of the time on the paths that "
        f"decide when runs end, {100 * queueing_frac:.0f} % of it waiting and transfers; "
        f"{remedy} nodes that serve it would help"
    )


def _stages_of(records: Records) -> StageRecords:
    assert records.stages is not None, "a run without chains"
    return records.stages
