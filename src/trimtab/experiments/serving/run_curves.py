"""Curves of a serving run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Cluster
from trimtab.engine.faults import fault_times
from trimtab.experiments.compare.kind import BINS, QUANTILES, ROWS, Curves
from trimtab.metrics import Records, queue_length_over_time, utilisation_over_time
from trimtab.metrics.chain_metrics import runs_of

Floats = NDArray[np.float64]
MARKS = 20  # of more failures, those that overlap are one mark
SWITCHES = 200  # of a policy that are marked, the first ones


def curves_of(
    records: Records,
    cluster: Cluster,
    edges_s: Floats | None = None,
    faults: NDArray[np.void] | None = None,
    seed: int = 0,
) -> Curves:
    """Curves of a run of a seed; with `edges_s` several runs share a time axis. `faults` are marked on it."""
    rows = records.requests
    finished_s = rows.completion_s[rows.finished]
    frac = np.linspace(0.0, 1.0, QUANTILES)
    if edges_s is None:
        edges_s = np.linspace(records.start_s, max(records.end_s, records.start_s + 1e-9), BINS + 1)
    ended_s = np.where(np.isnan(rows.ended_s), records.end_s, rows.ended_s)  # or still in flight at the end
    waited_until_s = np.where(np.isnan(rows.start_s), ended_s, rows.start_s)[rows.arrived]
    used = utilisation_over_time(*_occupancy(records, ended_s), records.nodes.slots, edges_s)
    row_of = _row_of_nodes(cluster)
    return Curves(
        quantile_frac=frac,
        completion_s=np.quantile(finished_s, frac) if len(finished_s) else np.full(QUANTILES, np.nan),
        edges_s=edges_s,
        queue_length=queue_length_over_time(rows.arrival_s[rows.arrived], waited_until_s, edges_s),
        utilisation_frac=_row_means(used, row_of),
        row_names=_row_names(cluster, row_of),
        latency_s=_latency_s(rows.arrival_s[rows.finished], finished_s, edges_s),
        marks=() if faults is None else _marks(faults, cluster, seed, edges_s),
        switches=records.switches[:SWITCHES],
    )


def _latency_s(arrival_s: Floats, completion_s: Floats, edges_s: Floats) -> Floats:
    """Mean completion of the requests that arrived in each bin; nan where none did."""
    counts, _ = np.histogram(arrival_s, edges_s)
    summed_s, _ = np.histogram(arrival_s, edges_s, weights=completion_s)
    mean_s: Floats = np.where(counts > 0, summed_s / np.maximum(counts, 1), np.nan)
    return mean_s


def _marks(
    faults: NDArray[np.void], cluster: Cluster, seed: int, edges_s: Floats
) -> tuple[tuple[float, float, str], ...]:
    """Failures and slow-downs of nodes, those of the same time together."""
    nodes: dict[tuple[float, float, float], set[int]] = {}
    for f, start_s, end_s in fault_times(faults, seed, float(edges_s[-1])):
        fault = faults[f]
        if fault["resource"] == 0:
            nodes.setdefault((start_s, end_s, float(fault["factor"])), set()).add(int(fault["node_idx"]))
    if len(nodes) > MARKS:
        nodes = _joined(nodes, gap_s=2.0 * float(edges_s[1] - edges_s[0]))
    return tuple(
        (start_s, end_s, _in_words([cluster.node_names[j] for j in sorted(who)], factor))
        for (start_s, end_s, factor), who in nodes.items()
    )


def _joined(
    nodes: dict[tuple[float, float, float], set[int]], gap_s: float
) -> dict[tuple[float, float, float], set[int]]:
    """Those of one speed that overlap, or are less than a gap apart, as one."""
    joined: dict[tuple[float, float, float], set[int]] = {}
    last: dict[float, tuple[float, float, float]] = {}
    for (start_s, end_s, factor), who in sorted(nodes.items()):
        before = last.get(factor)
        key = (start_s, end_s, factor)
        if before is not None and start_s < before[1] + gap_s:
            key, who = (before[0], max(end_s, before[1]), factor), who | joined.pop(before)
        joined[key], last[factor] = who, key
    return joined


def _in_words(names: list[str], factor: float) -> str:
    who = names[0] if len(names) == 1 else f"{len(names)} nodes"
    return f"{who} down" if factor == 0.0 else f"{who} at {100 * factor:g} %"


def _occupancy(records: Records, ended_s: Floats) -> tuple[Floats, Floats, NDArray[Any]]:
    """Start, end and node of everything that held a slot: requests, and stages in place of their runs."""
    rows, stages = records.requests, records.stages
    if stages is None:
        return rows.start_s, ended_s, rows.node_idx
    alone = np.ones(len(rows.start_s), np.bool_)
    alone[runs_of(stages)] = False
    until_s = np.where(np.isnan(stages.finish_s), records.end_s, stages.finish_s)
    return (
        np.concatenate([rows.start_s[alone], stages.start_s]),
        np.concatenate([ended_s[alone], until_s]),
        np.concatenate([rows.node_idx[alone], stages.node_idx]),
    )


def _row_of_nodes(cluster: Cluster) -> NDArray[np.int64]:
    """Row of each node, [nodes]: nodes by type, then position; adjacent ones together in large clusters."""
    place = np.empty(cluster.n_nodes, np.int64)
    place[np.argsort(cluster.type_idx, kind="stable")] = np.arange(cluster.n_nodes)
    return place * min(ROWS, cluster.n_nodes) // cluster.n_nodes


def _row_means(values: Floats, row_of: NDArray[np.int64]) -> Floats:
    total = np.zeros((int(row_of.max()) + 1, values.shape[1]))
    np.add.at(total, row_of, values)
    mean: Floats = total / np.bincount(row_of)[:, None]
    return mean


def _row_names(cluster: Cluster, row_of: NDArray[np.int64]) -> tuple[str, ...]:
    first: dict[int, str] = {}
    for j in np.argsort(cluster.type_idx, kind="stable"):
        first.setdefault(int(row_of[j]), cluster.node_names[j])
    return tuple(first[row] for row in sorted(first))
