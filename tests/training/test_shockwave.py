"""Shockwave's programme against a solver, its expectation by hand, and its rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from support.training_runs import jobs_of, run_of
from trimtab.domain.allocator import Epochs
from trimtab.training.allocators.shared.window_plans import WindowProblem, laid_out, rounds_of_jobs
from trimtab.training.allocators.shockwave import posterior_left_s


def random_problem(seed: int, jobs: int = 12, rounds: int = 8, gpus: int = 8) -> WindowProblem:
    rng = np.random.default_rng(seed)
    gain = -np.sort(-rng.exponential(0.02, (jobs, rounds)), axis=1)
    utility = np.concatenate([np.zeros((jobs, 1)), np.cumsum(gain, axis=1)], axis=1)
    needs_s = rng.exponential(600.0, jobs)
    remaining_s = np.maximum(needs_s[:, None] - 120.0 * np.arange(rounds + 1), 0.0)
    least = rng.integers(0, 2, jobs)
    return WindowProblem(utility, remaining_s, least, rng.choice([1, 2, 4, 8], jobs), gpus, 1e-3)


def by_solver(problem: WindowProblem) -> float:
    """The optimum: a binary variable for each job and number of rounds, and the longest remaining time."""
    jobs, options = problem.utility.shape
    n = jobs * options
    one = np.kron(np.identity(jobs), np.ones(options))
    used = (problem.width[:, None] * np.arange(options)).ravel()
    longest = np.zeros((jobs, n))
    for j in range(jobs):
        longest[j, j * options : (j + 1) * options] = problem.remaining_s[j]
    upper = np.append((np.arange(options) >= problem.least[:, None]).ravel().astype(float), np.inf)
    solved: Any = milp(
        np.append(-problem.utility.ravel(), problem.weight),
        integrality=np.append(np.ones(n), 0),
        bounds=Bounds(0, upper),
        constraints=[
            LinearConstraint(np.hstack([one, np.zeros((jobs, 1))]), 1, 1),
            LinearConstraint(np.append(used, 0.0)[None, :], -np.inf, problem.gpus * problem.rounds),
            LinearConstraint(np.hstack([longest, -np.ones((jobs, 1))]), -np.inf, 0),
        ],
    )
    return -float(solved.fun) if solved.x is not None else -np.inf


def test_rounds_against_the_optimum() -> None:
    missing = []
    for seed in range(8):
        problem = random_problem(seed)
        optimum, found = by_solver(problem), rounds_of_jobs(problem)
        if found is None:
            assert optimum == -np.inf
            continue
        assert (found >= problem.least).all()
        assert (problem.width * found).sum() <= problem.gpus * problem.rounds
        assert problem.value(found) <= optimum + 1e-9
        missing.append(optimum - problem.value(found))
    assert len(missing) >= 6
    assert np.mean(missing) < 0.01  # of values around 1: what the last GPUs could have gained
    assert max(missing) < 0.05


def test_too_many_promises_can_not_be_kept() -> None:
    problem = random_problem(0)
    full = np.full(len(problem.least), problem.rounds)
    tight = WindowProblem(problem.utility, problem.remaining_s, full, problem.width, problem.gpus, 1e-3)
    assert rounds_of_jobs(tight) is None


def test_rounds_are_laid_out_within_the_gpus_and_by_priority() -> None:
    rounds, width = np.array([3, 1, 2, 1]), np.array([1, 1, 1, 1])
    runs = laid_out(rounds, width, 2, 4, np.array([1.0, 1.0, 1.0, 9.0]))
    assert (runs.sum(axis=0) <= 2).all()
    assert runs.sum(axis=1).tolist() == [3, 1, 2, 1]
    assert runs[3].tolist() == [True, False, False, False]


def test_most_of_what_fits_is_laid_out() -> None:
    wanted, given = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        width = rng.choice([1, 2, 4, 8], 30)
        rounds, free = np.zeros(30, np.int64), 16 * 10
        for job in rng.permutation(30):
            rounds[job] = min(int(rng.integers(0, 11)), free // width[job])
            free -= rounds[job] * width[job]
        runs = laid_out(rounds, width, 16, 10, rng.exponential(1.0, 30))
        assert ((runs * width[:, None]).sum(axis=0) <= 16).all()
        assert (runs.sum(axis=1) <= rounds).all()
        wanted, given = wanted + int((rounds * width).sum()), given + int((runs.sum(axis=1) * width).sum())
    assert given >= 0.85 * wanted  # of windows without a GPU to spare


def test_what_is_left_by_hand() -> None:
    # ten epochs, two regimes of 10 and 20 s; two done and the third begun in the first one.
    # Prior 5 and 5, with what was seen 8 and 5: of ten epochs 80/13 and 50/13; less those seen 41/13, 50/13
    seen = Epochs(10, 2, np.zeros(3, np.int64), np.array([10.0, 20.0]), 1.0, 1.0)
    assert posterior_left_s(seen) == pytest.approx((41 / 13 * 10 + 50 / 13 * 20) * 8 / 8)
    assert posterior_left_s(Epochs(10, 10, np.zeros(10, np.int64), np.array([10.0]), 1.0, 1.0)) == 1.0


def test_the_longest_job_is_not_left_to_the_end() -> None:
    # two GPUs; one long job and four short ones: the makespan is that of the long one from the start
    work = [2400.0, 600.0, 600.0, 600.0, 600.0]
    run = run_of(jobs_of([0.0] * 5, work, scales=False), "shockwave", nodes=[2])
    assert run.finish_s.max() <= 2400.0 + 240.0
    assert run_of(jobs_of([0.0] * 5, work, scales=False), "sjf", nodes=[2]).finish_s.max() >= 3000.0
