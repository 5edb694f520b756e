"""The bounds against exact optima of small problems, known optima, and schedules anyone can make."""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.compiled.kernel import interpreted
from trimtab.errors import UsageError
from trimtab.experiments.bounds import Bound, completion_bound
from trimtab.experiments.bounds.instance import build_instance
from trimtab.experiments.bounds.lagrangian import cheapest_runs, cheapest_runs_kernel, list_schedule
from trimtab.experiments.bounds.pooled_srpt import candidate_weights, pooled_work_s, srpt_completions_s


class Case(NamedTuple):
    arrival_s: np.ndarray
    service_s: np.ndarray
    release_s: np.ndarray
    slots: np.ndarray


def random_case(seed: int, requests: int, groups: int, *, spread_s: float = 4.0, most_slots: int = 2) -> Case:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, spread_s, requests))
    service = rng.lognormal(0, 0.7, (requests, groups))
    service[:, 1:][rng.random((requests, groups - 1)) < 0.2] = np.inf
    release = arrival[:, None] + rng.uniform(0, 0.3, (requests, groups))
    return Case(arrival, service, release, rng.integers(1, most_slots + 1, groups))


def cheapest_per_subset(case: Case, group: int) -> dict[frozenset[int], float]:
    """Least sum of finish times of every subset of requests on one group, over all orders of start."""
    requests = range(case.arrival_s.size)
    best: dict[frozenset[int], float] = {}
    for size in range(len(requests) + 1):
        for order in itertools.permutations(requests, size):
            free = [0.0] * int(case.slots[group])
            total = 0.0
            for r in order:
                finish = max(free[0], case.release_s[r, group]) + case.service_s[r, group]
                heapq.heapreplace(free, finish)
                total += finish
            key = frozenset(order)
            best[key] = min(best.get(key, np.inf), total)
    return best


def optimal_totals_s(case: Case) -> dict[frozenset[int], float]:
    """Exact least total completion of every subset of requests, over all assignments and orders."""
    best = cheapest_per_subset(case, 0)
    for group in range(1, case.slots.size):
        here = cheapest_per_subset(case, group)
        best = {
            whole: min(best[whole - part] + here[part] for part in here if part <= whole) for whole in best
        }
    return {subset: total - sum(case.arrival_s[r] for r in subset) for subset, total in best.items()}


def greedy_completions_s(case: Case) -> np.ndarray:
    """Completion times when each request in turn goes where it finishes first."""
    free = [[0.0] * int(count) for count in case.slots]
    completions = np.empty(case.arrival_s.size)
    for r, arrival in enumerate(case.arrival_s):
        finishes = [max(f[0], case.release_s[r, g]) + case.service_s[r, g] for g, f in enumerate(free)]
        group = int(np.argmin(finishes))
        heapq.heapreplace(free[group], finishes[group])
        completions[r] = finishes[group] - arrival
    return completions


@pytest.fixture(scope="module")
def against_optimum() -> list[tuple[Bound, dict[frozenset[int], float]]]:
    cases = [random_case(seed, 4 + seed % 3, 2 + seed % 2, spread_s=1 + seed % 4) for seed in range(72)]
    return [(completion_bound(*case), optimal_totals_s(case)) for case in cases]


def whole(optimum: dict[frozenset[int], float]) -> float:
    return optimum[max(optimum, key=len)]


def test_both_bounds_stay_below_the_optimum(against_optimum):
    for bound, optimum in against_optimum:
        assert bound.b1_total_s <= whole(optimum)
        assert bound.b2_total_s <= whole(optimum)
        assert bound.total_s <= whole(optimum)


def test_the_bound_is_tight_on_small_problems(against_optimum):
    ratios = [whole(optimum) / bound.total_s for bound, optimum in against_optimum]
    assert np.median(ratios) <= 1.01
    assert max(ratios) <= 1.1


def test_any_subset_of_finished_requests_respects_the_bound(against_optimum):
    for bound, optimum in against_optimum:
        for subset, total in optimum.items():
            assert bound.totals_s[len(subset)] <= total + 1e-12


def test_the_bound_is_still_useful_when_one_request_is_dropped(against_optimum):
    ratios = []
    for bound, optimum in against_optimum:
        kept = bound.totals_s.size - 2
        ratios.append(min(total for s, total in optimum.items() if len(s) == kept) / bound.totals_s[kept])
    assert np.median(ratios) <= 1.1


def test_zero_prices_give_the_sum_of_least_services():
    case = random_case(1, 6, 3)
    least = np.min(case.release_s + case.service_s, axis=1) - case.arrival_s
    assert completion_bound(*case, iterations=0).b1_total_s == pytest.approx(least.sum(), rel=1e-8)


