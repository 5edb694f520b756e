"""MLFS-style and HyperSched-style decisions against cases computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.training_runs import scaling_table
from trimtab.domain.allocator import Losses
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, gpu_nodes
from trimtab.training.allocators.hypersched import HyperSched
from trimtab.training.allocators.mlfs import Mlfs
from trimtab.training.loss_reports import LossReports
from trimtab.training.performance.optimus_convergence import LossCurve
from trimtab.training.truths.table_model import TableSpeed


def active(n: int, **more: Any) -> Any:
    jobs = np.zeros(n, JOBS)
    jobs["job_idx"] = np.arange(n)
    given = {"gpus_requested": 1, "gpus_min": 1, "gpus_max": 8, "scales": True, "preemptible": True}
    times = {"deadline_s": np.inf, "work_left": 100.0, "work_total": 100.0, "restart_s": 0.0}
    for name, value in (given | times | more).items():
        jobs[name] = value
    return jobs


def counts(allocator: Any, jobs: Any, gpus: int, memory: Any = None, model: int = 1) -> Any:
    """The decision at 0 s on one node."""
    nobody = Held.of(np.zeros((len(jobs), 1), np.int64))
    cluster = GpuCluster(gpu_nodes(0, [gpus]), ("gpu",), nobody, len(jobs))
    speed = TableSpeed(scaling_table(), np.full(len(jobs), model))
    memory = allocator.init(cluster, len(jobs)) if memory is None else memory
    return allocator.allocate(jobs, cluster, 0.0, speed, memory).counts[:, 0].tolist()


def reported(loss: list[float], of_epoch: float = 10.0) -> Losses:
    work = of_epoch * np.arange(1.0, len(loss) + 1)
    return Losses(work, np.array(loss), float(work[-1]) if loss else 0.0)


class Told(TableSpeed):
    """A speed whose jobs have reported these losses."""

    def __init__(self, told: list[Losses], model: int = 1) -> None:
        super().__init__(scaling_table(), np.full(len(told), model), losses=LossReports(np.zeros(len(told))))
        self.told = told

    def losses(self, jobs: Any) -> list[Losses]:
        return [self.told[j] for j in jobs["job_idx"]]


def decided(
    allocator: Any, jobs: Any, gpus: int, told: list[Losses], memory: Any = None, held: Any = 0
) -> Any:
    """The decision at 0 s on one node, of jobs that have reported losses."""
    holds = Held.of(np.broadcast_to(np.asarray(held, np.int64), len(jobs)).copy()[:, None])
    cluster = GpuCluster(gpu_nodes(0, [gpus]), ("gpu",), holds, len(jobs))
    memory = allocator.init(cluster, len(jobs)) if memory is None else memory
    return allocator.allocate(jobs, cluster, 0.0, Told(told), memory)


def test_mlfs_adds_what_the_formula_says() -> None:
    # 100 s with one GPU are the unit. Job 0: begins, due in 2 units; job 1: in its fourth epoch, due in 1
    jobs = active(2, work_left=[100.0, 50.0], deadline_s=[200.0, 100.0])
    speed = TableSpeed(scaling_table(), np.full(2, 1))
    told = [reported([]), reported([0.9, 0.6, 0.5])]
    by_loss = np.array([1.0, 0.1 / 0.5 / 4])
    by_time = np.array([0.3 / 2 + 0.3 / 1, 0.3 / 1 + 0.3 / 0.5])
    found = Mlfs()._priorities(jobs, 0.0, speed, told)
    assert found == pytest.approx(0.3 * by_loss + 0.7 * by_time)
    assert counts(Mlfs(), jobs, 1) == [0, 1]
    assert counts(Mlfs(alpha=1.0), jobs, 1) == [1, 0]


def test_waiting_raises_the_priority() -> None:
    jobs = active(2, age_s=[0.0, 500.0])
    assert counts(Mlfs(), jobs, 1) == [0, 1]


def test_hypersched_gives_what_is_left_to_the_best() -> None:
    jobs = active(2, work_left=[90.0, 90.0], attained_gpu_s=[10.0, 20.0])
    assert counts(HyperSched(first_frac=1.0), jobs, 8) == [4, 4]
    assert counts(HyperSched(first_frac=1.0), jobs, 9) == [8, 1]
    # the falling curve: 1.5 with two GPUs, 1.6 with four
    assert counts(HyperSched(first_frac=1.0), jobs, 9, model=2) == [2, 2]


def test_a_restart_before_the_deadline_has_to_pay() -> None:
    # 100 s of work, two GPUs do 1.9: with 40 s of restart 1.9 · 60 = 114 > 110, with 43 s 108
    for restart_s, expected in ((40.0, 2), (43.0, 1)):
        jobs = active(1, attained_gpu_s=1.0, restart_s=restart_s)
        assert counts(HyperSched(first_frac=1.0), jobs, 2) == [expected]


def test_slow_improvers_pause_at_a_rung() -> None:
    jobs = active(3, work_left=[90.0, 90.0, 90.0], attained_gpu_s=[50.0, 20.0, 10.0], gpus_max=1)
    found = counts(HyperSched(first_frac=0.1), jobs, 1)
    assert found == [0, 0, 1]
    late = active(2, deadline_s=[-1.0, 50.0], gpus_max=1)
    assert counts(HyperSched(), late, 1) == [0, 1]


def test_under_overload_jobs_stop_where_their_curve_has_flattened() -> None:
    # Job 0 has 40 of 50 epochs of a steep curve: next to nothing is left. Job 1 has 10 of 100 of a slow one.
    k = np.arange(1.0, 41.0)
    steep, slow = LossCurve(5.0, 1.0, 0.1).loss(k), LossCurve(0.1, 1.0, 0.1).loss(k[:10])
    told = [reported((steep / steep[0]).tolist()), reported((slow / slow[0]).tolist())]
    jobs = active(2, work_left=[100.0, 900.0], work_total=[500.0, 1000.0], age_s=1.0)
    one = decided(Mlfs(allows="optstop"), jobs, 1, told)
    assert list(one.stopped) == [0]
    assert one.counts[:, 0].tolist() == [0, 1]
    assert not decided(Mlfs(), jobs, 1, told).stopped
    assert not decided(Mlfs(allows="optstop"), jobs, 3, told).stopped  # nobody waits, a third is free


def test_a_longer_overload_stops_jobs_at_their_required_accuracy() -> None:
    k = np.arange(1.0, 21.0)
    told = [reported((LossCurve(0.5, 1.0, 0.1).loss(k) / LossCurve(0.5, 1.0, 0.1).loss(k)[0]).tolist())] * 2
    jobs = active(2, work_left=300.0, work_total=500.0)
    allocator = Mlfs(allows="accuracy", required_frac=0.9, tolerance=0.001)
    memory = allocator.init(None, 2)
    assert not decided(allocator, jobs, 1, told, memory).stopped
    assert set(decided(allocator, jobs, 1, told, memory).stopped) == {0, 1}  # 0.91 of the fall to 50 epochs
    strict = Mlfs(allows="accuracy", required_frac=0.99, tolerance=0.001)
    memory = strict.init(None, 2)
    assert not [decided(strict, jobs, 1, told, memory).stopped for _ in range(2)][1]


def trials(loss: list[float], **more: Any) -> Any:
    told = [reported([x] * 6) for x in loss]
    given = {"attained_gpu_s": 10.0, "work_left": 90.0, "run_s": 10.0}
    return active(len(loss), **(given | more)), told


@pytest.mark.parametrize(
    ("rest", "expected"), [("top", [4, 1, 1]), ("uniform", [2, 2, 2]), ("softmax", [2, 1, 1])]
)
def test_the_rules_for_what_is_left(rest: str, expected: list[int]) -> None:
    # accuracies 0.9, 0.5, 0.2: of three GPUs left the softmax gives 1.4, 0.9 and 0.7
    jobs, told = trials([0.1, 0.5, 0.8])
    made = decided(HyperSched(first_frac=1.0, metric="accuracy", rest=rest), jobs, 6, told)  # type: ignore[arg-type]
    assert made.counts[:, 0].tolist() == expected


def test_random_levels_are_those_of_the_seed() -> None:
    jobs, told = trials([0.1, 0.5, 0.8])
    found = {
        tuple(decided(HyperSched(first_frac=1.0, rest="random", seed=s), jobs, 6, told).counts[:, 0])
        for s in range(20)
    }
    assert len(found) > 1
    assert all(sum(counts) <= 6 and min(counts) >= 1 for counts in found)


def test_a_job_gets_more_again_only_after_some_epochs() -> None:
    jobs, told = trials([0.1])
    allocator = HyperSched(first_frac=1.0)
    memory = allocator.init(None, 1)
    assert decided(allocator, jobs, 2, told, memory).counts[0, 0] == 2
    assert decided(allocator, jobs, 8, told, memory, held=2).counts[0, 0] == 2
    more = [reported([0.1] * 11)]
    assert decided(allocator, jobs, 8, more, memory, held=2).counts[0, 0] == 8


def test_near_the_deadline_paused_and_new_trials_stop() -> None:
    # below the 75 % quantile of accuracy at the rung: jobs 1 and 2; job 3 never ran
    jobs, told = trials([0.1, 0.5, 0.8, 0.9], deadline_s=30.0, gpus_max=1)
    jobs["attained_gpu_s"][3] = jobs["run_s"][3] = 0.0
    jobs["work_left"][3] = 100.0
    allocator = HyperSched(first_frac=0.05, metric="accuracy", stops=True)
    assert set(decided(allocator, jobs, 4, told).stopped) == {1, 2, 3}  # 30 s < 4 · 10 s
    jobs["deadline_s"] = 60.0
    assert not decided(allocator, jobs, 4, told).stopped
