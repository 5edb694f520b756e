"""Max-min fair shares of time as linear programmes, of jobs alone and of pairs, by water filling.

The least of the jobs' effective speeds is made as large as possible. Jobs that hold it there keep that level;
then the least of the others is raised, and so on. A job holds the level if its constraint has a price: a
positive dual value says that no solution gives it more without giving another less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.training_jobs import Floats, Ints

_STEPS = 60  # of each bisection
LEAST_WORK = 1e-9  # left of a job that goes on longer than it declared


def central_shares(least: Floats, gpus: Floats, capacity: float) -> Floats:
    """Shares [jobs] of one type of GPU with the given least ones, `gpus` each, in so many GPUs."""
    least = np.minimum(least, 1.0)
    share, open_rows = least.copy(), np.flatnonzero(least < 1.0 - 1e-9)
    room = capacity - float((gpus * least).sum())
    if room <= 1e-9 * capacity or not len(open_rows):
        return share
    low, weight = least[open_rows], gpus[open_rows]
    rest = capacity - float((gpus * least).sum()) + float((weight * low).sum())
    cheap, dear = 0.0, 1e12  # price of a GPU's time: 1 / what is left of it
    for _ in range(2 * _STEPS):
        if dear <= cheap * (1.0 + 1e-15):
            break
        price = np.sqrt(cheap * dear) if cheap > 0 else dear * 1e-6
        left = rest - float((weight * _at_price(low, weight, price)).sum())
        if left > 0 and price * left >= 1.0:
            dear = price
        else:
            cheap = price
    share[open_rows] = _at_price(low, weight, dear)
    return share


def _at_price(least: Floats, gpus: Floats, price: float) -> Floats:
    """Where 1/(x − least) + 1/x − 1/(1 − x) = gpus · price, by bisection."""
    share = np.empty_like(least)
    _bisect(least, gpus * price, share)
    return share


@kernel
def _bisect(least: Any, cost: Any, share: Any) -> Any:
    for i in range(len(least)):
        low, high = least[i], 1.0
        for _ in range(_STEPS):
            x = 0.5 * (low + high)
            if x <= least[i] or (x < 1.0 and 1.0 / (x - least[i]) + 1.0 / x - 1.0 / (1.0 - x) > cost[i]):
                low = x
            else:
                high = x
        share[i] = low
    return 0


_SUM_WEIGHT = 1e-6  # of the sum of gains beside the least one: among equal solutions, the largest sum
_MOST_GAIN = 1e6  # of a job, over that of the one with the least; a larger one needs next to no time
_PRICED = 1e-3  # a dual value above it; the sum's are below


@dataclass(frozen=True)
class ShareProblem:
    """Combinations of jobs, and what each does for its jobs on each type."""

    members: Sequence[tuple[int, ...]]  # [combinations] rows
    gain: Sequence[Floats]  # [combinations] of [members, types]: effective speed of each with all the time
    gpus: Ints  # [combinations]
    type_gpus: Ints  # [types]
    n_jobs: int


def water_filled(problem: ShareProblem, levels: int) -> Floats:
    """Shares [combinations, types], max-min fair to so many levels; the last level is a plain max-min."""
    rows, limits, gain = _constraints(problem)
    active = np.ones(problem.n_jobs, np.bool_)
    held, found = np.zeros(problem.n_jobs), np.zeros(gain.shape[1])
    for _ in range(levels):
        solution = _raised(rows, limits, gain, active, held, gain.T.dot(active.astype(np.float64)))
        if solution is None:
            break
        found, level, price = solution
        priced = active & (price > _PRICED)
        held = np.where(active, level, held)
        active &= ~priced
        if not priced.any() or not active.any():
            break
    shares: Floats = found.reshape(len(problem.members), -1)
    return shares


def most_at_once(gain: Floats, gpus: Floats, type_gpus: Floats) -> Floats:
    """Shares [jobs, types] with the largest least Σ gain · share, gain [jobs, types] with all of the time."""
    fastest = np.maximum(gain.max(axis=1, keepdims=True), 1e-300)
    scaled = np.minimum(gain / fastest.min(), _MOST_GAIN)
    alone = [(row,) for row in range(len(gain))]
    asked, there = np.asarray(gpus, np.int64), np.asarray(type_gpus, np.int64)
    problem = ShareProblem(alone, list(scaled[:, None, :]), asked, there, len(gain))
    rows, limits, of_jobs = _constraints(problem)
    active = np.ones(len(gain), np.bool_)
    solution = _raised(rows, limits, of_jobs, active, np.zeros(len(gain)), (gain / fastest).ravel())
    return np.zeros(gain.shape) if solution is None else solution[0].reshape(gain.shape)


def _constraints(problem: ShareProblem) -> tuple[Any, Floats, Any]:
    """Time of each job and GPUs of each type as rows of a matrix, their limits; gains of jobs as a matrix."""
    from scipy.sparse import coo_array

    types = len(problem.type_gpus)
    columns = np.arange(len(problem.members) * types).reshape(-1, types)
    at, to, value, worth = [], [], [], []
    for c, (members, gain) in enumerate(zip(problem.members, problem.gain, strict=True)):
        for k, row in enumerate(members):
            at += [row] * types
            to += columns[c].tolist()
            value += [1.0] * types
            worth += gain[k].tolist()
    shape = (problem.n_jobs + types, columns.size)
    gpus_at = problem.n_jobs + np.tile(np.arange(types), len(columns))
    used = np.repeat(problem.gpus.astype(np.float64), types)
    index = (np.concatenate([at, gpus_at]), np.concatenate([to, columns.ravel()]))
    rows = coo_array((np.concatenate([value, used]), index), shape=shape).tocsr()
    limits = np.concatenate([np.ones(problem.n_jobs), problem.type_gpus])
    gain_rows = coo_array((worth, (at, to)), shape=(problem.n_jobs, columns.size)).tocsr()
    return rows, limits, gain_rows


def _raised(rows: Any, limits: Floats, gain: Any, active: Any, held: Floats, worth: Floats) -> Any:
    """Shares, level and prices with the largest least gain of the active jobs; None = no solution.

    `worth` of each share decides among equal levels.
    """
    from scipy.optimize import linprog
    from scipy.sparse import block_array, csr_array

    level = csr_array(np.append(np.zeros(len(limits)), active.astype(np.float64))[:, None])
    left: Any = block_array([[rows], [-gain]])
    bound = np.concatenate([limits, np.where(active, 0.0, -held * (1.0 - 1e-9))])
    cost = np.append(-_SUM_WEIGHT * worth, -1.0)
    solved: Any = linprog(cost, A_ub=block_array([[left, level]]).tocsr(), b_ub=bound, method="highs")
    if solved.x is None:
        return None
    price = -np.asarray(solved.ineqlin.marginals)[len(limits) :]
    return solved.x[:-1], float(solved.x[-1]), price
