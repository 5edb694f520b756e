"""Small workloads of training jobs, and runs of allocators on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.domain.training_jobs import Workload, gpu_nodes
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
)
from trimtab.training.job_records import JobRecords
from trimtab.training.node_outages import NodeEvent
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import ScalingTable, TableTruth

LEVELS = np.array([1, 2, 4, 8])
RATE_PER_S = np.array([[1.0, 1.8, 3.0, 4.0], [1.0, 1.9, 3.6, 6.4], [1.0, 1.5, 1.6, 1.2]])


def scaling_table(types: int = 1) -> ScalingTable:
    """Three models with one batch each; the second type is twice as fast, and so on."""
    rate = np.stack([RATE_PER_S * (t + 1) for t in range(types)])
    names = ("sublinear", "good", "falling")
    return ScalingTable(LEVELS, names, rate, np.array([[0], [1], [2]]), np.array([64.0]))


def jobs_of(
    submit_s: Any,
    work: Any,
    gpus: Any = 1,
    *,
    model_idx: Any = 0,
    deadline_s: Any = np.inf,
    scales: Any = True,
    **more: Any,
) -> Workload:
    """A workload from columns; scalars count for every job."""
    submit_s = np.asarray(submit_s, np.float64)
    n = len(submit_s)

    def column(value: Any, kind: Any = np.int64) -> Any:
        return np.broadcast_to(np.asarray(value, kind), n).copy()

    work = column(work, np.float64)
    columns = {
        "gpus_min": column(1),
        "gpus_max": column(8),
        "declared_work": work.copy(),
        "priority": column(0),
        "tenant_idx": column(0),
        "preemptible": column(True, np.bool_),
    } | more
    return Workload(
        name="made for a test",
        job_ids=tuple(f"job-{i}" for i in range(n)),
        model_names=("sublinear", "good", "falling"),
        submit_s=submit_s,
        deadline_s=column(deadline_s, np.float64),
        model_idx=column(model_idx),
        gpus_requested=column(gpus),
        batch=column(64.0, np.float64),
        work=work,
        duration_s=column(np.nan, np.float64),
        tenant_names=("one",),
        scales=column(scales, np.bool_),
        **columns,
    )


def random_jobs(seed: int, n: int = 40) -> Workload:
    """Poisson arrivals of jobs with deadlines, some of them tight."""
    rng = np.random.default_rng(seed)
    submit_s = np.cumsum(rng.exponential(60.0, n))
    gpus = rng.choice(LEVELS, n)
    model_idx = rng.integers(0, 3, n)
    duration_s = rng.lognormal(5.0, 1.0, n)
    work = duration_s * RATE_PER_S[model_idx, np.searchsorted(LEVELS, gpus)]
    deadline_s = submit_s + duration_s * rng.uniform(0.5, 3.0, n)
    return jobs_of(submit_s, work, gpus, model_idx=model_idx, deadline_s=deadline_s)


def run_of(
    workload: Workload,
    allocator: AllocatorSpec,
    *,
    nodes: Any = (4, 4),
    types: int = 1,
    clock: str | None = None,
    restart: str = "none",
    placement: str | None = None,
    finish_rounding: str = "exact",
    node_events: tuple[NodeEvent, ...] = (),
    **more: Any,
) -> JobRecords:
    """Run a table model; the clock and the placement are the allocator's own unless given."""
    return run_allocator(
        allocator,
        workload,
        nodes=gpu_nodes(np.arange(len(nodes)) % types, nodes),
        type_names=tuple(f"type-{t}" for t in range(types)),
        truth=TableTruth(scaling_table(types), finish_rounding=finish_rounding),
        clock=clock or "",
        placement=placement or "",
        restart=restart,
        node_events=node_events,
        **more,
    )


def write_pairs(path: Path) -> Path:
    """Two job types on one GPU; A keeps 0.6 beside B, B keeps 0.5; B can't share with itself."""
    a, b = "('LM (batch size 10)', 1)", "('LM (batch size 20)', 1)"
    table = {a: {"null": 10.0, b: [6.0, 4.0]}, b: {"null": 8.0, a: [4.0, 6.0], b: [0.0, 0.0]}}
    path.write_text(json.dumps({"gpu": table}))
    return path