def test_waiting_in_one_slot_is_found_by_hand():
    """Three requests of 1 s at once on one slot: completions 1 + 2 + 3."""
    bound = completion_bound(np.zeros(3), np.ones((3, 1)), np.zeros((3, 1)), [1])
    assert bound.total_s == pytest.approx(6.0, rel=1e-6)
    assert bound.mean_for(2) == pytest.approx(1.5, rel=1e-6)
    assert bound.mean_for(1) == pytest.approx(1.0, rel=1e-6)


def test_shortest_first_is_optimal_on_one_slot_and_the_pool_finds_it():
    service = np.random.default_rng(0).lognormal(0, 1, 50)
    optimum = np.cumsum(np.sort(service)).sum()
    bound = completion_bound(np.zeros(50), service[:, None], np.zeros((50, 1)), [1])
    assert bound.b2_total_s == pytest.approx(optimum, rel=1e-8)
    assert optimum * 0.95 <= bound.b1_total_s <= optimum
    assert bound.method == "B2 pooled SRPT"
    for finished in (1, 10, 49):
        assert bound.totals_s[finished] == pytest.approx(
            np.cumsum(np.sort(service))[:finished].sum(), rel=1e-8
        )


def test_srpt_interrupts_by_hand():
    """4 s at 0, 1 s at 1: the short one interrupts and ends at 2, the long one at 5; then one alone at 9."""
    finish = srpt_completions_s(np.array([0.0, 1.0, 9.0]), np.array([4.0, 1.0, 2.0]))
    assert finish.tolist() == [2.0, 5.0, 11.0]


def test_srpt_equals_a_fine_time_slicing():
    rng = np.random.default_rng(5)
    release, work = np.sort(rng.integers(0, 40, 12)), rng.integers(1, 12, 12)
    left, sliced = work.copy(), []
    for now in range(200):
        waiting = [r for r in range(12) if release[r] <= now and left[r] > 0]
        if waiting:
            shortest = min(waiting, key=lambda r: left[r])
            left[shortest] -= 1
            sliced += [now + 1.0] if left[shortest] == 0 else []
    assert srpt_completions_s(release.astype(float), work.astype(float)).tolist() == sliced


def test_cheapest_runs_equal_a_search_over_a_grid_of_starts():
    case = random_case(3, 6, 2)
    instance = build_instance(*case)
    level = np.random.default_rng(3).uniform(0, 3, (2, 9))
    minima, busy = cheapest_runs(instance, level, 0.75)
    edges = np.arange(10) * 0.75
    for r in range(6):
        costs = []
        for g in range(2):
            if np.isfinite(instance.service_s[r, g]):
                starts = instance.release_s[r, g] + np.arange(0, 8, 1e-3)
                ends = starts + instance.service_s[r, g]
                paid = np.interp(ends, edges, np.append(0, np.cumsum(level[g] * 0.75)))
                paid -= np.interp(starts, edges, np.append(0, np.cumsum(level[g] * 0.75)))
                costs.append((ends + paid).min() - instance.arrival_s[r])
        assert min(costs) - 4e-3 * (1 + level.max()) <= minima[r] <= min(costs) + 1e-12
    assert busy.min() >= -1e-12


def test_slot_seconds_are_all_accounted_for():
    instance = build_instance(*random_case(4, 6, 1))
    _, busy = cheapest_runs(instance, np.zeros((1, 64)), 1.0)
    assert busy.sum() == pytest.approx(instance.service_s.sum())


def test_compiled_equals_interpreted():
    instance = build_instance(*random_case(6, 30, 3))
    level = np.random.default_rng(6).uniform(0, 2, (instance.slots.size, 16))
    paid = np.hstack([np.zeros((instance.slots.size, 1)), np.cumsum(level, axis=1)]) * 0.5
    tables = (*instance[:3], level, paid, 0.5)
    for left, right in zip(
        cheapest_runs_kernel(*tables), interpreted(cheapest_runs_kernel)(*tables), strict=True
    ):
        np.testing.assert_array_equal(left, right)
    assert list_schedule(*instance) == interpreted(list_schedule)(*instance)


def test_weights_make_the_pool_count_where_types_specialise():
    service = np.tile([[1.0, 10.0], [10.0, 1.0]], (50, 1))
    instance = build_instance(np.zeros(100), service, np.zeros((100, 2)), [1, 3])
    pooled = [pooled_work_s(instance, w).sum() for w in candidate_weights(instance)]
    # The first group needs help: it serves 550/13 of its 50 requests while the others do the rest ten times
    # slower, and all slots end together after 550/13 s. No weights can make the pool slower than that.
    assert max(pooled) == pooled[2] <= 550 / 13 + 1e-9
    assert pooled[2] == pytest.approx(550 / 13, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 4), st.floats(0.1, 60.0), st.integers(0, 30)
)
def test_never_above_a_list_schedule(seed, requests, groups, spread_s, iterations):
    case = random_case(seed, requests, groups, spread_s=spread_s, most_slots=4)
    completions = greedy_completions_s(case)
    for preemptive, splitting in itertools.product((False, True), repeat=2):
        bound = completion_bound(
            *case, preemptive=preemptive, splitting=splitting, iterations=iterations, intervals=64
        )
        assert bound.total_s <= completions.sum()
        for finished in range(1, requests + 1):
            assert bound.totals_s[finished] <= np.sort(completions)[:finished].sum() + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 25))
