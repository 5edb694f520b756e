"""Runs of an allocator that is named, by its own clock and placement unless others are named too."""

from __future__ import annotations

from typing import Any

from trimtab.domain.training_jobs import Workload
from trimtab.training.allocator_catalogue import (
    AllocatorSpec,
    clock_of,
    find_allocator,
    placement_of,
    restart_cost_of,
)
from trimtab.training.job_records import JobRecords
from trimtab.training.restart_costs import RestartCost
from trimtab.training.training_loop import Setup, run_jobs


def run_allocator(
    allocator: AllocatorSpec,
    workload: Workload,
    *,
    clock: str = "",
    placement: str = "",
    restart: RestartCost | str = "none",
    round_s: float | None = None,
    **setup: Any,
) -> JobRecords:
    """Run all jobs of a workload.

    `round_s`: length of rounds of allocators that count in them; None = theirs. `setup` has
    the other fields of `Setup`: nodes, type_names, truth, …

    Raises UsageError for names that there are not, and PolicyError for an allocator that breaks a rule.
    """
    made = find_allocator(allocator)
    made = made if round_s is None else made.in_rounds_of(round_s)
    chosen = Setup(
        clock=clock_of(clock or made.clock),
        placement=placement_of(placement or made.placement),
        restart=restart_cost_of(restart) if isinstance(restart, str) else restart,
        **setup,
    )
    return run_jobs(workload, made, chosen)
