"""Every allocator keeps to queues: limits, counts and guarantees, under every scheme, and all jobs end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.training_runs import jobs_of, random_jobs, run_of, scaling_table
from trimtab.domain.allocator import JobNeed
from trimtab.domain.job_places import NodeOffer
from trimtab.domain.queue_tree import Queue, QueueOrder, QueueScheme, QueueTree
from trimtab.domain.training_jobs import Flags, Ints, JobQueues, Workload, gpu_nodes
from trimtab.training.allocator_catalogue import allocator_class, allocator_names
from trimtab.training.job_metrics import job_metrics, queue_figures
from trimtab.training.job_records import Outcome
from trimtab.training.queue_shares import job_queues
from trimtab.training.training_loop import TrainingRun, begun
from trimtab.training.truths.table_model import TableTruth

TABLE_PROVIDES = {JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.DEADLINES, JobNeed.ORACLE, JobNeed.LOSSES}
ON_TABLES = [n for n in allocator_names() if allocator_class(n).needs <= TABLE_PROVIDES]
SHARING = [n for n in allocator_names() if JobNeed.SHARING in allocator_class(n).needs]
TIMELESS = ["sjf", "srtf", "tiresias", "gandiva", "gavel-max-min", "optimus", "themis", "weighted-goodput"]
NOTICE_S = 60.0
TREE = QueueTree.of(
    [
        Queue("research", weight=2, guarantee=0.5, limit=0.75, notice_s=NOTICE_S, tenants=("a",)),
        Queue(
            "products",
            guarantee=0.5,
            notice_s=NOTICE_S,
            children=(
                Queue("search", guarantee=0.5, notice_s=NOTICE_S, tenants=("b", "c"), order=QueueOrder.FAIR),
                Queue("default", limit=0.5, max_running=2, tenants=("d",)),
            ),
        ),
    ],
    ["gpus"],
)


def with_tenants(workload: Workload, tenant_idx: Ints, names: str = "abcd") -> Workload:
    return replace(workload, tenant_names=tuple(names), tenant_idx=tenant_idx)


def queued(seed: int, n: int = 20) -> tuple[Workload, JobQueues]:
    """Jobs of four tenants; those of research ask for 12 of 16 GPUs at most, those of d for 8."""
    workload = with_tenants(random_jobs(seed, n), np.arange(n) % 4)
    most = np.where(workload.tenant_idx == 3, 8, 12)
    workload = replace(workload, gpus_max=np.minimum(workload.gpus_max, most))
    return workload, job_queues(TREE, workload.tenant_names, [NodeOffer()] * 2)


def run_in_queues(name: str, workload: Workload, queues: JobQueues | None) -> TrainingRun:
    return begun(
        name,
        workload,
        restart="flat(seconds_s=10)",
        nodes=gpu_nodes(0, [8, 8]),
        type_names=("type-0",),
        truth=TableTruth(scaling_table()),
        queues=queues,
        declared=queues,
    )


@pytest.mark.parametrize("name", [*ON_TABLES, *SHARING])
def test_limits_and_counts_are_kept_at_every_decision_and_all_jobs_end(name: str) -> None:
    workload, queues = queued(5)
    run = run_in_queues(name, workload, queues)
    leaf = queues.leaf_of[workload.tenant_idx]
    most = TREE.amounts(np.array([16.0])).limit[TREE.shape.leaf_row, 0]
    goes_on = True
    while goes_on:
        goes_on = run.step()
        running = run.running
        second = (running.partner_job_idx >= 0) & (running.partner_job_idx < running.job_idx)
        held = np.bincount(leaf[running.job_idx], np.where(second, 0, running.n_gpus), 3)
        assert (held <= most + 1e-9).all(), run.now_s
        assert (leaf[running.job_idx] == 2).sum() <= 2 or name in SHARING, run.now_s
    assert (run.records().outcome != Outcome.UNFINISHED).all()


@pytest.mark.parametrize("name", TIMELESS)
def test_a_queue_gets_its_guarantee_back_after_its_notice(name: str) -> None:
    """b holds all 16 GPUs by jobs of hours; a submits eight jobs of one GPU, which are its guarantee."""
    n = 24
    submit_s = np.where(np.arange(n) < 16, 0.0, 1000.0)
    workload = jobs_of(submit_s, 2e4, 1, gpus_max=np.ones(n, np.int64), deadline_s=1e9)
    workload = with_tenants(workload, (np.arange(n) < 16).astype(np.int64), "ab")
    tree = QueueTree.of(
        [Queue("a", guarantee=0.5, notice_s=NOTICE_S, tenants=("a",)), Queue("b", tenants=("b",))], ["gpus"]
    )
    queues = job_queues(tree, "ab", [NodeOffer()] * 2)

    def held_by_a(queues: JobQueues | None) -> int:
        run = run_in_queues(name, workload, queues)
        while run.now_s < 1000.0 + NOTICE_S + 800.0 and run.step():  # and two rounds of any source
            pass
        return int(run.running.n_gpus[run.workload.tenant_idx[run.running.job_idx] == 0].sum())

    assert held_by_a(queues) == 8
    assert held_by_a(queues.under(QueueScheme.GUARANTEES)) == 0


@pytest.mark.parametrize("scheme", list(QueueScheme))
@pytest.mark.parametrize("name", ["fifo", "srtf", "weighted-goodput"])
def test_jobs_end_under_every_scheme_and_figures_add_up(name: str, scheme: QueueScheme) -> None:
    workload, queues = queued(6)
    under = queues.under(scheme)
    run = run_of(workload, name, nodes=(8, 8), queues=under, declared=queues)
    assert (run.outcome != Outcome.UNFINISHED).all()
    figures = queue_figures(run)
    assert list(figures) == ["research", "products.search", "products.default"]
    assert sum(each["jobs"] for each in figures.values()) == 20
    held = sum(each["held_gpus"] for each in figures.values())
    assert held == pytest.approx(run.gpu_s.sum() / run.end_s)
    metrics = job_metrics(run)
    assert metrics["queue_completion_worst_s"] == max(e["completion_mean_s"] for e in figures.values())
    assert 0.0 <= metrics["queue_below_frac"] <= 1.0
    assert 1 / 3 <= metrics["queue_jain_share"] <= 1.0


def test_a_gang_goes_to_one_type_of_gpu_and_partitions_are_kept() -> None:
    """Two types: type 1 runs twice as fast; a leaf gets whole gangs on nodes that its jobs may use."""
    workload, queues = queued(7)
    run = run_of(workload, "gavel-max-min", nodes=(8, 8), types=2, queues=queues, declared=queues)
    assert (run.outcome != Outcome.UNFINISHED).all()


def test_jobs_of_a_leaf_that_is_not_preemptible_keep_what_they_borrowed() -> None:
    """Two jobs hold all 16 GPUs; the younger one, which a claim would take first, is in such a leaf."""
    workload = with_tenants(jobs_of([0.0, 1.0, 100.0], 1e5, 8, gpus_min=np.full(3, 8)), np.array([0, 1, 2]))
    queues = [
        Queue("a", tenants=("a",)),
        Queue("b", preemptible=False, tenants=("b",)),
        Queue("c", guarantee=0.5, notice_s=0.0, tenants=("c",)),
    ]
    held = job_queues(QueueTree.of(queues, ["gpus"]), workload.tenant_names, [NodeOffer()] * 2)
    run = run_of(workload, "fifo", nodes=(8, 8), queues=held, declared=held)
    assert run.restarts.tolist() == [1, 0, 0]
    assert run.start_s.tolist() == [0.0, 1.0, 100.0]


def test_fixed_jobs_are_never_preempted_by_a_claim() -> None:
    n = 3
    workload = jobs_of([0.0, 0.0, 100.0], 1e5, 8, gpus_min=np.full(n, 8), preemptible=_flags(n, 0))
    workload = with_tenants(workload, np.array([0, 0, 1]), "ba")
    tree = QueueTree.of(
        [Queue("a", guarantee=0.5, notice_s=0.0, tenants=("a",)), Queue("b", tenants=("b",))], ["gpus"]
    )
    queues = job_queues(tree, "ba", [NodeOffer()] * 2)
    run = run_of(workload, "fifo", nodes=(8, 8), queues=queues, declared=queues)
    assert run.restarts.tolist() == [0, 1, 0]  # the one that may not be preempted keeps its GPUs
    assert run.start_s.tolist() == [0.0, 0.0, 100.0]
    assert queue_figures(run)["b"]["preempted"] == 1


def _flags(n: int, keeps: int) -> Flags:
    return np.arange(n) != keeps
