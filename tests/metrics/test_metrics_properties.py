"""What holds for every run, whatever happened in it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support.records_builder import node_records, request_records, run_records
from trimtab.domain.requests import Reason, Status
from trimtab.metrics import Records, compute
from trimtab.metrics.imbalance import jain_index

REJECTIONS = [Reason.FITS_NO_NODE, Reason.REFUSED, Reason.QUEUE_FULL, Reason.POLICY, Reason.POLICY + 9]
PARTS = ("finished_frac", "rejected_frac", "cancelled_frac", "lost_frac", "unfinished_frac")
REASON_PARTS = tuple(f"rejected_{why}_frac" for why in ("fits_no_node", "refused", "queue_full", "policy"))

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 40)


def random_run(seed: int, n: int) -> Records:
    """A run of n requests on 5 nodes, consistent but otherwise arbitrary."""
    draw = np.random.default_rng(seed)
    status = draw.choice([s.value for s in Status if s != Status.PENDING], n)
    arrival_s = draw.uniform(0, 5, n)
    start_s = arrival_s + draw.exponential(1, n)
    allocated_slot_s = draw.uniform(0, 20, 5)
    requests = request_records(
        list(arrival_s),
        start_s=list(np.where(draw.random(n) < 0.8, start_s, np.nan)),
        finish_s=list(np.where(status == Status.FINISHED, start_s + draw.exponential(1, n), np.nan)),
        status=list(status),
        reason=list(np.where(status == Status.REJECTED, draw.choice(REJECTIONS, n), 0)),
        tenant_idx=list(draw.integers(0, 4, n)),
        class_idx=list(draw.integers(0, 2, n)),
        deadline_s=list(np.where(draw.random(n) < 0.5, arrival_s + draw.exponential(2, n), np.inf)),
        best_work_s=list(draw.exponential(1, n)),
    )
    nodes = node_records(
        [2] * 5,
        allocated_slot_s=list(allocated_slot_s),
        busy_slot_s=list(allocated_slot_s * draw.random(5)),
        usd_per_hour=list(draw.uniform(1, 9, 5)),
    )
    return run_records(requests, nodes, slo_s=[2.0, np.inf])


@given(seeds, sizes)
def test_fractions_add_up(seed: int, n: int) -> None:
    metrics = compute(random_run(seed, n))
    assert sum(metrics[part] for part in PARTS) == pytest.approx(1.0)
    assert sum(metrics[part] for part in REASON_PARTS) == pytest.approx(metrics["rejected_frac"])
    assert metrics["utilisation_allocated_mean_frac"] + metrics["idle_node_frac"] == pytest.approx(1.0)


@given(seeds, sizes)
def test_metrics_stand_in_the_order_that_definitions_force(seed: int, n: int) -> None:
    metrics = compute(random_run(seed, n))
    assert metrics["slo_attained_frac"] <= metrics["finished_frac"]
    assert metrics["goodput_per_s"] <= metrics["throughput_per_s"]
    assert metrics["utilisation_mean_frac"] <= metrics["utilisation_allocated_mean_frac"]
    if metrics["finished_frac"] > 0:
        assert metrics["completion_p50_s"] <= metrics["completion_p90_s"] <= metrics["completion_p99_s"]
        assert 1.0 <= metrics["slowdown_p50"] <= metrics["slowdown_p99"]
        assert metrics["makespan_s"] >= metrics["completion_p99_s"]


@given(seeds, sizes)
def test_order_of_requests_and_nodes_does_not_matter(seed: int, n: int) -> None:
    run = random_run(seed, n)
    draw = np.random.default_rng(seed + 1)
    shuffled = replace(
        run, requests=_take(run.requests, draw.permutation(n)), nodes=_take(run.nodes, draw.permutation(5))
    )
    assert compute(shuffled) == pytest.approx(compute(run), nan_ok=True)


@given(seeds, sizes)
def test_requests_yet_to_arrive_change_nothing(seed: int, n: int) -> None:
    run = random_run(seed, n)
    status = np.where(np.arange(n) % 2 == 0, run.requests.status, Status.PENDING).astype(np.uint8)
    kept = replace(run, requests=_take(run.requests, np.arange(0, n, 2)))
    blanks = {name: np.where(status == Status.PENDING, np.nan, getattr(run.requests, name)) for name in TIMES}
    pending = replace(run.requests, status=status, **blanks)
    late = np.where(status == Status.PENDING, 99.0, pending.arrival_s)
    assert compute(replace(run, requests=replace(pending, arrival_s=late))) == pytest.approx(
        compute(kept), nan_ok=True
    )


TIMES = ("start_s", "service_start_s", "finish_s")


def _take(columns, rows):
    return replace(columns, **{field.name: getattr(columns, field.name)[rows] for field in fields(columns)})


shares = arrays(np.float64, st.integers(1, 30), elements=st.floats(0.0, 1e6).map(lambda x: round(x, 3)))


@given(shares.filter(lambda x: x.any()))
def test_jain_lies_between_one_nth_and_one(x: np.ndarray) -> None:
    assert 1 / len(x) - 1e-12 <= jain_index(x) <= 1 + 1e-12


@given(shares.filter(lambda x: x.any()), st.floats(0.01, 100))
def test_jain_does_not_depend_on_the_unit(x: np.ndarray, factor: float) -> None:
    assert jain_index(factor * x) == pytest.approx(jain_index(x))


@given(st.integers(1, 50), st.integers(1, 50))
def test_jain_is_the_share_of_tenants_served_when_those_are_served_alike(served: int, starved: int) -> None:
    x = np.array([2.5] * served + [0.0] * starved)  # Jain et al. 1984, §3: k of n equal users give k/n
    assert jain_index(x) == pytest.approx(served / (served + starved))


@given(seeds, sizes)
def test_percentiles_agree_with_sorting(seed: int, n: int) -> None:
    run = random_run(seed, n)
    completion_s = sorted(c for c in run.requests.completion_s if c == c)
    if completion_s:
        at = 0.9 * (len(completion_s) - 1)
        low, high = completion_s[int(at)], completion_s[min(int(at) + 1, len(completion_s) - 1)]
        assert compute(run)["completion_p90_s"] == pytest.approx(low + (at % 1) * (high - low))
