"""Which leases jobs of fixed widths hold before their deadlines: Chronus' integer programme.

Idea: leases between two successive deadlines are alike, so the programme counts how many of each such block a
job holds. The first lease is a block of its own: it is what is decided. A job earns the value of a deadline
if it holds all the leases that it needs before it. Blocks are laid out into leases, widest jobs first.
Source: Gao et al., Chronus, SoCC 2021, and the solver of its artifact.
Deviations: the source has one binary for each job and lease. A block is a relaxation: its totals fit, but not
every layout does. A block of up to 64 leases in which a job finds too few is taken apart into leases, and the
programme solved anew, up to six times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints

_NOW_WEIGHT = 0.5  # of all GPUs in the first lease, over the least step of value
_GAP = 1e-6  # of the value, that a solution may lack
_REFINEMENTS, _LONGEST = 6, 64  # solutions at most; leases of a block that is taken apart


@dataclass(frozen=True)
class LeaseProblem:
    """Jobs and the leases from now on."""

    gpus: Ints  # [jobs]
    need: Ints  # [jobs] leases
    last: Ints  # [jobs, deadlines] leases before each deadline, ascending
    value: Floats  # [jobs, deadlines] of having all the leases before it, falling
    capacity: int  # GPUs
    now: int  # 1 = as much as possible in the first lease; -1 = as little as possible


def leases_of_jobs(problem: LeaseProblem, time_limit_s: float) -> list[Ints] | None:
    """The leases that each job holds, ascending, [jobs]; None = HiGHS found no solution in time."""
    ends = np.unique(np.append(problem.last[problem.last > 0].ravel(), 1)).astype(np.int64)
    for _ in range(_REFINEMENTS):
        counts = _solved(problem, ends, time_limit_s)
        if counts is None:
            return None
        held, short = _laid_out(counts, problem, ends)
        lengths = np.diff(ends, prepend=0)
        short = [k for k in short if lengths[k] <= _LONGEST]
        if not short:
            break
        apart = [np.arange(ends[k] - lengths[k], ends[k]) for k in short]
        ends = np.unique(np.concatenate([ends, *apart]))
    return held


def value_of(problem: LeaseProblem, leases: list[Ints]) -> float:
    """Sum of the values that jobs earn with these leases."""
    total = 0.0
    for held, need, last, value in zip(leases, problem.need, problem.last, problem.value, strict=True):
        met = [v for m, v in zip(last, value, strict=True) if (held < m).sum() >= need]
        total += float(max(met, default=0.0))
    return total


def _solved(problem: LeaseProblem, ends: Ints, time_limit_s: float) -> Ints | None:
    """Leases of each job in each block, [jobs, blocks]; `ends` [blocks]: its last lease, plus one."""
    import highspy

    jobs, options = problem.last.shape
    length = np.diff(ends, prepend=0)
    blocks = len(ends)
    value, least_step = problem.value, _least_step(problem.value)
    now = problem.now * _NOW_WEIGHT * least_step * problem.gpus / problem.capacity
    held = np.zeros((jobs, blocks))
    held[:, 0] = now
    most = np.minimum(length, problem.need[:, None])
    most = np.where(ends <= problem.last.max(axis=1)[:, None], most, 0)
    widths = np.unique(problem.gpus)
    rows: list[tuple[Any, Any, float]] = []  # columns, factors, at most
    at = np.arange(jobs * blocks).reshape(jobs, blocks)
    meets = jobs * blocks + np.arange(jobs * options).reshape(jobs, options)
    for k in range(blocks):
        rows.append((at[:, k], problem.gpus.astype(float), float(problem.capacity * length[k])))
        for width in widths:
            wide = np.flatnonzero(problem.gpus >= width)
            fit = problem.capacity // width * length[k]
            rows.append((at[wide, k], np.ones(len(wide)), float(fit)))
    for j in range(jobs):
        rows.append((at[j], np.ones(blocks), float(problem.need[j])))
        rows.append((meets[j], np.ones(options), 1.0))
        for d in range(options):
            before = at[j, ends <= problem.last[j, d]]
            columns = np.concatenate([meets[j, : d + 1], before])
            factors = np.concatenate([np.full(d + 1, float(problem.need[j])), -np.ones(len(before))])
            rows.append((columns, factors, 0.0))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = jobs * (blocks + options), len(rows)
    lp.col_cost_ = -np.concatenate([held.ravel(), value.ravel()])
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.concatenate([most.ravel(), np.ones(jobs * options)]).astype(float)
    lp.row_lower_ = np.full(len(rows), -highspy.kHighsInf)
    lp.row_upper_ = np.array([limit for _, _, limit in rows])
    lp.integrality_ = [highspy.HighsVarType.kInteger] * lp.num_col_
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.append(0, np.cumsum([len(columns) for columns, _, _ in rows]))
    lp.a_matrix_.index_ = np.concatenate([columns for columns, _, _ in rows])
    lp.a_matrix_.value_ = np.concatenate([factors for _, factors, _ in rows])
    highs = highspy.Highs()
    options_of_solver = {"output_flag": False, "time_limit": time_limit_s, "threads": 1, "parallel": "off"}
    for name, setting in (options_of_solver | {"mip_rel_gap": _GAP}).items():
        highs.setOptionValue(name, setting)
    highs.passModel(lp)
    highs.run()
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    found = np.asarray(highs.getSolution().col_value)[: jobs * blocks]
    return np.rint(found).astype(np.int64).reshape(jobs, blocks)


def _least_step(value: Floats) -> float:
    steps = np.diff(np.concatenate([value, np.zeros((len(value), 1))], axis=1), axis=1)
    return float(np.abs(steps[steps < 0]).min(initial=1.0))


def _laid_out(counts: Ints, problem: LeaseProblem, ends: Ints) -> tuple[list[Ints], list[int]]:
    """Leases for the jobs of each block, widest and fullest first; and blocks that lack some."""
    held: list[list[Ints]] = [[] for _ in counts]
    short = []
    for k, (start, end) in enumerate(zip(np.append(0, ends[:-1]), ends, strict=True)):
        free = np.full(end - start, problem.capacity, np.int64)
        given = 0
        for j in np.lexsort((-counts[:, k], -problem.gpus)):
            best = np.argsort(-free, kind="stable")[: counts[j, k]]
            best = best[free[best] >= problem.gpus[j]]
            free[best] -= problem.gpus[j]
            held[j].append(start + np.sort(best))
            given += len(best)
        if given < counts[:, k].sum():
            short.append(k)
    return [np.concatenate(parts) for parts in held], short
