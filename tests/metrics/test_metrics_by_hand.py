"""Every metric on cases small enough to work out on paper; the arithmetic stands beside the number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.records_builder import node_records, request_records, run_records
from trimtab.domain.cluster import RESOURCES
from trimtab.domain.requests import Reason, Status
from trimtab.errors import UsageError
from trimtab.metrics import ResourceRecords, compute
from trimtab.metrics.definitions import SHORT_NAMES
from trimtab.metrics.imbalance import longest_starvation_s

NAN = math.nan


def test_completion_of_four_finished_and_one_rejected() -> None:
    requests = request_records(
        [0.0, 1.0, 2.0, 3.0, 4.0],
        finish_s=[1.0, 3.0, 5.0, 7.0, NAN],  # completion 1, 2, 3, 4
        status=[Status.FINISHED] * 4 + [Status.REJECTED],
    )
    metrics = compute(run_records(requests))
    assert metrics["completion_mean_s"] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert metrics["completion_p50_s"] == pytest.approx(2.5)  # rank .50 · 3 = 1.5: halfway from 2 to 3
    assert metrics["completion_p90_s"] == pytest.approx(3.7)  # rank .90 · 3 = 2.7
    assert metrics["completion_p99_s"] == pytest.approx(3.97)  # rank .99 · 3 = 2.97
    assert metrics["completion_var_s2"] == pytest.approx((1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4)  # 1.25
    assert metrics["completion_cv"] == pytest.approx(math.sqrt(1.25) / 2.5)
    assert metrics["makespan_s"] == 7.0 - 0.0


def test_queueing_counts_whoever_took_a_slot_finished_or_not() -> None:
    requests = request_records(
        [0.0, 1.0, 2.0, 3.0],
        start_s=[0.0, 3.0, 6.0, NAN],  # queueing 0, 2, 4; the last never started
        finish_s=[1.0, 4.0, NAN, NAN],
        status=[Status.FINISHED, Status.FINISHED, Status.LOST, Status.HELD],
    )
    metrics = compute(run_records(requests))
    assert metrics["queueing_mean_s"] == pytest.approx(2.0)
    assert metrics["queueing_p50_s"] == pytest.approx(2.0)
    assert metrics["queueing_p90_s"] == pytest.approx(3.6)  # rank .9 · 2 = 1.8: 2 + .8 · 2
    assert metrics["queueing_p99_s"] == pytest.approx(3.96)


def test_slowdown_has_a_floor_of_one_second_and_is_never_below_one() -> None:
    requests = request_records(
        [0.0, 0.0, 0.0],
        finish_s=[8.0, 3.0, 0.2],
        best_work_s=[2.0, 0.01, 0.1],  # 8 ÷ 2 = 4; 3 ÷ max(.01, 1) = 3; .2 ÷ 1 → 1
    )
    metrics = compute(run_records(requests))
    assert metrics["slowdown_mean"] == pytest.approx((4 + 3 + 1) / 3)
    assert metrics["slowdown_p50"] == pytest.approx(3.0)
    assert metrics["slowdown_p99"] == pytest.approx(3.98)  # rank .99 · 2 = 1.98: 3 + .98 · 1


def test_utilisation_of_unequal_nodes() -> None:
    nodes = node_records(
        [1, 4],
        up_s=[10.0, 10.0],  # 10 and 40 slot-seconds
        busy_slot_s=[5.0, 12.0],  # .5 and .3
        allocated_slot_s=[8.0, 16.0],  # .8 and .4
        memory_gib=[10.0, 20.0],  # 100 and 200 GiB·s
        memory_used_gib_s=[50.0, 180.0],  # .5 and .9
    )
    metrics = compute(run_records(nodes=nodes))
    assert metrics["utilisation_mean_frac"] == pytest.approx(0.4)
    assert metrics["utilisation_var"] == pytest.approx((0.1**2 + 0.1**2) / 2)
    assert metrics["utilisation_cv"] == pytest.approx(0.1 / 0.4)
    assert metrics["utilisation_allocated_mean_frac"] == pytest.approx(0.6)
    assert metrics["utilisation_allocated_var"] == pytest.approx(0.04)
    assert metrics["utilisation_allocated_cv"] == pytest.approx(0.2 / 0.6)
    assert metrics["idle_node_frac"] == pytest.approx((0.2 + 0.6) / 2)
    assert metrics["idle_frac"] == pytest.approx(1 - (8 + 16) / (10 + 40))
    assert metrics["idle_gpu_memory_frac"] == pytest.approx(1 - (50 + 180) / (100 + 200))
    assert metrics["utilisation_gpu_memory_frac"] == pytest.approx(230 / 300)
    assert metrics["utilisation_gpu_memory_var"] == pytest.approx(0.04)  # .5 and .9
    assert metrics["jain_nodes"] == pytest.approx((0.5 + 0.3) ** 2 / (2 * (0.25 + 0.09)))  # .64 ÷ .68


def test_time_down_is_neither_used_nor_idle() -> None:
    nodes = node_records(
        [2, 1, 3],
        up_s=[5.0, 10.0, 0.0],  # up half the window, all of it, never
        busy_slot_s=[5.0, 5.0, 0.0],  # 5 ÷ (2 · 5) = .5; 5 ÷ 10 = .5; left out
        allocated_slot_s=[5.0, 5.0, 0.0],
    )
    metrics = compute(run_records(nodes=nodes))
    assert metrics["utilisation_mean_frac"] == pytest.approx(0.5)
    assert metrics["utilisation_var"] == 0.0
    assert metrics["idle_node_frac"] == pytest.approx(0.5)
    assert metrics["idle_frac"] == pytest.approx(1 - (5 + 5) / (2 * 5 + 10))


def test_idle_rate_is_idle_capacity_over_all_capacity() -> None:
    """One of nine slots of one node is busy on another node of one slot: 9 of 10 are idle."""
    nodes = node_records([1, 9], up_s=[10.0, 10.0], busy_slot_s=[10.0, 0.0], allocated_slot_s=[10.0, 0.0])
    metrics = compute(run_records(nodes=nodes))
    assert metrics["idle_frac"] == pytest.approx(0.9)
    assert metrics["idle_node_frac"] == pytest.approx(0.5)


def test_utilisation_of_each_resource() -> None:
    resources = ResourceRecords(
        ("cpu_cores", "gpu_milli"),
        np.array([[8.0, 1000.0], [24.0, 0.0]]),  # the second node has no accelerator
        np.array([[40.0, 2500.0], [60.0, 0.0]]),
    )
    metrics = compute(run_records(nodes=node_records([1, 4], up_s=[10.0, 5.0]), resources=resources))
    assert metrics["utilisation_cpu_frac"] == pytest.approx((40 + 60) / (8 * 10 + 24 * 5))
    assert metrics["idle_cpu_frac"] == pytest.approx(0.5)
    assert metrics["utilisation_cpu_var"] == pytest.approx(0.0)  # .5 and .5
    assert metrics["utilisation_gpu_frac"] == pytest.approx(0.25)
    assert metrics["utilisation_gpu_var"] == 0.0
    assert math.isnan(metrics["utilisation_ram_frac"])
    assert math.isnan(metrics["idle_ram_frac"])


@pytest.mark.parametrize("name", RESOURCES)
def test_each_resource_has_its_metrics(name: str) -> None:
    resources = ResourceRecords((name,), np.array([[4.0]]), np.array([[10.0]]))
    metrics = compute(run_records(nodes=node_records([1], up_s=[10.0]), resources=resources))
    assert metrics[f"utilisation_{SHORT_NAMES[name]}_frac"] == pytest.approx(0.25)


def test_a_node_of_unlimited_memory_has_no_idle_memory() -> None:
    nodes = node_records([1, 1], memory_gib=[math.inf, 4.0], memory_used_gib_s=[7.0, 10.0], up_s=[0.0, 10.0])
    assert compute(run_records(nodes=nodes))["idle_gpu_memory_frac"] == pytest.approx(1 - 10 / 40)


def test_every_way_to_end_is_counted_once() -> None:
    ends = [
        (Status.PENDING, Reason.NONE),  # not arrived: in no denominator, so that 10 requests are left
        (Status.FINISHED, Reason.NONE),
        (Status.REJECTED, Reason.FITS_NO_NODE),
        (Status.REJECTED, Reason.REFUSED),
        (Status.REJECTED, Reason.QUEUE_FULL),
        (Status.REJECTED, Reason.POLICY),
        (Status.REJECTED, Reason.POLICY + 3),  # a policy's own reason
        (Status.CANCELLED, Reason.DEADLINE),
        (Status.LOST, Reason.RETRIES),
        (Status.HELD, Reason.NONE),
        (Status.RUNNING, Reason.NONE),
    ]
    requests = request_records(
        [0.0] * 11,
        finish_s=[NAN, 1.0] + [NAN] * 9,
        status=[status for status, _ in ends],
        reason=[reason for _, reason in ends],
    )
    metrics = compute(run_records(requests))
    assert metrics["finished_frac"] == pytest.approx(0.1)
    assert metrics["rejected_frac"] == pytest.approx(0.5)
    assert metrics["rejected_fits_no_node_frac"] == pytest.approx(0.1)
    assert metrics["rejected_refused_frac"] == pytest.approx(0.1)
    assert metrics["rejected_queue_full_frac"] == pytest.approx(0.1)
    assert metrics["rejected_policy_frac"] == pytest.approx(0.2)
    assert metrics["cancelled_frac"] == pytest.approx(0.1)
    assert metrics["lost_frac"] == pytest.approx(0.1)
    assert metrics["unfinished_frac"] == pytest.approx(0.2)


def test_slo_and_deadline_both_bind_and_the_boundary_counts() -> None:
    requests = request_records(
        [0.0, 0.0, 0.0, 0.0, 0.0],
        finish_s=[2.0, 2.5, 4.0, 1.0, NAN],
        class_idx=[0, 0, 1, 0, 0],  # SLO 2 s and none
        deadline_s=[math.inf, math.inf, 3.0, 1.0, 9.0],
        status=[Status.FINISHED] * 4 + [Status.CANCELLED],
    )
    # kept exactly; .5 s over its SLO; no SLO but past its deadline; both kept exactly; cancelled
    metrics = compute(run_records(requests, slo_s=[2.0, math.inf]))
    assert metrics["slo_attained_frac"] == pytest.approx(2 / 5)
    assert metrics["deadline_satisfied_frac"] == pytest.approx(1 / 3)
    assert metrics["goodput_per_s"] == pytest.approx(2 / 10)
    assert metrics["throughput_per_s"] == pytest.approx(4 / 10)


def test_jain_of_tenants_is_over_mean_relative_speed() -> None:
    requests = request_records(
        [0.0, 0.0, 0.0, 0.0],
        finish_s=[2.0, 4.0, NAN, 8.0],
        best_work_s=[2.0, 2.0, 2.0, 2.0],  # speed 1, 1/2, 0 (lost), 1/4
        status=[Status.FINISHED, Status.FINISHED, Status.LOST, Status.FINISHED],
        tenant_idx=[0, 0, 0, 5],  # tenant 0: (1 + .5 + 0) ÷ 3 = .5; tenant 5: .25; 1 to 4 sent nothing
    )
    expected = (0.5 + 0.25) ** 2 / (2 * (0.5**2 + 0.25**2))  # .5625 ÷ .625 = .9
    assert compute(run_records(requests))["jain_tenants"] == pytest.approx(expected) == pytest.approx(0.9)


def test_starvation_is_the_longest_wait_of_a_tenant_that_is_served_nothing() -> None:
    """Tenant 0: at 1–9 its second waits, 2 s until the first begins, then 6. Tenant 3 loses all: 4 to 8.5."""
    requests = request_records(
        [0.0, 1.0, 2.0, 4.0, 5.0, 9.0],
        start_s=[3.0, 9.0, NAN, NAN, NAN, NAN],
        ended_s=[4.0, 9.5, 8.0, 8.5, 5.0, NAN],
        tenant_idx=[0, 0, 0, 3, 3, 3],
        status=[Status.FINISHED] * 2 + [Status.CANCELLED] * 2 + [Status.REJECTED, Status.QUEUED],
    )
    assert compute(run_records(requests))["starvation_max_s"] == 6.0
    assert compute(run_records(requests, end_s=16.0))["starvation_max_s"] == 7.0  # the last one, until then


def test_starvation_by_brute_force() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = 12
        arrival_s = np.round(rng.uniform(0, 20, n), 1)
        left_s = arrival_s + np.round(rng.exponential(5.0, n), 1)
        start_s = np.where(rng.random(n) < 0.7, left_s, NAN)
        tenant_idx = rng.integers(0, 3, n)
        requests = request_records(
            list(arrival_s), start_s=list(start_s), ended_s=list(left_s), tenant_idx=list(tenant_idx)
        )
        longest_s = 0.0
        for i in range(n):
            inside = (tenant_idx == tenant_idx[i]) & (start_s > arrival_s[i]) & (start_s < left_s[i])
            marks = np.sort(np.concatenate([[arrival_s[i], left_s[i]], start_s[inside]]))
            longest_s = max(longest_s, float(np.diff(marks).max()))
        assert longest_starvation_s(requests, 100.0) == pytest.approx(longest_s)


def test_accelerators_and_money_per_thousand_finished() -> None:
    nodes = node_records(
        [4, 2],
        accelerators=[8.0, 1.0],  # 2 and ½ accelerators per slot
        allocated_slot_s=[3.0, 10.0],  # 6 + 5 = 11 accelerator-seconds
        usd_per_hour=[36.0, 7.2],
        up_s=[10.0, 5.0],  # the second fails, and is paid: .10 + .02 = .12 USD in 10 s
    )
    status = [Status.FINISHED, Status.FINISHED, Status.REJECTED, Status.REJECTED]
    requests = request_records([0.0] * 4, finish_s=[1.0, 1.0, NAN, NAN], status=status)
    metrics = compute(run_records(requests, nodes))
    assert metrics["accelerator_s_per_1k"] == pytest.approx(11 * 1000 / 2)
    assert metrics["usd_per_hour"] == pytest.approx(43.2)
    assert metrics["usd"] == pytest.approx(0.12)
    assert metrics["usd_per_1k"] == pytest.approx(0.12 * 1000 / 2)


def test_counts_pass_through_as_floats() -> None:
    metrics = compute(run_records(model_loads=3, adapter_loads=4, bytes_moved_gib=0.5, retries=2))
    names = ("model_loads", "adapter_loads", "moved_gib", "retries")
    assert [metrics[name] for name in names] == [3.0, 4.0, 0.5, 2.0]
    assert all(type(value) is float for value in metrics.values())


def test_what_is_undefined_is_nan_without_a_warning() -> None:
    metrics = compute(run_records(nodes=node_records([1], up_s=[0.0]), end_s=0.0))
    counts = {"model_loads", "adapter_loads", "moved_gib", "retries", "usd_per_hour", "usd"}
    assert {name for name, value in metrics.items() if not math.isnan(value)} == counts


def test_a_request_done_in_no_time_is_served_at_full_speed() -> None:
    requests = request_records([1.0, 1.0], finish_s=[1.0, 3.0], best_work_s=[0.0, 2.0], tenant_idx=[0, 1])
    metrics = compute(run_records(requests))
    assert metrics["jain_tenants"] == pytest.approx(1.0)
    assert metrics["slowdown_mean"] == pytest.approx(1.0)


def test_columns_of_unequal_length_are_named() -> None:
    with pytest.raises(UsageError, match=r"finish_s: wrong shape \(got \(2,\)\); expected \(1,\)"):
        request_records([0.0], finish_s=[1.0, 2.0])
    with pytest.raises(UsageError, match=r"up_s: wrong shape"):
        node_records([1, 1], up_s=[1.0])


@pytest.mark.parametrize("end_s", [-1.0, np.nan])
def test_a_window_that_ends_before_it_starts_is_refused(end_s: float) -> None:
    with pytest.raises(UsageError, match="end_s: the window ends early"):
        run_records(end_s=end_s)
