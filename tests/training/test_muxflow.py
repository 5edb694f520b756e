"""Jobs beside online services: speeds, latencies and protection by hand, the matching by brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from support.training_runs import jobs_of, scaling_table
from trimtab.domain.allocator import Allocation, Allocator
from trimtab.domain.service_loads import PairSpeeds, guest_kept, host_slowdown, load_of
from trimtab.domain.training_jobs import ServiceLoads, Workload, gpu_nodes
from trimtab.errors import PolicyError
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import TRAINING_JOBS
from trimtab.training.allocators.muxflow import _matched
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth


def pairs(host_kept: float) -> PairSpeeds:
    """Curve 0, jobs, keeps 0.8 beside curve 1, services, which keep `host_kept`; two services keep 0.8."""
    kept = np.array([[0.8, 0.8, 1.0], [host_kept, 0.8, 1.0], [1.0] * 3])
    return PairSpeeds(np.full(3, 0.5), np.array([1]), kept[None, None])


def service_and(work: list[float], services: int = 1, load: float = 0.5) -> Workload:
    n = services + len(work)
    is_service = np.arange(n) < services
    made = jobs_of(
        [0.0] * n,
        [np.inf] * services + work,
        model_idx=is_service.astype(int),
        scales=~is_service,
        preemptible=~is_service,
        gpus_max=np.ones(n, np.int64),
    )
    return replace(made, services=ServiceLoads(is_service, np.zeros(n), load, load))


def run(
    workload: Workload, truth: PairSpeeds, seen: PairSpeeds | None = None, allocator: Any = "muxflow"
) -> JobRecords:
    return run_allocator(
        allocator,
        workload,
        nodes=gpu_nodes(0, [1]),
        type_names=("gpu",),
        truth=TableTruth(scaling_table(), pairs=truth, pair_estimate=seen),
    )


def test_speeds_and_latencies_by_hand() -> None:
    # at half load a job that keeps 0.8 at full load keeps 0.9, unless it may use too little of the GPU
    assert guest_kept(0.5, 0.8, [1.0, 0.3], 0.5).tolist() == pytest.approx([0.9, 0.6])
    # at half load, half of the GPU to the job: a quarter of the full slowdown of 1 / 0.5
    assert host_slowdown(0.5, 0.5, 0.5) == pytest.approx(1.25)
    assert host_slowdown([0.0, 0.5], 0.0, 0.5).tolist() == [1.0, np.inf]


def test_a_load_rises_for_half_a_day() -> None:
    loads = ServiceLoads(np.array([True, True, False]), np.array([0.0, 43_200.0, 0.0]), 0.2, 0.8)
    assert load_of(loads, np.arange(3), np.zeros(3)).tolist() == pytest.approx([0.2, 0.8, 0.0])
    assert load_of(loads, np.array([0]), np.array([21_600.0])) == pytest.approx(0.5)
    at = load_of(loads, np.zeros(3, int), np.array([600.0, 899.0, 900.0]))
    assert at[0] == at[1] < at[2]


def test_a_job_beside_a_service_by_hand() -> None:
    # the share is 1 - 0.625 · 0.5 - 0.1, in tenths 0.5; the job keeps 0.9 of its speed, from 300 s on
    found = run(service_and([90.0]), pairs(0.8))
    assert found.finish_s[1] == pytest.approx(400.0)
    assert np.isnan(found.finish_s[0])
    metrics = job_metrics(found)
    assert metrics["completion_mean_s"] == pytest.approx(400.0)
    assert metrics["finished_frac"] == 1.0
    # 1 + 0.5 · 0.5 · (1 / 0.8 - 1) while it has a guest: to the end of the round, as the load is reported
    assert metrics["service_slowdown_mean"] == pytest.approx(1.0625)
    assert metrics["service_over_limit_frac"] == 0.0
    # the guest has half of what both may use, the service the rest of its 300 s
    assert found.gpu_s.sum() == pytest.approx(300.0)


def test_a_share_by_the_limit_uses_what_the_limit_allows() -> None:
    # a host that keeps 0.8: at load 0.5 a whole GPU costs it 0.125 < 0.18: the share is the most, 0.9; the
    # guest keeps its 0.9; one that keeps 0.5: 0.18 / 0.5 = 0.36, in tenths 0.3, of the 0.5 that a guest uses
    for host_kept, kept, slowdown in ((0.8, 0.9, 1.1125), (0.5, 0.6, 1.15)):
        found = run(service_and([90.0]), pairs(host_kept), allocator="muxflow(share=limit)")
        assert found.finish_s[1] == pytest.approx(300.0 + 90.0 / kept)
        assert job_metrics(found)["service_slowdown_mean"] == pytest.approx(slowdown)


def test_services_come_first() -> None:
    # a service that keeps 0.5: latency 1.25 times, above the limit: no guest
    slow = run(service_and([90.0, 90.0]), pairs(0.5), allocator="muxflow(sharing=none)")
    assert not slow.finished.any()
    assert not run(service_and([90.0]), pairs(0.5)).finished.any()


def test_a_wrong_estimate_costs_one_round_at_a_time() -> None:
    found = run(service_and([900.0]), pairs(0.3), seen=pairs(0.8))
    # a guest for 300 s of 0.9, then closed for 600, 1200 and 2400 s; the rest of 90 in the fourth round
    assert found.over_limit_s[0] == pytest.approx(4 * 300.0)
    assert found.finish_s[1] == pytest.approx(300.0 + 3 * 300 + 600 + 1200 + 2400 + 90.0 / 0.9)


def test_the_matching_has_the_most_weight() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        weight = np.where(rng.random((4, 4)) < 0.3, 0.0, rng.random((4, 4)))
        best = max(sum(weight[i, j] for i, j in enumerate(p)) for p in permutations(range(4)))
        chosen = _matched(weight)
        assert sum(weight[i, j] for i, j in chosen) == pytest.approx(best)
        assert all(weight[i, j] > 0 for i, j in chosen)


def test_who_knows_no_services_is_refused() -> None:
    with pytest.raises(PolicyError, match="knows no online services"):
        run(service_and([90.0]), pairs(0.8), allocator="fifo")


def test_a_service_keeps_its_gpu() -> None:
    class Takes(Allocator):
        hosts_services = True

        def allocate(self, jobs: Any, *rest: Any) -> Allocation:
            return Allocation(counts=(~jobs["service"]).astype(np.int64)[:, None])

    with pytest.raises(PolicyError, match="takes its GPUs from the online service"):
        run(service_and([90.0]), pairs(0.8), allocator=Takes())


def test_the_scenario_of_services_compares_ways_to_share() -> None:
    scenario = TRAINING_JOBS.load("online-offline")
    assert scenario is not None
    assert TRAINING_KIND.default_policies(scenario) == ("muxflow",)
    generate = scenario.jobs.generate
    assert generate is not None
    assert generate.services is not None
    fewer = generate.model_copy(
        update={"jobs": 24, "services": generate.services.model_copy(update={"count": 8})}
    )
    jobs = scenario.jobs.model_copy(update={"generate": fewer, "load": 0.7})
    three = tuple(group.model_copy(update={"count": 3}) for group in scenario.cluster.nodes)
    cluster = scenario.cluster.model_copy(update={"nodes": three})
    small = scenario.model_copy(update={"jobs": jobs, "cluster": cluster})
    inputs = TRAINING_KIND.build(small, 0, None)
    assert inputs.workload.services is not None
    found = {
        sharing: job_metrics(TRAINING_KIND.run(inputs, f"muxflow(sharing={sharing})", "compiled"))
        for sharing in ("space", "none")
    }
    assert all(metrics["finished_frac"] == 1.0 for metrics in found.values())
    assert found["space"]["shared_frac"] > 0.0 == found["none"]["shared_frac"]
    assert found["space"]["completion_mean_s"] <= found["none"]["completion_mean_s"]
    assert found["space"]["service_over_limit_frac"] < 0.05
