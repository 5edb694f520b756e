"""Replayed jobs against cases computed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from support.replay_profiles import toy_jobs, toy_profile
from trimtab.domain.allocator import Allocation, Allocator
from trimtab.domain.training_jobs import AGENT_BATCH, configs, gpu_nodes
from trimtab.errors import UsageError
from trimtab.training.allocator_catalogue import clock_of, placement_of
from trimtab.training.job_records import JobRecords
from trimtab.training.node_outages import NodeEvent
from trimtab.training.restart_costs import FlatRestart
from trimtab.training.training_loop import Setup, run_jobs
from trimtab.training.truths.replay_truth import ReplayOptions, ReplayTruth


@dataclass(frozen=True)
class Fixed(Allocator):
    """Every job gets what it asked for, with the batch that it asked for or its agent's."""

    name: ClassVar[str] = "fixed"
    adapts: bool = False

    def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
        local = np.full(len(jobs), AGENT_BATCH) if self.adapts else None
        return Allocation(counts=jobs["gpus_requested"][:, None].astype(np.int64), local_batch=local)


@dataclass(frozen=True)
class Waits(Fixed):
    """Waits while all nodes are down."""

    def allocate(self, jobs: Any, cluster: Any, now_s: float, speed: Any, memory: Any) -> Allocation:
        return Allocation(counts=np.full((len(jobs), 1), min(1, cluster.n_gpus)))


def replay(
    workload: Any, profile: Any, *, adapts: bool = False, clock: str = "rounds", **more: Any
) -> JobRecords:
    setup = Setup(
        nodes=gpu_nodes(0, [4, 4]),
        type_names=("gpu",),
        truth=ReplayTruth([profile], ReplayOptions(**more)),
        clock=clock_of(clock),
        placement=placement_of("consolidated"),
        restart=FlatRestart(30.0),
    )
    return run_jobs(workload, Fixed(adapts), setup)


@pytest.mark.parametrize(
    ("gpus", "batch", "iteration_s", "gain"),
    [
        (1, 16, 1.0, 1.0),
        (1, 64, 4.0, 1.0),  # two passes of 32
        (2, 64, 2.5, 1.0),
        (4, 64, 1.5, 1.0),
        (8, 64, 1.0, 1.0),
    ],
)
def test_a_job_takes_its_iterations(gpus: int, batch: float, iteration_s: float, gain: float) -> None:
    profile = toy_profile(noise=0.0)
    run = replay(toy_jobs(profile, [0.0], gpus, batch), profile)
    assert run.finish_s == pytest.approx([60 + 30 + 400 * iteration_s / gain])


def test_replayed_jobs_go_back_to_their_checkpoints() -> None:
    # 100 iterations of 1 s in each of 4 epochs. After 230 s of progress, in the third epoch, the node fails:
    # the job goes back to 200 s.
    profile = toy_profile(noise=0.0)
    setup = Setup(
        nodes=gpu_nodes(0, [1]),
        type_names=("gpu",),
        truth=ReplayTruth([profile], ReplayOptions()),
        clock=clock_of("events"),
        placement=placement_of("consolidated"),
        restart=FlatRestart(30.0),
        node_events=(NodeEvent(260.0, 0, up=False), NodeEvent(300.0, 0, up=True)),
        checkpoint_s=100.0,
    )
    run = run_jobs(toy_jobs(profile, [0.0], 1, 16), Waits(), setup)
    assert run.lost_gpu_s == pytest.approx([30.0])
    assert run.finish_s == pytest.approx([300 + 30 + 200])


def test_noise_makes_large_batches_pay() -> None:
    profile = toy_profile(noise=9.0)
    run = replay(toy_jobs(profile, [0.0], 4, 64), profile)
    gain = 10 / (9 / 4 + 1)
    assert run.finish_s == pytest.approx([90 + 4 * np.rint(100 * 1.5 / gain)])


def test_events_finish_where_rounds_do() -> None:
    profile = toy_profile(noise=9.0, epochs=5)
    workload = toy_jobs(profile, [0.0, 10.0], 4, 64)
    rounds = replay(workload, profile, clock="rounds(period_s=1)")
    events = replay(workload, profile, clock="events")
    # rounds begin at 1 s, and round each end of an epoch from where the second before it left off
    assert events.finish_s + np.array([1.0, 0.0]) == pytest.approx(rounds.finish_s, abs=5.0)
    assert len(events.decided_s) < 10


def test_an_agent_chooses_the_batch_that_pays() -> None:
    # with noise without end the gain is the scale, so 64 on one GPU in passes of 32 is as good as 16
    profile = toy_profile(noise=1e9)
    fixed = replay(toy_jobs(profile, [0.0], 4, 16), profile, clock="rounds(period_s=10)")
    adapts = replay(toy_jobs(profile, [0.0], 4, 16), profile, adapts=True, clock="rounds(period_s=10)")
    # 4 GPUs: batch 32 is the least (8 each): 1 s for 2; batch 64: 1.5 s for 4
    assert adapts.finish_s[0] - 40 == pytest.approx(400 * 1.5 / 4, rel=0.05)
    assert fixed.finish_s[0] > adapts.finish_s[0]


def test_distributed_jobs_on_a_node_slow_each_other_down() -> None:
    profile = toy_profile()
    workload = toy_jobs(profile, [0.0], 8, 64)
    alone = replay(workload, profile, interference_frac=0.5)
    assert alone.finish_s == pytest.approx([90 + 400])


def test_the_estimate_learns_from_reports_only() -> None:
    profile = toy_profile()
    truth = ReplayTruth([profile])
    workload = toy_jobs(profile, [0.0, 0.0], 1, 16)
    speed: Any = truth.begin(workload)
    jobs = np.zeros(2, [("job_idx", "i8")])
    jobs["job_idx"] = [0, 1]
    assert speed.goodput(jobs, configs([4, 4])).tolist() == [4.0, 4.0]
    speed.report(0, 0, (1, 1, 16), (1.0, 0.0), 0.0)
    speed.report(0, 0, (1, 4, 16), (1.5, 0.5), 0.0)
    found = speed.goodput(jobs, configs([1, 4]))
    assert found[0] == pytest.approx(1.0, rel=0.02)
    assert found[1] == 4.0


def test_an_application_without_profile_is_named() -> None:
    workload = toy_jobs(toy_profile("toy"), [0.0], 1, 16)
    with pytest.raises(UsageError, match="job job-0: has no profile"):
        ReplayTruth([toy_profile("other")]).begin(workload)
