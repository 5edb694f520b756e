"""Records for tests: everything defaults to requests served at once on one idle node."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.domain.requests import Reason, Status
from trimtab.metrics import NodeRecords, Records, RequestRecords

INT_COLUMNS = ("node_idx", "tenant_idx", "class_idx", "priority", "attempts")


def request_records(arrival_s: list[float], **columns: list[Any]) -> RequestRecords:
    n = len(arrival_s)
    given: dict[str, Any] = {
        "start_s": [np.nan] * n,
        "service_start_s": [np.nan] * n,
        "finish_s": [np.nan] * n,
        "ended_s": [np.nan] * n,
        "status": [Status.FINISHED] * n,
        "reason": [Reason.NONE] * n,
        "node_idx": [0] * n,
        "tenant_idx": [0] * n,
        "class_idx": [0] * n,
        "priority": [0] * n,
        "attempts": [1] * n,
        "deadline_s": [np.inf] * n,
        "work_s": [np.nan] * n,
        "best_work_s": [1.0] * n,
    } | columns
    arrays = {name: np.array(values, dtype=_dtype(name)) for name, values in given.items()}
    return RequestRecords(arrival_s=np.array(arrival_s, dtype=np.float64), **arrays)


def node_records(slots: list[int], **columns: list[float]) -> NodeRecords:
    n = len(slots)
    given = {
        "type_idx": [0] * n,
        "accelerators": [1.0] * n,
        "usd_per_hour": [0.0] * n,
        "memory_gib": [1.0] * n,
        "memory_used_gib_s": [0.0] * n,
        "allocated_slot_s": [0.0] * n,
        "busy_slot_s": [0.0] * n,
        "up_s": [10.0] * n,
        "paid_frac": [1.0] * n,
    } | columns
    arrays = {name: np.array(values, dtype=np.float64) for name, values in given.items()}
    arrays["type_idx"] = arrays["type_idx"].astype(np.int64)
    return NodeRecords(slots=np.array(slots), **arrays)


def run_records(
    requests: RequestRecords | None = None, nodes: NodeRecords | None = None, **scalars: Any
) -> Records:
    given: dict[str, Any] = {
        "start_s": 0.0,
        "end_s": 10.0,
        "slo_s": [np.inf],
        "model_loads": 0,
        "adapter_loads": 0,
        "bytes_moved_gib": 0.0,
        "retries": 0,
    } | scalars
    given["slo_s"] = np.array(given["slo_s"], dtype=np.float64)
    return Records(requests=requests or request_records([]), nodes=nodes or node_records([1]), **given)


def _dtype(name: str) -> Any:
    if name in ("status", "reason"):
        return np.uint8
    return np.int64 if name in INT_COLUMNS else np.float64
