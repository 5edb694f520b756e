"""The table of a run's requests, for reports and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Cluster
from trimtab.domain.decision import Reason, Status
from trimtab.domain.requests import Requests
from trimtab.metrics import Records

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
