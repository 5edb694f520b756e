"""Tables of a run's requests and stages, for reports, files and the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import Reason, Requests, Status
from trimtab.engine.stage_results import LEAST_GIB
from trimtab.experiments.bounds.caching import volume_bound_hits
from trimtab.experiments.scenario.build import RunInputs
from trimtab.metrics import Records, StageRecords, link_frac
from trimtab.traces.wfformat import NAME as WFFORMAT

if TYPE_CHECKING:
    import polars as pl


def request_table(
    records: Records, cluster: Cluster, requests: Requests, of_trace: pl.DataFrame | None = None
) -> pl.DataFrame:
    """One typed row per request; `*_s` are seconds from the start of the run, null = never happened.

    `of_trace` has further columns of the same rows.
    """
    import polars as pl

    rows, work = records.requests, requests.work
    columns: dict[str, Any] = {
        "request_id": work["serial"],
        "arrival_s": rows.arrival_s,
        "start_s": rows.start_s,
        "service_start_s": rows.service_start_s,
        "finish_s": rows.finish_s,
        "node_idx": rows.node_idx.astype(np.int64),
        "node": _named_nodes(rows.node_idx, cluster),
        "status": _enum(rows.status, [s.name.lower() for s in Status]),
        "reason": _enum(rows.reason, _reason_names(int(rows.reason.max(initial=0)))),
        "class": _enum(rows.class_idx, cluster.class_names),
        "tenant": _enum(rows.tenant_idx, requests.tenant_names),
        "priority": rows.priority,
        "deadline_s": np.where(np.isinf(rows.deadline_s), np.nan, rows.deadline_s),
        "attempts": rows.attempts,
        "estimate_s": work["estimate_s"],
        "units": requests.truth["units"],
    }
    if records.tokens is not None:
        columns |= {
            "first_token_s": records.tokens.first_token_s,
            "prompt_tokens": work["input_tokens"],
            "output_tokens": requests.truth["output_tokens"],
            "preempted": records.tokens.preempted,
        }
    table = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    if of_trace is None:
        return table
    taken = {name: f"{name}_in_trace" for name in of_trace.columns if name in table.columns}
    return table.hstack(of_trace.rename(taken))


def _named_nodes(node_idx: NDArray[Any], cluster: Cluster) -> pl.Series:
    """Names of nodes; null for −1, a request that no node served."""
    import polars as pl

    names = pl.Series(list(cluster.node_names), dtype=pl.Enum(list(dict.fromkeys(cluster.node_names))))
    served = pl.Series(np.where(node_idx >= 0, node_idx, len(names)), dtype=pl.UInt32)
    return names.extend(pl.Series([None], dtype=names.dtype)).gather(served)


def _reason_names(most: int) -> list[str]:
    named = {int(r): r.name.lower() for r in Reason}
    return [named.get(i, f"policy_{i}") for i in range(max(most, int(Reason.POLICY)) + 1)]


def _enum(codes: NDArray[Any], names: Any) -> Any:
    import polars as pl

    kind = pl.Enum(list(names))
    return pl.Series(list(names), dtype=kind).gather(pl.Series(codes.astype(np.uint32)))


def summarised_stages(records: Records, inputs: RunInputs) -> StageRecords | None:
    """The stages to summarise; of recorded workflows, whose stages each run once, their tools."""
    stages, chains, trace = records.stages, inputs.requests.chains, inputs.trace
    if stages is None or chains is None or trace is None or trace.format != WFFORMAT:
        return stages
    classes, tool_idx = np.unique(chains.work["class_idx"], return_inverse=True)
    names = tuple(inputs.cluster.class_names[c] for c in classes)
    return replace(stages, names=names, stage_idx=tool_idx, is_last=np.zeros(len(names), np.bool_))


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


def link_table(records: Records) -> pl.DataFrame:
    """One typed row per link of the network and direction, as in the graph; utilisation is of the window."""
    import polars as pl

    links = records.links
    assert links is not None, "a run without a network"
    return pl.DataFrame(
        {
            "link": list(links.names),
            "gib_per_s": links.gib_per_s,
            "carried_gib": links.carried_gib,
            "utilisation_frac": link_frac(records),
        }
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


def _stages_of(records: Records) -> StageRecords:
    assert records.stages is not None, "a run without chains"
    return records.stages
