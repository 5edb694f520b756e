"""MLFS-style and HyperSched-style decisions against cases computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.training_runs import scaling_table
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, gpu_nodes
from trimtab.training.allocators.hypersched import HyperSched
from trimtab.training.allocators.mlfs import Mlfs
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


def test_mlfs_adds_what_the_formula_says() -> None:
    # 100 s with one GPU are the unit. Job 0: begins, due in 2 units; job 1: at iteration 51, due in 1
    jobs = active(2, work_left=[100.0, 50.0], deadline_s=[200.0, 100.0])
    speed = TableSpeed(scaling_table(), np.full(2, 1))
    by_loss = np.array([1.0, (1 / 50 - 1 / 51) / (1 - 1 / 51) / 51])
    by_time = np.array([0.3 / 2 + 0.3 / 1, 0.3 / 1 + 0.3 / 0.5])
    found = Mlfs()._priorities(jobs, 0.0, speed)
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
