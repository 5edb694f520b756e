"""weighted-goodput's decisions against cases computed by hand and rules that are known to be best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.training_runs import jobs_of, run_of
from trimtab.domain.allocator import JobNeed
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, gpu_nodes
from trimtab.training.allocators.weighted_goodput import WeightedGoodput
from trimtab.training.node_outages import NodeEvent


class Power:
    """Speed = GPUs to a power, times the speed of the type for the job, [jobs, types]."""

    levels = np.zeros(0, np.int64)
    provides = frozenset({JobNeed.SCALING, JobNeed.WORK_LEFT})

    def __init__(self, power: float, type_speed: Any = ((1.0,),)) -> None:
        self.power, self.type_speed = power, np.array(type_speed)

    def goodput(self, jobs: Any, configs: Any) -> Any:
        row = np.minimum(jobs["job_idx"], len(self.type_speed) - 1)
        return self.type_speed[row, configs["type_idx"]] * configs["gpus"].astype(float) ** self.power


def active(n: int, **more: Any) -> Any:
    jobs = np.zeros(n, JOBS)
    jobs["job_idx"] = np.arange(n)
    given = {"gpus_requested": 1, "gpus_min": 1, "gpus_max": 64, "scales": True, "preemptible": True}
    given |= {"deadline_s": np.inf, "work_left": 1000.0, "work_total": 1000.0}
    for name, value in (given | more).items():
        jobs[name] = value
    return jobs


def decided(jobs: Any, nodes: Any, speed: Power, quota: Any = (), held: Any = None, **parameters: Any) -> Any:
    types = tuple(f"type-{t}" for t in range(speed.type_speed.shape[1]))
    now = Held.of(np.zeros((len(jobs), len(nodes)), int) if held is None else np.asarray(held))
    cluster = GpuCluster(nodes, types, now, len(jobs), np.array(quota, float))
    made = WeightedGoodput(**parameters)
    return made.allocate(jobs, cluster, 0.0, speed, made.init(cluster, len(jobs))).gpus


def test_where_speed_is_proportional_the_shortest_runs_alone() -> None:
    """Shortest remaining first is best there (Schrage, 1968)."""
    gpus = decided(active(3, work_left=[900.0, 300.0, 600.0]), gpu_nodes(0, [4, 4]), Power(1.0))
    assert gpus.sum(axis=1).tolist() == [0, 8, 0]


def test_shares_are_those_of_hesrpt() -> None:
    """Speed √GPUs: shares (i² − (i−1)²) / n² of the i-th largest of n (Berg et al., 2020, theorem 3)."""
    gpus = decided(active(2, work_left=[900.0, 300.0]), gpu_nodes(0, [1] * 64), Power(0.5)).sum(axis=1)
    assert gpus.sum() == 64
    exact = 64 * np.array([1.0, 3.0]) / 4.0  # our weight rank^p makes 1 : 2 of it
    assert gpus[1] == pytest.approx(64 * 2 / 3, abs=2)
    assert abs(gpus[1] - exact[1]) < abs(32 - exact[1])


def test_each_type_goes_to_the_job_that_gains_most_from_it() -> None:
    speed = Power(1.0, [[1.0, 1.1], [1.0, 4.0]])
    gpus = decided(active(2, gpus_max=1), gpu_nodes([0, 1], [1, 1]), speed)
    assert gpus.tolist() == [[1, 0], [0, 1]]


def test_a_deadline_comes_before_a_smaller_job() -> None:
    jobs = active(2, work_left=[400.0, 10.0], deadline_s=[100.0, np.inf])
    gpus = decided(jobs, gpu_nodes(0, [4]), Power(1.0)).sum(axis=1)
    assert gpus.tolist() == [4, 0]
    late = active(2, work_left=[401.0, 10.0], deadline_s=[100.0, np.inf])
    assert decided(late, gpu_nodes(0, [4]), Power(1.0)).sum(axis=1).tolist() == [0, 4]


def test_a_change_that_gains_less_than_its_restart_is_not_made() -> None:
    jobs = active(1, restart_s=200.0)
    assert decided(jobs, gpu_nodes(0, [4]), Power(0.5), held=[[2]], keep_s=300.0).sum() == 2
    assert (
        decided(active(1, restart_s=50.0), gpu_nodes(0, [4]), Power(0.5), held=[[2]], keep_s=300.0).sum() == 4
    )


def test_a_change_lasts_as_long_as_those_of_the_job_did_so_far() -> None:
    """√2 of the speed for a restart of 200 s: not for 300 s; of 3,000 s it costs a fifteenth."""

    def held_after(restarts: int) -> int:
        jobs = active(1, restart_s=200.0, work_left=1e5, age_s=6000.0, restarts=restarts)
        return int(decided(jobs, gpu_nodes(0, [4]), Power(0.5), held=[[2]], keep_s=300.0).sum())

    assert [held_after(restarts) for restarts in (1, 19)] == [4, 2]


def test_with_a_norm_above_one_an_old_large_job_goes_first() -> None:
    """Rank times completion^(norm − 1): 1 · (5000 + 900/8) is more than 2 · 300/8."""
    jobs = active(2, work_left=[900.0, 300.0], age_s=[5000.0, 0.0])
    for norm, gpus in ((1.0, [0, 8]), (2.0, [8, 0])):
        assert decided(jobs, gpu_nodes(0, [4, 4]), Power(1.0), norm=norm).sum(axis=1).tolist() == gpus


def test_tenants_stay_within_their_quotas() -> None:
    jobs = active(4, tenant_idx=[0, 0, 1, 1], work_left=[10.0, 20.0, 500.0, 600.0])
    gpus = decided(jobs, gpu_nodes(0, [4, 4]), Power(0.9), quota=[3, 5]).sum(axis=1)
    assert gpus[:2].sum() <= 3
    assert gpus[2:].sum() <= 5
    assert gpus.sum() >= 7


def test_a_fixed_long_job_is_not_left_for_the_end() -> None:
    """Nine jobs of 100 s and one of 500 s on two GPUs: left for the end, it ends at 900 s, not 700."""
    workload = jobs_of(
        [0.0] * 10,
        [100.0] * 9 + [500.0],
        1,
        scales=False,
        gpus_min=np.ones(10, int),
        gpus_max=np.ones(10, int),
    )
    run = run_of(workload, "weighted-goodput(long_frac=0.7)", nodes=(2,), clock="events")
    assert np.nanmax(run.finish_s) == pytest.approx(700.0)
    last = run_of(workload, "weighted-goodput(long_frac=99,fair_ratio=1e9)", nodes=(2,), clock="events")
    assert np.nanmax(last.finish_s) == pytest.approx(900.0)


def test_the_largest_stretch_is_nearly_the_least_possible() -> None:
    """Small jobs keep coming for 4,000 s: some 400 s are late in any case, the large one or small ones.

    The large job at the end takes 4,400 s, a stretch of 11. Before it, those behind it have 450 s in place of
    50, a stretch of 9: less there is not.
    """
    submit_s = np.append(0.0, np.arange(0.0, 4000.0, 50.0))
    work = np.append(400.0, np.full(len(submit_s) - 1, 50.0))
    order = np.argsort(submit_s, kind="stable")
    workload = jobs_of(submit_s[order], work[order], 1, scales=False, gpus_max=np.ones(len(work), int))
    loose = run_of(workload, "weighted-goodput(long_frac=99,fair_ratio=1e9)", nodes=(1,), clock="events")
    fair = run_of(workload, "weighted-goodput(long_frac=99,fair_ratio=1)", nodes=(1,), clock="events")
    stretch = [((run.finish_s - workload.submit_s) / workload.work).max() for run in (loose, fair)]
    assert stretch[0] == pytest.approx(11.0)
    assert 9.0 <= stretch[1] < 9.0 * 1.1


def test_time_alone_counts_what_a_fixed_job_ran_in_another_unit_of_work() -> None:
    """It has run 500 s and needs 500 s more: alone 1,000 s, whatever its work was counted in before.

    The first one first, its stretch is 2.0 and that of the other one 2.11; the other one first, it is 2.45.
    """
    jobs = active(
        2,
        scales=False,
        gpus_max=1,
        submit_s=[-1500.0, 0.0],
        age_s=[1500.0, 0.0],
        progress_s=[500.0, 0.0],
        work_total=[1000.0, 450.0],
        work_left=[50.0, 450.0],
    )
    speed = Power(1.0, [[0.1], [1.0]])
    gpus = decided(jobs, gpu_nodes(0, [1]), speed, fair_ratio=1.0, long_frac=99.0)
    assert gpus.sum(axis=1).tolist() == [1, 0]


class Learned(Power):
    """Speeds that jobs have reported: the first one scales, the second one not at all."""

    provides = Power.provides | {JobNeed.GOODPUT}

    def goodput(self, jobs: Any, configs: Any) -> Any:
        scaled = super().goodput(jobs, configs)
        return np.where(jobs["job_idx"] == 0, scaled, 0.9 * np.minimum(configs["gpus"], 1))


def test_a_measured_job_is_not_taken_to_scale_as_others_of_its_model() -> None:
    jobs = active(2, profiled_gpus_max=[8, 0], work_left=[5000.0, 300.0], work_total=[5000.0, 300.0])
    assert decided(jobs, gpu_nodes(0, [1] * 8), Learned(0.9)).sum(axis=1).tolist() == [7, 1]


@pytest.mark.parametrize("name", ["weighted-goodput", "sia"])
def test_jobs_wait_while_no_node_is_up(name: str) -> None:
    events = (NodeEvent(10.0, 0, up=False), NodeEvent(200.0, 0, up=True))
    run = run_of(
        jobs_of([0.0], [100.0], 1), name, nodes=(1,), clock="rounds(period_s=10)", node_events=events
    )
    assert run.finish_s[0] >= 300.0
