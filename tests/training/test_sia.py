"""Sia's decisions against cases computed by hand, and its placement against its promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.replay_profiles import toy_jobs, toy_profile
from support.training_runs import jobs_of, run_of
from trimtab.domain.training_jobs import AGENT_BATCH, JOBS, GpuCluster, Held, configs, gpu_nodes
from trimtab.training.allocators.shared.node_packing import whole_nodes_first
from trimtab.training.allocators.sia import Sia
from trimtab.training.node_outages import NodeEvent
from trimtab.training.truths.replay_truth import ReplayOptions, ReplayTruth


class Linear:
    """Every job is as fast as it has GPUs, times the speed of the type."""

    levels = np.zeros(0, np.int64)
    provides = frozenset()

    def __init__(self, *type_speed: float) -> None:
        self.type_speed = np.array(type_speed)

    def goodput(self, jobs: Any, configs: Any) -> Any:
        value = self.type_speed[configs["type_idx"]] * configs["gpus"]
        return np.broadcast_to(value, np.broadcast_shapes(jobs.shape, configs.shape)).astype(float)


def active(n: int, **more: Any) -> Any:
    jobs = np.zeros(n, JOBS)
    jobs["job_idx"] = np.arange(n)
    given = {"gpus_requested": 1, "gpus_min": 1, "gpus_max": 16, "scales": True, "preemptible": True}
    for name, value in (given | {"age_s": 1000.0, "restart_s": 30.0, "profiled_gpus_max": 8} | more).items():
        jobs[name] = value
    return jobs


def cluster_of(nodes: Any, gpus: Any, n_types: int = 1) -> GpuCluster:
    held = Held.of(np.asarray(gpus))
    return GpuCluster(nodes, tuple(f"type-{t}" for t in range(n_types)), held, len(gpus))


def decided(jobs: Any, cluster: GpuCluster, speed: Any, **parameters: Any) -> Any:
    return Sia(**parameters).allocate(jobs, cluster, 0.0, speed, None).gpus


def test_equal_jobs_share_and_new_ones_begin_with_one_gpu() -> None:
    idle = cluster_of(gpu_nodes(0, [4, 4]), np.zeros((2, 2), int))
    shared = decided(active(2), idle, Linear(1.0))
    assert shared.sum(axis=1).tolist() == [4, 4]
    assert ((shared > 0).sum(axis=1) == 1).all()
    new = decided(active(2, profiled_gpus_max=[0, 2]), idle, Linear(1.0))
    assert new.sum(axis=1).tolist() == [1, 4]


def test_a_restart_is_paid_only_where_it_gains() -> None:
    nodes = gpu_nodes([0, 1], [1, 1])
    present = cluster_of(nodes, [[1, 0]], 2)
    # normalised values: 1 to stay, 1.5 · (1000 − 10 · 30) / 1030 = 1.02 to move; with 12 restarts 0.93
    for restarts, expected in ((10, [0, 1]), (12, [1, 0])):
        found = decided(active(1, restarts=restarts, gpus_max=1), present, Linear(1.0, 1.5))
        assert found.tolist() == [expected]


def test_a_rigid_job_gets_what_it_asked_for_of_the_better_type() -> None:
    nodes = gpu_nodes([0, 0, 1, 1], [4, 4, 4, 4])
    jobs = active(1, scales=False, gpus_requested=6, gpus_min=1)
    found = decided(jobs, cluster_of(nodes, np.zeros((1, 4), int), 2), Linear(1.0, 2.0))
    assert sorted(found[0].tolist()) == [0, 0, 2, 4]
    assert found[0, :2].sum() == 0


def test_restoring_jobs_keep_what_they_have() -> None:
    present = cluster_of(gpu_nodes(0, [4, 4]), [[1, 0], [0, 0]])
    jobs = active(2, restart_left_s=[5.0, 0.0])
    assert decided(jobs, present, Linear(1.0))[0].tolist() == [1, 0]


def test_a_failed_node_frees_a_pinned_job() -> None:
    nodes = gpu_nodes(0, [4, 4])
    nodes["up"][0] = False
    found = decided(active(2, pinned=[True, False]), cluster_of(nodes, [[4, 0], [0, 0]]), Linear(1.0))
    assert found.sum(axis=1).tolist() == [2, 2]
    assert found[:, 0].tolist() == [0, 0]
    run = run_of(jobs_of([0.0], [3000.0], 4), "sia", node_events=(NodeEvent(150.0, 0, False),))
    assert run.finished.all()


@pytest.mark.parametrize("seed", range(20))
def test_places_are_never_split_while_there_is_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = gpu_nodes(np.repeat([0, 1], 4), np.repeat([4, 8], 4))
    gpus = np.zeros((0, 8), np.int64)
    for _ in range(6):
        left, counts = [16, 32], []
        while True:
            t = int(rng.integers(2))
            width = (4, 8)[t]
            n = int(rng.choice([1, 2, 4, width, 2 * width]))
            if n > left[t] or len(counts) == 20:
                break
            left[t] -= n
            counts.append([n, 0] if t == 0 else [0, n])
        wanted = np.array(counts or [[1, 0]])
        before = np.zeros((len(wanted), 8), np.int64)
        common = min(len(gpus), len(wanted))
        before[:common] = gpus[:common]
        fixed = np.zeros(len(wanted), np.bool_)
        held = whole_nodes_first(wanted, cluster_of(nodes, before, 2), fixed)
        gpus = np.zeros_like(before)
        gpus[held.rows] = held.gpus
        assert (gpus.sum(axis=0) <= nodes["gpus"]).all()
        assert np.array_equal(gpus[:, :4].sum(axis=1), wanted[:, 0])
        assert np.array_equal(gpus[:, 4:].sum(axis=1), wanted[:, 1])
        n_nodes = (gpus > 0).sum(axis=1)
        assert np.array_equal(n_nodes, np.maximum(-(-wanted[:, 0] // 4), -(-wanted[:, 1] // 8)))


def test_room_is_made_by_moving_few_and_never_the_fixed() -> None:
    nodes = gpu_nodes(0, [4, 4, 4])
    present = np.array([[2, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    cluster, wanted = cluster_of(nodes, present), np.array([[2], [1], [1], [4]])
    held = whole_nodes_first(wanted, cluster, np.array([False, True, False, False]))
    assert held.gpus[1].tolist() == [0, 1, 0]
    assert held.gpus[3].tolist() == [0, 0, 4]
    assert held.gpus[0].tolist() == [2, 0, 0]


def test_one_gpu_profiles_tell_types_apart_and_scaling_is_borrowed() -> None:
    slow = toy_profile()
    fast_steps = slow.steps[0]
    halved = {p: (b, times / 2) for p, (b, times) in fast_steps.placements.items()}
    fast = type(fast_steps)(halved, fast_steps.scaled, fast_steps.scaled_times / 2)
    both = {"steps": (fast_steps, fast), "min_local": np.array([8.0, 8.0]), "max_local": np.array([32.0] * 2)}
    profile = toy_profile(**both)
    truth = ReplayTruth([profile], ReplayOptions(profiled="one-gpu"))
    speed: Any = truth.begin(toy_jobs(profile, [0.0], 1, 16))
    jobs = np.zeros(1, [("job_idx", "i8")])
    one = configs(1, type_idx=np.array([0, 1]), local_batch=AGENT_BATCH)
    assert speed.goodput(jobs, one) == pytest.approx([1.0, 2.0], rel=0.02)
    four = configs(4, type_idx=np.array([0, 1]), local_batch=16.0)
    assert speed.goodput(jobs, four)[1] == pytest.approx(2 * speed.goodput(jobs, four)[0], rel=0.05)
    for local in (8, 16, 32):
        speed.report(0, 0, (1, 4, local), (local / 16 + 0.5, 0.5), 0.0)
    found = speed.goodput(jobs, four)
    assert found[0] == pytest.approx(1 / 1.5, rel=0.1)
    assert found[1] == pytest.approx(2 * found[0], rel=0.1)
