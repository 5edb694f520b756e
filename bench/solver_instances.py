"""Generated assignment problems: types C, D and E of the literature, and one like a scheduler's."""

from __future__ import annotations

import numpy as np

from trimtab.solvers import AssignmentProblem, assignment_problem

KINDS = ("c", "d", "e", "scheduler")


def instance(kind: str, nodes: int, tasks: int, seed: int) -> AssignmentProblem:
    """A problem of a kind.

    C and D are those of Chu and Beasley (Computers & OR 24(1), 1997), E is that of Yagiura, Yamaguchi and
    Ibaraki (in Meta-Heuristics, Kluwer, 1999). `scheduler`: tasks have a size, nodes a speed; the cost is the
    service time, with a part of its own for every pair, the demand is the size.
    """
    draw = np.random.default_rng(seed)
    if kind == "scheduler":
        return _scheduler(nodes, tasks, draw)
    if kind == "e":
        demand = np.rint(1 - 10 * np.log(1 - draw.random((tasks, nodes)))).astype(np.float32)
        cost = np.rint(1000 / demand - 10 * draw.random((tasks, nodes)))
    else:
        demand = draw.integers(5, 26 if kind == "c" else 101, (tasks, nodes)).astype(np.float32)
        if kind == "c":
            cost = draw.integers(10, 51, (tasks, nodes))
        else:
            cost = 111 - demand + draw.integers(-10, 11, (tasks, nodes))
    capacity = np.floor(0.8 * demand.sum(axis=0, dtype=np.float64) / nodes)
    return assignment_problem(cost.astype(np.float32), demand, capacity)


def _scheduler(nodes: int, tasks: int, draw: np.random.Generator) -> AssignmentProblem:
    size = draw.lognormal(3.0, 0.8, tasks).astype(np.float32)
    speed = draw.choice([1.0, 2.0, 4.0], nodes).astype(np.float32)
    affinity = draw.uniform(0.7, 1.3, (tasks, nodes)).astype(np.float32)
    cost = size[:, None] / speed * affinity
    demand = np.ascontiguousarray(np.broadcast_to(size[:, None], (tasks, nodes)))
    capacity = np.full(nodes, 1.1 * float(size.sum(dtype=np.float64)) / nodes)
    return assignment_problem(cost, demand, capacity)
