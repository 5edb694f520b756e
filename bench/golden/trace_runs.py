"""Runs of an allocator on a file of jobs and a folder of profiles, with every choice by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.domain.training_jobs import gpu_nodes
from trimtab.traces.read_jobs import read_jobs
from trimtab.traces.scaling_profiles import read_scaling_profiles
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
)
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth
from trimtab.training.workloads import WorkloadOptions, table_workload


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a run. Each default is what allocators themselves say, or free and exact.

    Attributes:
        clock: "" = the allocator's own.
        placement: "" = the allocator's own.
        restart: what a change costs.
        finish_rounding: how times of finishes are rounded.
        work: how a table of jobs becomes work.
    """

    clock: str = ""
    placement: str = ""
    restart: str = "none"
    finish_rounding: str = "exact"
    work: WorkloadOptions = field(default_factory=WorkloadOptions)


def run_trace(
    allocator: AllocatorSpec,
    trace: Path,
    profiles: Path,
    gpus_of_nodes: Sequence[int],
    rules: Rules | None = None,
) -> JobRecords:
    """Run a trace on nodes of one type. Raises UsageError for input that can't be used."""
    rules = rules or Rules()
    table, models = read_scaling_profiles(profiles)
    workload = table_workload(read_jobs(trace), table, models, rules.work)
    return run_allocator(
        allocator,
        workload,
        nodes=gpu_nodes(0, gpus_of_nodes),
        type_names=("gpu",),
        truth=TableTruth(table, finish_rounding=rules.finish_rounding),
        clock=rules.clock,
        placement=rules.placement,
        restart=rules.restart,
    )
