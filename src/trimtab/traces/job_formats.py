"""Public formats of training jobs, by the columns of their files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl

JOB_COLUMNS: Final[dict[str, pl.DataType]] = {
    "job_id": pl.String(),
    "submit_s": pl.Float64(),
    "gpus": pl.Int64(),
    "duration_s": pl.Float64(),  # with the GPUs asked for
    "model": pl.String(),
    "batch": pl.Float64(),  # global
    "work": pl.Float64(),  # in the model's unit, such as iterations
    "deadline_s": pl.Float64(),  # absolute
    "priority": pl.Int64(),
    "tenant": pl.String(),
    "gpus_min": pl.Int64(),
    "gpus_max": pl.Int64(),
    "preemptible": pl.Boolean(),  # false: it keeps its GPUs from its start to its end
    "pinned": pl.Boolean(),  # true: as not preemptible; an allocator that knows both may move only the other
    "partition": pl.String(),  # one of these its nodes must be in, with ; between them
    "labels": pl.String(),  # all of these its nodes must have, with ; between them
    "cpus_per_gpu": pl.Float64(),  # of its nodes, for each of its GPUs
    "memory_gib_per_gpu": pl.Float64(),
    "held": pl.String(),  # GPUs held now, as node:count, with ; between nodes
    "work_left": pl.Float64(),
    "attained_gpu_s": pl.Float64(),
    "run_s": pl.Float64(),
    "restarts": pl.Int64(),
    "profiled_gpus_max": pl.Int64(),  # most GPUs with which it has run
}
"""Canonical column → type. `submit_s` and `gpus` are always there; the last ones are a state, not a trace."""

STATE_COLUMNS: Final = ("attained_gpu_s", "run_s", "restarts", "profiled_gpus_max")
"""Columns of a state that count from 0."""
OWN_FORMAT: Final = "trimtab-jobs"


@dataclass(frozen=True, slots=True)
class JobFormat:
    """One format: canonical column → column of the file.

    Attributes:
        unit_s: seconds of one unit of the file's times.
        also: further columns that identify the format; they are kept under their own names.
        derived: canonical columns computed from the file's, after those above are read.
        has_cpu_jobs: whether it lists jobs without GPUs, which are left out.
    """

    name: str
    columns: Mapping[str, str]
    unit_s: float = 1.0
    also: tuple[str, ...] = ()
    derived: Mapping[str, pl.Expr] = field(default_factory=dict)
    has_cpu_jobs: bool = False

    @property
    def source_names(self) -> frozenset[str]:
        """Columns of the file by which the format is known."""
        return frozenset((*self.columns.values(), *self.also))


def _number(name: str) -> pl.Expr:
    """A column of the file's own; null where it is no number."""
    return pl.col(name).cast(pl.Float64, strict=False)


JOB_FORMATS: Final = (
    JobFormat(
        "elasticflow",  # traces_for_ElasticFlow of the ASPLOS 2023 artifact
        {
            "job_id": "job_id",
            "submit_s": "submit_time",
            "work": "iteration",
            "model": "model_name",
            "deadline_s": "ddl",
            "batch": "batch_size",
            "gpus": "num_gpu",
            "duration_s": "duration",
        },
    ),
    JobFormat(
        "elasticflow-traces",  # microsoft/elasticflow-traces, with deadlines
        {
            "job_id": "job_id",
            "submit_s": "submission_time",
            "work": "num_iteration",
            "model": "model_name",
            "deadline_s": "deadline",
            "batch": "batch_size",
            "gpus": "num_gpu",
            "duration_s": "duration",
        },
    ),
    JobFormat(
        "elasticflow-raw",  # the same jobs as recorded
        {"job_id": "job_id", "submit_s": "submission_time", "gpus": "num_gpu", "duration_s": "duration"},
    ),
    JobFormat(
        "sia-workload",  # Pollux and Sia: applications whose profiles say how fast they are
        {
            "job_id": "name",
            "submit_s": "time",
            "model": "application",
            "gpus": "num_replicas",
            "batch": "batch_size",
        },
    ),
    JobFormat(
        "philly",
        {
            "submit_s": "timestamp",
            "gpus": "num_gpus",
            "duration_s": "duration",
            "tenant": "cluster",
        },
        also=("gpu_time",),
    ),
    JobFormat(
        "chronus",
        {
            "job_id": "job_id",
            "submit_s": "submit_time",
            "gpus": "num_gpu",
            "duration_s": "duration",
            "model": "model_name",
            "work": "iterations",
            "tenant": "user",
        },
        unit_s=60.0,
        also=("expect_time_list", "job_type"),
        derived={
            "deadline_s": pl.when(pl.col("job_type") == "best")
            .then(math.inf)
            .otherwise(
                pl.col("submit_s")
                + 60.0 * pl.col("expect_time_list").str.split("-").list.first().cast(pl.Float64, strict=False)
            )
        },
        has_cpu_jobs=True,
    ),
    JobFormat(
        "muri",
        {
            "job_id": "job_id",
            "submit_s": "submit_time",
            "gpus": "num_gpu",
            "duration_s": "duration",
            "model": "model_name",
            "batch": "batch_size",
            "work": "iterations",
            "priority": "priority",
        },
        unit_s=0.001,
        also=("iteration_time", "resource_time_0"),
    ),
    JobFormat(
        "acme-kalos",
        {"submit_s": "arrival_time", "work": "num_iteration"},
        also=("gpu_workers", "gpu_per_worker", "iteration_computing_time", "iteration_networking_time"),
        derived={
            "gpus": _number("gpu_workers") * _number("gpu_per_worker"),
            "duration_s": pl.col("work")
            * (_number("iteration_computing_time") + _number("iteration_networking_time")),
        },
    ),
    JobFormat(
        "helios",  # S-Lab's Helios: jobs of a cluster, with those that use CPUs only
        {
            "job_id": "job_id",
            "submit_s": "submit_time",
            "gpus": "gpu_num",
            "duration_s": "duration",
            "tenant": "user",
        },
        also=("cpu_num", "node_num", "state", "queue"),
        has_cpu_jobs=True,
    ),
    JobFormat(
        OWN_FORMAT,  # what `trimtab` writes, and the file that `trimtab allocate` reads
        {"job_id": "job_id", "submit_s": "submit_s", "gpus": "gpus"},
    ),
)

SIMPLEST_JOBS: Final = ("job_id", "submit_s", "gpus", "duration_s")
"""Columns of a file of jobs that needs nothing else."""

GAVEL_LIST: Final = "gavel-list"
"""Format without a header, which `traces.gavel_jobs` reads."""

NO_JOBS: Final = {
    "the state of a cluster minute by minute": ("total_job_num", "running_gpu_num", "gpu_utilization"),
    "nodes in use minute by minute": ("time", "active", "total"),
    "run times alone": ("runtime",),
    "aggregates of clusters": ("id", "job_num", "gpu_job_num", "avg_run_time_gpu"),
}
"""The other published files of a format → columns by which they are known."""
