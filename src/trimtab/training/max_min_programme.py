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

from trimtab.domain.training_jobs import Floats, Ints

_SUM_WEIGHT = 1e-6  # of the sum of gains beside the least one: among equal solutions, the largest sum
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
        solution = _raised(rows, limits, gain, active, held)
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


def _raised(rows: Any, limits: Floats, gain: Any, active: Any, held: Floats) -> Any:
    """Shares, level and prices with the largest least gain of the active jobs; None = no solution."""
    from scipy.optimize import linprog
    from scipy.sparse import block_array, csr_array

    level = csr_array(np.append(np.zeros(len(limits)), active.astype(np.float64))[:, None])
    left: Any = block_array([[rows], [-gain]])
    bound = np.concatenate([limits, np.where(active, 0.0, -held * (1.0 - 1e-9))])
    cost = np.append(-_SUM_WEIGHT * gain.T.dot(active.astype(np.float64)), -1.0)
    solved: Any = linprog(cost, A_ub=block_array([[left, level]]).tocsr(), b_ub=bound, method="highs")
    if solved.x is None:
        return None
    price = -np.asarray(solved.ineqlin.marginals)[len(limits) :]
    return solved.x[:-1], float(solved.x[-1]), price