def test_the_mean_rises_with_the_number_finished(seed, requests):
    bound = completion_bound(*random_case(seed, requests, 3), iterations=20)
    means = [bound.mean_for(k) for k in range(1, requests + 1)]
    assert (np.diff(means) >= -1e-9 * max(means)).all()
    assert bound.mean_s == means[-1]
    assert bound.total_s == pytest.approx(bound.mean_s * requests)


def test_voided_bounds_are_left_out():
    case = random_case(9, 6, 2)
    resumed = completion_bound(*case, preemptive=True)
    split = completion_bound(*case, splitting=True)
    assert resumed.b1_total_s is None
    assert split.b1_total_s is None
    assert split.method == "B2 pooled SRPT"
    assert split.total_s == split.b2_total_s <= resumed.total_s <= completion_bound(*case).total_s
    assert [len(b.assumptions) for b in (split, resumed, completion_bound(*case))] == [2, 3, 4]


def test_migration_may_beat_the_best_single_group():
    """Starts at once on the slow group (10 s), ends on the fast one (1 s) whose payload takes 5 s to come."""
    bound = completion_bound([0.0], [[10.0, 1.0]], [[0.0, 5.0]], [1, 1], preemptive=True)
    migrated = 5.0 + 0.5 * 1.0  # half of the work is done when the fast group takes over
    assert bound.total_s <= migrated < completion_bound([0.0], [[10.0, 1.0]], [[0.0, 5.0]], [1, 1]).total_s


def test_groups_and_requests_may_come_in_any_order():
    case = random_case(12, 12, 3)
    order, groups = np.random.default_rng(1).permutation(12), [2, 0, 1]
    shuffled = completion_bound(
        case.arrival_s[order],
        case.service_s[order][:, groups],
        case.release_s[order][:, groups],
        case.slots[groups],
    )
    np.testing.assert_allclose(shuffled.totals_s, completion_bound(*case).totals_s, rtol=1e-6, atol=1e-6)


def test_the_epoch_does_not_matter():
    case = Case(*(np.rint(table * 2**20) / 2**20 for table in random_case(13, 20, 2)))
    later = case._replace(arrival_s=case.arrival_s + 2**30, release_s=case.release_s + 2**30)
    np.testing.assert_array_equal(completion_bound(*later).totals_s, completion_bound(*case).totals_s)


def test_requests_that_nobody_serves_and_idle_groups_are_left_out():
    case = random_case(14, 6, 2)
    nowhere, useless = np.full((1, 3), np.inf), np.full((6, 1), np.inf)
    service = np.vstack([np.hstack([case.service_s, useless]), nowhere])
    release = np.vstack([np.hstack([case.release_s, useless]), nowhere])
    bound = completion_bound(np.append(case.arrival_s, 1.0), service, release, np.append(case.slots, 5))
    np.testing.assert_allclose(bound.totals_s, completion_bound(*case).totals_s, rtol=1e-9)
    with pytest.raises(UsageError, match=r"finished.*1 to 6"):
        bound.mean_for(7)


def test_service_that_takes_no_time():
    bound = completion_bound(np.zeros(3), np.zeros((3, 2)), np.zeros((3, 2)), [1, 1])
    assert bound.total_s == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service_s": np.full((2, 1), np.nan)}, "service_s.*NaN"),
        ({"service_s": np.full((2, 1), -1.0)}, "service_s.*zero or more"),
        ({"service_s": np.ones((2, 2))}, r"service_s.*shape \(2, 1\)"),
        ({"service_s": np.full((2, 1), np.inf)}, "no group of nodes"),
        ({"release_s": np.zeros((2, 1))}, "release_s.*before the arrival"),
        ({"arrival_s": np.zeros((2, 1))}, "arrival_s.*1 dimension"),
        ({"arrival_s": np.array([0.0, np.inf])}, "finite times|before the arrival"),
        ({"slots": np.array([1.5])}, "slots.*whole"),
        ({"iterations": -1}, "iterations"),
        ({"intervals": 0}, "intervals"),
    ],
)
def test_bad_tables_are_named(change, message):
    good = {
        "arrival_s": np.array([0.0, 1.0]),
        "service_s": np.ones((2, 1)),
        "release_s": np.array([[0.0], [1.0]]),
        "slots": np.array([1]),
    }
    with pytest.raises(UsageError, match=message):
        completion_bound(**(good | change))
