"""Proofs that a problem has no assignment, without a search."""

from __future__ import annotations

import numpy as np

from trimtab.solvers.problem import TOLERANCE_FRAC, AssignmentProblem, BoolArray

CHUNK_PAIRS = 1 << 22  # pairs looked at at a time: flat memory


def usable(problem: AssignmentProblem, begin: int, end: int) -> BoolArray:
    """[tasks from begin to end, nodes] whether a task may use a node and fits on it alone."""
    room = problem.capacity * (1 + TOLERANCE_FRAC)
    fits = (problem.demand[begin:end] <= room).all(axis=2)
    return np.asarray(fits & np.isfinite(problem.value[begin:end]))


def why_infeasible(problem: AssignmentProblem) -> str:
    """The first constraint that is provably violated, in words; empty if none is found."""
    if problem.optional.all():
        return ""
    least = np.zeros(problem.capacity.shape[1])
    step = max(1, CHUNK_PAIRS // problem.nodes)
    for begin in range(0, problem.tasks, step):
        end = min(begin + step, problem.tasks)
        may = usable(problem, begin, end)
        stuck = np.flatnonzero(~may.any(axis=1) & ~problem.optional[begin:end])
        if stuck.size:
            return _stuck(problem, begin + int(stuck[0]))
        needed = np.where(may[..., None], problem.demand[begin:end], np.inf).min(axis=1)
        least += needed[~problem.optional[begin:end]].sum(axis=0, dtype=np.float64)
    return _too_little(problem, least)


def _stuck(problem: AssignmentProblem, task: int) -> str:
    allowed = np.isfinite(problem.value[task])
    if not allowed.any():
        return f"task {task} is forbidden on every node"
    node = int(np.flatnonzero(allowed)[np.argmax(problem.capacity[allowed].min(axis=1))])
    demand, capacity = problem.demand[task, node], problem.capacity[node]
    resource = int(np.argmax(demand - capacity))
    which = f" of resource {resource}" if capacity.size > 1 else ""
    return (
        f"task {task} fits on no node that it may use: on node {node} it needs {demand[resource]:g}{which}, "
        f"and the node has {capacity[resource]:g}"
    )


def _too_little(problem: AssignmentProblem, least: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    total = problem.capacity.sum(axis=0)
    short = np.flatnonzero(least > total * (1 + TOLERANCE_FRAC))
    if not short.size:
        return ""
    resource = int(short[0])
    which = f" of resource {resource}" if total.size > 1 else ""
    return (
        f"the tasks need at least {least[resource]:g}{which} together, wherever they go, "
        f"and the capacities of all nodes add up to {total[resource]:g}"
    )
