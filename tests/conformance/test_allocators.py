"""Every allocator of the catalogue keeps the contract, on random workloads."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.training_runs import random_jobs, run_of
from trimtab.domain.allocator import Allocator, JobNeed
from trimtab.training.allocator_catalogue import (
    allocator_class,
    allocator_names,
    describe_allocator,
    find_allocator,
)
from trimtab.training.job_records import JobRecords, Outcome
from trimtab.training.node_outages import NodeEvent
from trimtab.training.truths.table_model import TableTruth
from trimtab.validation.named_classes import section

HEADINGS = ("Idea", "Source", "Reads", "Cost", "When it wins / loses", "Deviations from the source")
TABLE_PROVIDES = {JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.DEADLINES, JobNeed.ORACLE, JobNeed.LOSSES}
ON_TABLES = [n for n in allocator_names() if allocator_class(n).needs <= TABLE_PROVIDES]
SHARING = [n for n in allocator_names() if JobNeed.SHARING in allocator_class(n).needs]


@pytest.mark.parametrize("name", allocator_names())
def test_documentation_has_its_headings(name: str) -> None:
    text = describe_allocator(name).documentation
    positions = [text.find(f"\n{heading}\n") for heading in HEADINGS]
    assert positions == sorted(positions)
    assert min(positions) > 0
    assert all(section(text, heading) for heading in HEADINGS)
    assert re.search(r"O\(", section(text, "Cost"))
    assert re.search(r"\b(19|20)\d\d\b", section(text, "Source"))


@pytest.mark.parametrize("name", allocator_names())
def test_an_allocator_is_a_frozen_bag_of_parameters_in_a_file_of_its_name(name: str) -> None:
    cls = allocator_class(name)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert Path(inspect.getfile(cls)).stem == name.replace("-", "_")


def same(first: JobRecords, second: JobRecords) -> bool:
    names = ("outcome", "start_s", "finish_s", "gpu_s", "restarts", "decided_s")
    return all(np.array_equal(getattr(first, n), getattr(second, n), equal_nan=True) for n in names)


@pytest.mark.parametrize("name", ON_TABLES)
@pytest.mark.parametrize("seed", range(3))
def test_runs_end_well_and_are_repeatable(name: str, seed: int) -> None:
    workload = random_jobs(seed)
    run = run_of(workload, name, restart="flat(seconds_s=10)")
    assert same(run, run_of(workload, name, restart="flat(seconds_s=10)"))
    assert (run.outcome != Outcome.UNFINISHED).all()
    done = run.finished
    assert (run.start_s[done] >= workload.submit_s[done]).all()
    assert (run.finish_s[done] > run.start_s[done]).all()
    assert set(run.reasons) == set(np.flatnonzero(run.outcome == Outcome.REJECTED))
    assert (run.used_gpus <= 8).all()


@pytest.mark.parametrize("name", [*ON_TABLES, *SHARING])
def test_runs_end_well_though_nodes_fail_and_are_drained(name: str) -> None:
    events = (
        NodeEvent(400.0, 0, up=False),
        NodeEvent(900.0, 0, up=True),
        NodeEvent(1000.0, 1, up=False, drains=True),
        NodeEvent(1500.0, 1, up=True),
    )
    workload = random_jobs(1, 16)
    run = run_of(
        workload, name, restart="flat(seconds_s=10)", node_events=events, checkpoint_s=100.0, nodes=(8, 8)
    )
    assert (run.outcome != Outcome.UNFINISHED).all()
    assert (run.lost_gpu_s <= run.gpu_s).all()
    is_down = (run.decided_s >= 400.0) & (run.decided_s < 900.0)
    assert (run.used_gpus[is_down] <= 8).all()


@pytest.mark.parametrize("name", [*ON_TABLES, *SHARING])
def test_quotas_of_tenants_are_kept_and_all_jobs_end(name: str) -> None:
    workload = random_jobs(2, 16)
    tenant_idx = np.arange(16) % 2
    asked = np.where(tenant_idx == 0, np.minimum(workload.gpus_requested, 4), workload.gpus_requested)
    most = np.where(tenant_idx == 0, 4, workload.gpus_max)
    workload = replace(
        workload, tenant_idx=tenant_idx, tenant_names=("a", "b"), gpus_requested=asked, gpus_max=most
    )
    run = run_of(workload, name, restart="flat(seconds_s=10)", quota_gpus=np.array([4.0, np.inf]))
    assert (
        run.outcome != Outcome.UNFINISHED
    ).all()  # with Gavel's, jobs wait for shares after the last arrival
    assert most_at_once(run, tenant_idx == 0) <= 4


@pytest.mark.parametrize("name", allocator_names())
def test_jobs_that_keep_their_gpus_do_so_and_all_jobs_end(name: str) -> None:
    """A third of the jobs may not be preempted, another third is pinned; then a node of some fails."""
    workload = random_jobs(3, 16)
    third = np.arange(16) % 3
    workload = replace(workload, preemptible=third != 0, pinned=third == 1)
    keeps = third < 2
    run = run_of(workload, name, restart="flat(seconds_s=10)", nodes=(4, 4))
    assert (run.outcome != Outcome.UNFINISHED).all()
    assert (run.restarts[keeps] == 0).all()
    for job in np.flatnonzero(keeps & run.finished):
        counts = run.change_gpus[run.change_job == job]
        assert len(counts) == 2  # from its start to its end
        assert counts[0] * (run.finish_s[job] - run.start_s[job]) <= run.gpu_s[job] + 1e-6 or name in SHARING
    events = (NodeEvent(400.0, 0, up=False), NodeEvent(900.0, 0, up=True))
    failed = run_of(workload, name, restart="flat(seconds_s=10)", nodes=(4, 4), node_events=events)
    assert (failed.outcome != Outcome.UNFINISHED).all()
    assert (failed.restarts[keeps] <= 1).all()  # those of the node


def most_at_once(run: JobRecords, counted: Any) -> int:
    """Most GPUs that these jobs held together after a decision; those of a pair count for both."""
    held, most = np.zeros(len(counted), np.int64), 0
    for decision in np.unique(run.change_decision):
        changes = run.change_decision == decision
        held[run.change_job[changes]] = run.change_gpus[changes]
        most = max(most, int(held[counted].sum()))
    return most


@pytest.mark.parametrize("name", ON_TABLES)
def test_hidden_work_does_not_change_the_first_decision(name: str) -> None:
    """Two runs that differ in true work only are the same until the first job of either one ends."""
    if allocator_class(name).needs & {JobNeed.ORACLE, JobNeed.LOSSES}:
        pytest.skip("it is told of the true work, or sees it in losses")
    workload = random_jobs(5)
    longer = replace(workload, work=workload.work * 3)
    runs = [run_of(w, name) for w in (workload, longer)]
    first_end_s = min(np.nanmin(run.finish_s) for run in runs)
    starts = [np.where(run.start_s < first_end_s, run.start_s, -1.0) for run in runs]
    assert np.array_equal(*[np.nan_to_num(s, nan=-1.0) for s in starts])


def reachable(thing: Any) -> Iterator[Any]:
    seen: set[int] = set()
    todo = [thing]
    while todo:
        each = todo.pop()
        if id(each) in seen or inspect.ismodule(each) or isinstance(each, type):
            continue
        seen.add(id(each))
        yield each
        todo += [r for r in gc.get_referents(each) if not inspect.isfunction(r)]


def test_estimates_hold_nothing_of_the_truth() -> None:
    seen: list[Any] = []

    class Looks(type(find_allocator("fifo"))):  # type: ignore[misc]
        name = ""

        def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Any:
            seen.extend([speed, cluster, jobs])
            return super().allocate(jobs, cluster, now_s, speed, memory)

    workload = random_jobs(0)
    workload = replace(workload, declared_work=workload.declared_work + 1.0)
    run_of(workload, Looks())
    things = list(reachable(seen))
    assert not [t for t in things if isinstance(t, TableTruth)]
    assert not [t for t in things if t is workload or t is workload.work]


def test_the_base_class_gives_nothing() -> None:
    with pytest.raises(NotImplementedError):
        Allocator().allocate(*[None] * 5)  # type: ignore[arg-type]
