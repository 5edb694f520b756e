"""Chronus' integer programme against brute force and the greedy packer, and soft deadlines by hand."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from support.training_runs import jobs_of, run_of
from trimtab.training.allocators.chronus import packed
from trimtab.training.allocators.shared.lease_programme import LeaseProblem, leases_of_jobs, value_of


def problem_of(seed: int, now: int = 1) -> LeaseProblem:
    """Four jobs on four GPUs, each with a deadline within five leases and a later one of half its value."""
    rng = np.random.default_rng(seed)
    last = np.sort(rng.integers(1, 6, (4, 2)), axis=1)
    value = np.array([1.0, 0.5]) * rng.integers(1, 4, (4, 1))
    return LeaseProblem(rng.choice([1, 2, 4], 4), rng.integers(1, 4, 4), last, value, 4, now)


def best_value(problem: LeaseProblem) -> float:
    """The largest sum of values, over all sets of jobs in each of the leases."""
    n = len(problem.gpus)
    sets = [s for s in product((0, 1), repeat=n) if np.dot(s, problem.gpus) <= problem.capacity]

    def earned(j: int, lease: int) -> float:
        met = [v for m, v in zip(problem.last[j], problem.value[j], strict=True) if lease < m]
        return float(max(met, default=0.0))

    @cache
    def best(lease: int, left: tuple[int, ...]) -> float:
        if lease == problem.last.max():
            return 0.0
        found = 0.0
        for runs in sets:
            after = tuple(max(k - r, 0) for k, r in zip(left, runs, strict=True))
            ends = [j for j in range(n) if left[j] > 0 == after[j]]
            found = max(found, sum(earned(j, lease) for j in ends) + best(lease + 1, after))
        return found

    return best(0, tuple(int(k) for k in problem.need))


@pytest.mark.parametrize("seed", range(20))
def test_the_programme_earns_what_brute_force_earns(seed: int) -> None:
    problem = problem_of(seed)
    leases = leases_of_jobs(problem, 30.0)
    assert leases is not None
    used = np.zeros(int(problem.last.max()), np.int64)
    for held, gpus in zip(leases, problem.gpus, strict=True):
        assert len(set(held.tolist())) == len(held)
        used[held] += gpus
    assert (used <= problem.capacity).all()
    assert value_of(problem, leases) == pytest.approx(best_value(problem))


@pytest.mark.parametrize("seed", range(20))
def test_what_the_greedy_packer_fits_the_programme_fits_too(seed: int) -> None:
    problem = problem_of(seed)
    one = LeaseProblem(problem.gpus, problem.need, problem.last[:, :1], np.ones((4, 1)), problem.capacity, 1)
    leases = leases_of_jobs(one, 30.0)
    assert leases is not None
    fits, _ = packed(one.gpus, one.need, one.last[:, 0], one.capacity)
    assert value_of(one, leases) >= fits.sum()


def test_the_first_lease_holds_as_much_as_possible_or_as_little() -> None:
    for now, expected in ((1, 4), (-1, 0)):
        two = LeaseProblem(np.array([2, 2]), np.array([2, 2]), np.array([[4], [4]]), np.ones((2, 1)), 4, now)
        leases = leases_of_jobs(two, 30.0)
        assert leases is not None
        assert 2 * sum(0 in held for held in leases) == expected


def admitted(allocator: str, **more: Any) -> list[bool]:
    # one GPU, leases of 240 s: two each, with margin; the second job finds none before 480 s
    workload = jobs_of([0.0, 0.0], [300.0, 300.0], deadline_s=[480.0, 480.0])
    return list(run_of(workload, allocator, nodes=[1], **more).admitted.tolist())


def test_a_job_is_promised_a_soft_deadline_or_a_later_one() -> None:
    assert admitted("chronus") == [True, False]
    assert admitted("chronus(later=1.5)") == [True, False]
    assert admitted("chronus(later=1.5/2)") == [True, True]
    assert admitted("chronus(extends=true)") == [True, True]


@pytest.mark.parametrize("select", ["programme", "greedy"])
def test_promises_are_kept(select: str) -> None:
    rng = np.random.default_rng(3)
    work = rng.uniform(200.0, 1500.0, 12)
    gpus = rng.choice([1, 2, 4], 12)
    submit_s = np.sort(rng.uniform(0.0, 3000.0, 12))
    speed = np.array([1.0, 1.8, 3.0])[np.log2(gpus).astype(int)]
    due = submit_s + 480.0 + work / speed * rng.uniform(1.2, 4.0, 12)
    run = run_of(jobs_of(submit_s, work, gpus, deadline_s=due, scales=False), f"chronus(select={select})")
    assert run.admitted.sum() > 6
    assert run.on_time[run.admitted].all()
