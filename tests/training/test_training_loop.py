"""The loop against cases computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from support.training_runs import jobs_of, run_of, scaling_table
from trimtab.domain.allocator import Allocation, Allocator, JobNeed
from trimtab.domain.training_jobs import gpu_nodes
from trimtab.errors import PolicyError, UsageError
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import Outcome
from trimtab.training.node_outages import FailingNode, NodeEvent
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth


@dataclass(frozen=True)
class Script(Allocator):
    """Gives job i the GPUs of `at` [(from time, counts)] with the latest time."""

    name: ClassVar[str] = "script"
    at: tuple[tuple[float, tuple[int, ...]], ...] = ()

    def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
        counts = [c for t, c in self.at if t <= now_s][-1]
        wake_s = min([t for t, _ in self.at if t > now_s], default=np.inf)
        return Allocation(counts=np.array(counts)[jobs["job_idx"]][:, None], wake_s=wake_s)


@dataclass(frozen=True)
class KnowsFixed(Script):
    """The same, told of jobs that may not be preempted."""

    keeps_fixed: ClassVar[bool] = True


@dataclass(frozen=True)
class Watcher(Allocator):
    """Notes the work left that it is shown, and runs nothing."""

    def init(self, cluster: Any, n_jobs: int) -> Any:
        self.seen.clear()
        return None

    seen: ClassVar[list[float]] = []

    def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
        self.seen.extend(jobs["work_left"].tolist())
        return Allocation(counts=np.zeros((len(jobs), 1), np.int64))


@dataclass(frozen=True)
class OracleWatcher(Watcher):
    """The same, told the truth."""

    needs: ClassVar[frozenset[JobNeed]] = frozenset({JobNeed.ORACLE})


@pytest.mark.parametrize(("watcher", "work"), [(Watcher, 50.0), (OracleWatcher, 80.0)])
def test_only_an_oracle_sees_the_true_work(watcher: type[Watcher], work: float) -> None:
    run_of(jobs_of([0.0], 80.0, declared_work=np.array([50.0])), watcher())
    assert Watcher.seen == [work]


def test_first_in_first_out_by_hand() -> None:
    # 8 GPUs. Model 0: 1, 1.8, 3, 4 work per second with 1, 2, 4, 8 GPUs.
    workload = jobs_of([0, 10, 20, 30], [300, 400, 100, 30], [4, 8, 1, 2])
    run = run_of(workload, "fifo")
    # job 0 runs 0-100 on 4; job 1 needs all 8: 100-200; jobs 2 and 3 follow together: 200-300, 200-216.7
    assert run.start_s.tolist() == [0, 100, 200, 200]
    assert run.finish_s == pytest.approx([100, 200, 300, 200 + 30 / 1.8])
    assert run.gpu_s == pytest.approx([400, 800, 100, 2 * 30 / 1.8])


def test_jobs_that_fit_may_pass() -> None:
    run = run_of(jobs_of([0, 10, 20, 30], [300, 400, 100, 30], [4, 8, 1, 2]), "fifo(backfill=true)")
    assert run.start_s.tolist() == [0, 120, 20, 30]


def test_a_change_of_count_restarts() -> None:
    script = Script(at=((0.0, (1,)), (50.0, (4,))))
    run = run_of(jobs_of([0.0], 210.0), script, restart="flat(seconds_s=30)")
    # 30 s restart, 20 s at 1; 30 s restart, then 190 left at 3 per second
    assert run.finish_s == pytest.approx([80 + 190 / 3])
    assert run.restarts.tolist() == [1]
    assert run.restart_s == pytest.approx([60.0])


def test_a_restart_under_way_begins_anew() -> None:
    script = Script(at=((0.0, (1,)), (10.0, (2,)), (20.0, (4,))))
    run = run_of(jobs_of([0.0], 30.0), script, restart="flat(seconds_s=30)")
    assert run.finish_s == pytest.approx([50 + 10])
    assert run.restart_s == pytest.approx([50.0])


def test_rounds_decide_at_multiples_of_the_period_and_finishes_free_gpus_there() -> None:
    workload = jobs_of([0, 61, 61], [90, 10, 10], [8, 8, 8])
    run = run_of(workload, "fifo", clock="rounds(period_s=60)")
    assert run.start_s.tolist() == [60, 120, 180]
    assert run.finish_s == pytest.approx([60 + 22.5, 122.5, 182.5])


def test_events_within_a_slot_are_served_together() -> None:
    workload = jobs_of([0, 10, 30, 100], [1000, 10, 10, 10], 1)
    run = run_of(workload, "fifo", clock="events(slot_s=60)")
    assert run.decided_s[:3].tolist() == [0, 60, 120]
    assert run.start_s.tolist() == [0, 60, 60, 120]


@pytest.mark.parametrize("name", ["pollux", "sia"])
def test_a_job_alone_begins_and_grows_though_nothing_else_happens(name: str) -> None:
    """Pollux starts no job of the age 0, at which all would be lost to the start."""
    run = run_of(jobs_of([0.0], 2000.0), name, clock="events(slot_s=1)", restart="flat(seconds_s=10)")
    assert run.finished.all()
    assert run.start_s[0] <= 1.0
    assert run.change_gpus[:2].tolist() == [1, 2]
    assert run.decided_s[-1] < run.finish_s[0] <= run.decided_s[-1] + 60.0 + 1e-6


def test_finishes_may_be_rounded_up() -> None:
    run = run_of(jobs_of([0.0], 10.0, 2), "fifo", finish_rounding="up")
    assert run.finish_s.tolist() == [6.0]  # 10 / 1.8 = 5.56


def test_a_failed_node_takes_its_jobs_down() -> None:
    events = (NodeEvent(50.0, 0, up=False), NodeEvent(200.0, 0, up=True))
    workload = jobs_of([0, 0], [300, 300], [4, 4])
    run = run_of(workload, "fifo", node_events=events, clock="rounds(period_s=10)")
    # both start at 10; one loses its node at 50 with 180 left, and starts again when the other ends at 110
    assert sorted(run.finish_s.tolist()) == pytest.approx([110, 170])


def test_jobs_that_never_fit_are_left_unfinished() -> None:
    run = run_of(jobs_of([0.0], 10.0, 8), "fifo", nodes=(4,))
    assert run.outcome.tolist() == [Outcome.UNFINISHED]
    assert np.isnan(run.finish_s[0])


def test_reported_decisions_add_up(rng: np.random.Generator) -> None:
    workload = jobs_of(
        np.sort(rng.uniform(0, 500, 30)), rng.uniform(10, 200, 30), rng.choice([1, 2, 4, 8], 30)
    )
    run = run_of(workload, "fifo")
    held = np.diff(np.append(run.decided_s, run.end_s)) * run.used_gpus
    assert held.sum() == pytest.approx(run.gpu_s.sum())  # decisions come at each finish


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        ((9, 0), "gave 9 GPUs of type-0, which has 8"),
        ((8, 1), "gave 9 GPUs of type-0, which has 8"),
        ((-1, 0), "negative"),
    ],
)
def test_an_allocator_that_gives_too_much_is_stopped(counts: tuple[int, ...], what: str) -> None:
    with pytest.raises(PolicyError, match=what):
        run_of(jobs_of([0, 0], 10.0, 1), Script(at=((0.0, counts),)))


def test_an_allocator_that_splits_a_gang_is_stopped() -> None:
    workload = jobs_of([0.0], 10.0, 4, gpus_min=np.array([4]))
    with pytest.raises(PolicyError, match=r"'script' at 0 s: splits the gang of job 'job-0'"):
        run_of(workload, Script(at=((0.0, (2,)),)))


def test_an_allocator_that_scales_a_fixed_job_is_stopped() -> None:
    with pytest.raises(PolicyError, match="scales the fixed job 'job-0'"):
        run_of(jobs_of([0.0], 10.0, 4, scales=False), Script(at=((0.0, (2,)),)))


def test_an_allocator_that_preempts_a_fixed_job_is_stopped() -> None:
    workload = jobs_of([0.0], 100.0, 1, preemptible=np.array([False]))
    with pytest.raises(PolicyError, match="preempts the fixed job"):
        run_of(workload, KnowsFixed(at=((0.0, (1,)), (10.0, (0,)))))


def test_an_allocator_that_knows_no_fixed_jobs_decides_about_the_others() -> None:
    # 3 per second on 4 GPUs: job 0 ends at 100 whatever the script says of it, job 1 starts at 10.
    workload = jobs_of([0.0, 5.0], [300.0, 300.0], 4, preemptible=np.array([False, True]))
    run = run_of(workload, Script(at=((0.0, (4, 0)), (10.0, (0, 4)))))
    assert run.finish_s == pytest.approx([100, 110])
    assert run.restarts.tolist() == [0, 0]


def test_a_fixed_job_that_grows_over_the_quota_keeps_what_it_holds() -> None:
    # The script lets job 0 grow from 2 to 8 GPUs at 10, of which its tenant may hold 4: it stays at 2, with
    # which it does 1.8 per second; job 1 of the tenant has the other 2.
    workload = jobs_of([0.0, 0.0], [180.0, 180.0], 2, preemptible=np.array([False, True]))
    at = ((0.0, (2, 0)), (10.0, (6, 2)))
    run = run_of(workload, KnowsFixed(at=at), quota_gpus=np.array([4.0]))
    assert run.finish_s == pytest.approx([100, 110])
    assert run.restarts.tolist() == [0, 0]


def test_what_is_over_a_quota_waits() -> None:
    # 3 per second on 4 GPUs. fifo gives jobs 0 and 1 all 8 GPUs at 0; their tenant may hold 6, so job 1 waits
    # until job 0 ends at 100. Job 2, of another tenant, has 2 GPUs (1.8 per second) from then on.
    workload = jobs_of(
        [0, 0, 0],
        [300, 300, 90],
        [4, 4, 2],
        tenant_idx=np.array([0, 0, 1]),
    )
    workload = replace(workload, tenant_names=("a", "b"))
    run = run_of(workload, "fifo", quota_gpus=np.array([6.0, np.inf]))
    assert run.finish_s == pytest.approx([100, 200, 150])
    metrics = job_metrics(run)
    assert metrics["jain_tenant_gpu_hours"] == pytest.approx((800 + 100) ** 2 / (2 * (800**2 + 100**2)))


def test_a_smaller_job_passes_one_over_the_quota_and_gangs_stay_whole() -> None:
    # All fit on 12 GPUs; of the tenant's 6, job 0 has 4, job 1 (4) waits, job 2 (2) runs.
    run = run_of(
        jobs_of([0, 0, 0], [300, 300, 180], [4, 4, 2]), "fifo", nodes=(12,), quota_gpus=np.array([6.0])
    )
    assert run.start_s.tolist() == [0, 100, 0]


def test_an_allocator_that_says_that_it_knows_quotas_is_held_to_them() -> None:
    @dataclass(frozen=True)
    class Knows(Script):
        keeps_quotas: ClassVar[bool] = True

    with pytest.raises(PolicyError, match="exceeds the quota of the tenant of job 'job-0'"):
        run_of(jobs_of([0, 0], 10.0, 4), Knows(at=((0.0, (4, 4)),)), quota_gpus=np.array([6.0]))


def test_an_allocator_that_raises_is_named() -> None:
    with pytest.raises(PolicyError, match="'script' at 0 s: IndexError") as stopped:
        run_of(jobs_of([0.0], 10.0), Script())
    assert "test_training_loop.py" in str(stopped.value)
    assert "counts = [c for t, c in self.at if t <= now_s][-1]" in str(stopped.value)


@dataclass(frozen=True)
class OneOfEach(Allocator):
    """The first job gets one GPU of every node."""

    name: ClassVar[str] = "one-of-each"
    places: ClassVar[bool] = True

    def allocate(self, jobs, cluster, now_s, speed, memory):
        gpus = np.zeros((len(jobs), len(cluster.nodes)), np.int64)
        gpus[0] = 1
        return Allocation(gpus=gpus)


@pytest.mark.parametrize("order", [(1.0, 2.0, 4.0), (4.0, 1.0, 2.0), (2.0, 4.0, 1.0)])
def test_a_job_on_several_types_runs_as_on_the_slowest_whatever_their_order(order) -> None:
    workload = jobs_of([0], [60], [3])
    table = scaling_table()
    table = replace(table, rate_per_s=np.concatenate([table.rate_per_s * factor for factor in order]))
    run = run_allocator(
        OneOfEach(),
        workload,
        nodes=gpu_nodes([0, 1, 2], [4, 4, 4]),
        type_names=("a", "b", "c"),
        truth=TableTruth(table),
    )
    assert run.finish_s == pytest.approx([60 / 2.4])  # 3 GPUs: between 1.8 and 3 per second


def test_jobs_are_given_types_on_which_they_run() -> None:
    table = scaling_table(2)
    rate = table.rate_per_s.copy()
    rate[0, 0] = 0.0  # model 0 does not run on the first type
    truth = TableTruth(replace(table, rate_per_s=rate))
    nodes, names = gpu_nodes([0, 0, 1], [8, 8, 4]), ("a", "b")
    run = run_allocator("fifo", jobs_of([0, 0], [40, 40], [4, 4]), nodes=nodes, type_names=names, truth=truth)
    assert run.finish_s == pytest.approx([40 / 6, 80 / 6])  # one after the other on the second type


def test_a_run_that_stands_still_is_stopped_and_named() -> None:
    table = scaling_table()
    truth = TableTruth(replace(table, rate_per_s=np.zeros_like(table.rate_per_s)))
    with pytest.raises(PolicyError, match=r"no job makes progress; job 'job-0' holds 2 GPUs \(any\)"):
        run_allocator(
            "fifo",
            jobs_of([0], [40], [2]),
            nodes=gpu_nodes(0, [4]),
            type_names=("any",),
            truth=truth,
            clock="rounds(period_s=60)",
        )


FAILS = (NodeEvent(100.0, 0, up=False), NodeEvent(150.0, 0, up=True))


@pytest.mark.parametrize(
    ("checkpoint_s", "lost_s"),
    # the one job starts at 0 and restarts for 10 s: 90 s of progress at 100 s
    [(0.0, 0.0), (40.0, 10.0), (45.0, 0.0), (60.0, 30.0), (1000.0, 90.0)],
)
def test_a_failure_loses_the_work_since_the_last_checkpoint(checkpoint_s: float, lost_s: float) -> None:
    run = run_of(
        jobs_of([0.0], 200.0),
        "fifo",
        nodes=(1,),
        restart="flat(seconds_s=10)",
        node_events=FAILS,
        checkpoint_s=checkpoint_s,
    )
    # it starts again at 150 with a restart, and does the rest at 1 per second
    assert run.finish_s == pytest.approx([160 + 200 - 90 + lost_s])
    assert run.lost_gpu_s == pytest.approx([lost_s])
    assert run.restarts.tolist() == [1]


def test_decisions_between_do_not_move_checkpoints_and_changes_are_checkpoints() -> None:
    # Decisions each 30 s change nothing for job 0: checkpoints at 40 and 80, so 20 s are lost.
    kept = run_of(
        jobs_of([0.0], 200.0),
        "fifo",
        nodes=(1,),
        clock="rounds(period_s=30,from_first=true)",
        node_events=FAILS,
        checkpoint_s=40.0,
    )
    assert kept.lost_gpu_s == pytest.approx([20.0])
    # From 1 to 2 GPUs at 70 s: a checkpoint there, the next at 110; 30 s of 2 GPUs are lost.
    script = Script(at=((0.0, (1,)), (70.0, (2,)), (100.0, (0,)), (150.0, (2,))))
    run = run_of(jobs_of([0.0], 200.0), script, nodes=(2,), node_events=FAILS, checkpoint_s=40.0)
    assert run.lost_gpu_s == pytest.approx([60.0])
    assert run.finish_s == pytest.approx([150 + (200 - 70) / 1.8])


def test_a_drained_node_is_emptied_at_the_next_decision_without_loss() -> None:
    drain = (NodeEvent(45.0, 0, up=False, drains=True), NodeEvent(500.0, 0, up=True))
    run = run_of(
        jobs_of([0.0, 0.0, 0.0], [300.0, 300.0, 300.0], [4, 4, 4]),
        "fifo",
        clock="rounds(period_s=60,from_first=true)",
        node_events=drain,
        checkpoint_s=1000.0,
    )
    # 3 per second, jobs 0 and 1 from 0. Job 0's node is drained at 45; it runs there to 60, with 120 left.
    # Job 1 ends at 100; at 120 job 0 takes its node, to 160; job 2 from 180.
    assert run.finish_s == pytest.approx([160.0, 100.0, 280.0])
    assert run.lost_gpu_s.tolist() == [0, 0, 0]


def test_overlapping_outages_end_with_the_last_one() -> None:
    events = (*FAILS, NodeEvent(120.0, 0, up=False), NodeEvent(300.0, 0, up=True))
    run = run_of(jobs_of([0.0], 200.0), "fifo", nodes=(1,), node_events=events)
    assert run.finish_s == pytest.approx([400.0])


def test_nodes_that_fail_again_and_again_are_down_as_often_as_they_should() -> None:
    node = FailingNode(0, mtbf_s=300.0, mttr_s=100.0, seed=7)
    run = run_of(jobs_of([0.0], 1.5e5), "fifo", nodes=(1,), failing_nodes=(node,))
    # up for three quarters of the time; about 500 cycles, so a standard error of 1.6 % of the whole
    assert run.finish_s[0] == pytest.approx(1.5e5 * 4 / 3, rel=0.05)
    assert run.restarts[0] == pytest.approx(500, rel=0.15)


def test_a_run_in_which_every_failure_undoes_all_work_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.training.training_loop._NODE_EVENTS", 100)
    node = FailingNode(0, mtbf_s=1.0, mttr_s=1.0, seed=0)
    with pytest.raises(UsageError, match=r"no job has ended over 100 failures.*checkpoint_s"):
        run_of(jobs_of([0.0], 1e5), "fifo", nodes=(1,), failing_nodes=(node,), checkpoint_s=1e5)


@dataclass(frozen=True)
class Stops(Allocator):
    """Runs every job on one GPU, and stops the first one from 120 s on."""

    clock: ClassVar[str] = "rounds(period_s=60)"
    gives: bool = False  # GPUs to what it stops

    def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
        first = np.flatnonzero((jobs["job_idx"] == 0) & (now_s >= 120.0))
        counts = np.ones((len(jobs), 1), np.int64)
        counts[first] = int(self.gives)
        return Allocation(counts=counts, stopped={int(row): "enough" for row in first})


def test_a_stopped_job_has_finished_with_a_part_of_its_work() -> None:
    run = run_of(jobs_of([0.0, 0.0], [100.0, 130.0]), Stops())
    assert run.outcome.tolist() == [Outcome.STOPPED, Outcome.FINISHED]
    assert run.finish_s.tolist() == pytest.approx([120.0, 190.0])
    assert run.gpu_s.tolist() == pytest.approx([60.0, 130.0])
    found = job_metrics(run)
    assert found["completion_mean_s"] == pytest.approx(155.0)
    assert (found["finished_frac"], found["stopped_frac"], found["rejected_frac"]) == (1.0, 0.5, 0.0)
    with pytest.raises(PolicyError, match="stops job 'job-0' and gives it GPUs"):
        run_of(jobs_of([0.0], [100.0]), Stops(gives=True))
