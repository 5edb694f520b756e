"""Rounds of whole steps by hand, and shares against their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.training_runs import jobs_of, scaling_table
from trimtab.domain.training_jobs import JOBS, gpu_nodes
from trimtab.traces.gavel_jobs import GavelJob
from trimtab.training.allocator_catalogue import find_allocator
from trimtab.training.allocators.shared.gavel_mechanism import ShareState, _Received
from trimtab.training.allocators.shared.max_min_programme import central_shares
from trimtab.training.job_records import JobRecords
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.gavel_workloads import gavel_workload, is_critical
from trimtab.training.truths.stepped_truth import StepRates
from trimtab.training.truths.table_model import TableTruth

RATES = StepRates(({("LM", 10, 1): 10.0, ("LM", 20, 1): 8.0, ("LM", 10, 2): 15.0},), {"LM": 1000})


def jobs(*rows: tuple[int, int, float], mode: str = "static") -> list[GavelJob]:
    """Jobs of (steps, GPUs, arrival) at batch 10: 100 steps an epoch."""
    return [GavelJob("LM (batch size 10)", "LM", 10, s, g, mode, 1.0, t) for s, g, t in rows]


def run(listed: list[GavelJob], gpus: int, allocator: str = "gandiva-fair", **patterns: Any) -> JobRecords:
    workload, truth = gavel_workload("made for a test", listed, {}, patterns.get("patterns", {}), RATES)
    return run_allocator(
        allocator,
        workload,
        nodes=gpu_nodes(0, [gpus]),
        type_names=("gpu",),
        truth=truth,
        placement="consolidated",
    )


def test_rounds_end_with_the_last_step() -> None:
    # 1200 steps fit into 120 s on one GPU; 1500 need 150 s
    found = run(jobs((1500, 1, 0.0), (500, 1, 0.0)), 2)
    assert found.finish_s == pytest.approx([150.0, 50.0])
    assert found.decided_s.tolist() == [0.0, 120.0]


def test_two_jobs_take_turns_and_lose_the_overhead() -> None:
    # One GPU. Job 0 has the first round, and 100 steps left; job 1 the second, loses 20 s, and has 200 left.
    # It has received less (100 s), so it goes on: 20 s. Then job 0: 10 s, too short a round to lose any.
    found = run(jobs((1300, 1, 0.0), (1200, 1, 0.0)), 1)
    assert found.finish_s.tolist() == pytest.approx([270.0, 260.0])


def test_a_batch_doubles_one_epoch_ahead() -> None:
    # epochs of 100 steps at 10, of 50 at 20: the first round does 12 of 30 epochs, and notes the change that
    # comes after the second: 24 epochs done; 6 are left, of 50 steps at 8 a second
    pattern = {("LM (batch size 10)", 1): np.repeat([10, 20], [3, 40])}
    found = run(jobs((3000, 1, 0.0), mode="gns"), 1, patterns=pattern)
    assert found.finish_s == pytest.approx([240.0 + 6 * 50 / 8.0])


def test_critical_epochs() -> None:
    assert [is_critical("LM", 10, e) for e in (0, 9, 10)] == [True, True, False]
    assert [is_critical("ResNet-50", 32, e) for e in (9, 10, 30, 39, 40)] == [True, False, True, True, False]


def state_of(gpus: Any, rate: Any, left: Any, total: float, age_s: Any = 0.0) -> ShareState:
    n = len(gpus)
    records = np.zeros(n, JOBS)
    records["job_idx"], records["work_left"], records["age_s"] = np.arange(n), left, age_s
    return ShareState(records, np.array(rate, float)[:, None], np.array(gpus, float), np.array([total]), 0.0)


def shares_of(name: str, state: ShareState) -> Any:
    made: Any = find_allocator(name)
    return made.time_shares(state, made.policy_memory(len(state.gpus)))[:, 0]


def test_max_min_gives_equal_gpu_time() -> None:
    state = state_of([1, 2, 4, 8], [1, 1, 1, 1], 100.0, 3.0)
    assert shares_of("gavel-max-min", state) * state.gpus == pytest.approx([0.75] * 4)


def test_ossp_lets_all_finish_together() -> None:
    state = state_of([1, 1, 2], [1, 2, 1], [900.0, 800.0, 500.0], 2.0)
    share = shares_of('ossp(tie="least", precision=1.0001)', state)
    finish_s = state.jobs["work_left"] / (state.rate[:, 0] * share)
    assert finish_s == pytest.approx([1150.0] * 3, rel=1e-3)  # (900 + 400 + 2 · 500) / 2 GPUs


def test_themis_makes_ratios_equal() -> None:
    state = state_of([1, 1, 2], [1, 2, 1], [900.0, 800.0, 500.0], 2.0, age_s=[300.0, 0.0, 100.0])
    share = shares_of("finish-time-fairness", state)
    alone_rate = state.rate[:, 0] * np.minimum(2.0 / 3 / state.gpus, 1)
    left = state.jobs["work_left"]
    ratio = (state.jobs["age_s"] + left / (state.rate[:, 0] * share)) / (left / alone_rate)
    assert ratio == pytest.approx([ratio[0]] * 3)
    assert (share * state.gpus).sum() == pytest.approx(2.0)


def test_the_largest_sum_of_speeds() -> None:
    state = state_of([1, 2, 4], [1.0, 3.0, 2.0], 100.0, 4.0)
    share = shares_of("max-sum-throughput", state)
    assert share == pytest.approx([1.0, 1.0, 0.25])


def test_shares_of_several_types_are_those_of_the_programme() -> None:
    state = state_of([1, 1], [1.0, 1.0], 100.0, 1.0)
    two = ShareState(state.jobs, np.array([[4.0, 1.0], [3.0, 2.0]]), state.gpus, np.array([1.0, 1.0]), 0.0)
    made: Any = find_allocator("max-sum-throughput")
    assert made.time_shares(two, None) == pytest.approx(np.eye(2))


def over_types(name: str, state: ShareState, rate: Any, type_gpus: Any) -> Any:
    made: Any = find_allocator(name)
    both = ShareState(state.jobs, np.array(rate), state.gpus, np.array(type_gpus, float), 0.0)
    return both, made.time_shares(both, made.policy_memory(len(state.gpus)))


def best_of_grid(value: Any, gpus: Any, type_gpus: Any, steps: int = 25) -> float:
    """The least value of shares of two jobs on two types, over a grid of all that are allowed."""
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, steps)] * 4, indexing="ij"), axis=-1).reshape(-1, 2, 2)
    fits = (grid.sum(axis=2) <= 1 + 1e-9).all(axis=1)
    fits &= ((grid * np.asarray(gpus, float)[:, None]).sum(axis=1) <= np.asarray(type_gpus) + 1e-9).all(
        axis=1
    )
    return float(min(value(x) for x in grid[fits]))


@pytest.mark.parametrize("seed", range(4))
def test_ossp_over_types_is_as_good_as_the_best_of_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = state_of([1, 1], [1.0, 1.0], rng.uniform(200.0, 2000.0, 2), 2.0)
    both, share = over_types("ossp", state, rng.uniform(0.5, 4.0, (2, 2)), [1.0, 1.0])

    def finish_s(x: Any) -> float:
        speed = np.maximum((both.rate * x).sum(axis=1), 1e-9)
        return float((both.jobs["work_left"] / speed).max())

    best_s = best_of_grid(finish_s, both.gpus, both.type_gpus)
    assert best_s * 0.9 <= finish_s(share) <= best_s * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_worst_ratio_over_types_is_that_of_the_best_of_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left = rng.uniform(200.0, 2000.0, 2)
    state = state_of([1, 1], [1.0, 1.0], left, 2.0, age_s=rng.uniform(0.0, 500.0, 2))
    both, share = over_types("finish-time-fairness", state, rng.uniform(0.5, 4.0, (2, 2)), [1.0, 1.0])
    alone_s = left / (both.rate * 0.5).sum(axis=1)

    def ratio(x: Any) -> float:
        speed = np.maximum((both.rate * x).sum(axis=1), 1e-9)
        return float(((both.jobs["age_s"] + left / speed) / alone_s).max())

    best = best_of_grid(ratio, both.gpus, both.type_gpus)
    assert best * 0.9 <= ratio(share) <= best * (1 + 1e-6)


def test_one_type_twice_is_one_type() -> None:
    state = state_of([1, 1, 2], [1, 2, 1], [900.0, 800.0, 500.0], 2.0, age_s=[300.0, 0.0, 100.0])
    for name in ('ossp(tie="least", precision=1.0000001)', 'finish-time-fairness(tie="least")'):
        one = shares_of(name, state)
        both, share = over_types(name, state, np.tile(state.rate, 2), [1.0, 1.0])
        assert (share.sum(axis=1) >= one * (1 - 1e-5)).all()
        assert (share.sum(axis=1) * both.gpus).sum() <= 2.0 + 1e-6


def test_allox_runs_the_shortest_first_and_to_the_end() -> None:
    found = run(jobs((3000, 1, 0.0), (1500, 1, 0.0), (2000, 1, 0.0)), 1, "allox(reset_s=0)")
    assert np.argsort(found.finish_s).tolist() == [1, 2, 0]


def test_the_centre_is_where_the_barrier_is_least(rng: np.random.Generator) -> None:
    least, gpus = rng.uniform(0, 0.4, 4), np.array([1.0, 2.0, 1.0, 4.0])
    share = central_shares(least, gpus, 5.0)

    def barrier(x: Any) -> float:
        inner = np.concatenate([x - least, x, 1 - x, [5.0 - gpus @ x]])
        return -np.log(inner).sum() if (inner > 0).all() else np.inf

    at = barrier(share)
    for _ in range(200):
        assert barrier(share + rng.normal(0, 1e-3, 4)) >= at - 1e-9


def test_one_queue_of_all_types_serves_the_highest_priority_first() -> None:
    # one GPU of each type. Job 0 has shares on both, the larger one on the second type; job 1 on the first
    received = _Received(2, 2, 60.0)
    received._active = np.arange(2)
    received.share = np.array([[0.5, 0.9], [0.4, 0.0]])
    received.total_s = np.array([120.0, 120.0])
    state = ShareState(np.zeros(2, JOBS), np.ones((2, 2)), np.ones(2), np.ones(2), 0.0)
    assert received.chosen(state, one_queue=True).tolist() == [[0, 1], [1, 0]]
    # type after type the first one is given before the second is looked at
    assert received.chosen(state, one_queue=False).tolist() == [[1, 0], [0, 1]]


def test_the_variant_of_sia_never_forgets_the_time_received() -> None:
    # jobs of equal shares on one GPU take turns in whole rounds, also when others come and go
    listed = jobs((2400, 1, 0.0), (2400, 1, 0.0), (1200, 1, 100.0))
    found = run(listed, 1, 'gandiva-fair(variant="sia")')
    # 0 to 120 s job 0, then the two others, who had nothing, then in turns of those that had the least
    assert found.start_s.tolist() == pytest.approx([0.0, 120.0, 240.0])


@pytest.mark.parametrize("allocator", ["gavel-max-min", "gavel-packed", "shockwave"])
def test_rounds_of_another_length_scale_all_times(allocator: str) -> None:
    """Jobs a hundred times as fast, in rounds a hundredth as long, end at a hundredth of the time."""

    def finish_s(faster: float) -> Any:
        table = scaling_table()
        truth = TableTruth(replace(table, rate_per_s=faster * table.rate_per_s))
        workload = jobs_of(np.array([0.0, 30.0, 500.0]) / faster, [900.0, 400.0, 300.0])
        period_s = 120.0 / faster
        return run_allocator(
            allocator, workload, clock=f"step-rounds(period_s={period_s})", round_s=period_s,
            nodes=gpu_nodes(0, [1]), type_names=("gpu",), truth=truth,
        ).finish_s  # fmt: skip

    assert 100 * finish_s(100.0) == pytest.approx(finish_s(1.0))
    assert finish_s(1.0).max() > 1000.0


def test_jobs_of_seconds_do_not_wait_for_rounds_of_minutes() -> None:
    """A job that comes behind others has no share until shares are computed anew: 1000 s in the source."""
    found = {}
    for round_s in (None, 0.6):
        found[round_s] = run_allocator(
            "gavel-max-min", jobs_of([0.0, 1.0, 2.0], 3.0), clock="events", round_s=round_s,
            nodes=gpu_nodes(0, [1]), type_names=("gpu",), truth=TableTruth(scaling_table()),
        ).finish_s  # fmt: skip
    assert found[None].max() > 1000.0
    assert found[0.6].max() == pytest.approx(3 * 3.0 + 2.0, abs=5.0)
