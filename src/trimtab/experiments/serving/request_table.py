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


def request_table(records: Records, cluster: Cluster, requests: Requests) -> pl.DataFrame:
    """One typed row per request; `*_s` are seconds from the start of the run, null = never happened."""
    import polars as pl

    rows, work = records.requests, requests.work
    columns: dict[str, Any] = {
        "request_id": work["serial"],
        "arrival_s": rows.arrival_s,
        "start_s": rows.start_s,
        "service_start_s": rows.service_start_s,
        "finish_s": rows.finish_s,
        "node_idx": rows.node_idx.astype(np.int64),
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
    table = pl.DataFrame(columns)
    return table.with_columns(pl.col(pl.Float64).fill_nan(None))


def _reason_names(most: int) -> list[str]:
    named = {int(r): r.name.lower() for r in Reason}
    return [named.get(i, f"policy_{i}") for i in range(max(most, int(Reason.POLICY)) + 1)]


def _enum(codes: NDArray[Any], names: Any) -> Any:
    import polars as pl

    kind = pl.Enum(list(names))
    return pl.Series(list(names), dtype=kind).gather(pl.Series(codes.astype(np.uint32)))
