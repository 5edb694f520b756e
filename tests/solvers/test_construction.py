"""A first assignment: feasible where one is known to be, and what a search without time falls back on."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from support.gap_oracle import best_by_trying, check, random_problem
from trimtab.compiled.kernel import interpreted
from trimtab.solvers import (
    AssignmentProblem,
    Status,
    assignment_problem,
    candidate_pairs,
    compilation,
    construction,
    solve,
)
from trimtab.solvers.candidate_pairs import nearest
from trimtab.solvers.construction import construct_assignment
from trimtab.solvers.dual import climb
from trimtab.solvers.ejection_chains import search
from trimtab.solvers.ejection_search import eject_chains
from trimtab.solvers.primal_heuristic import Incumbent
from trimtab.solvers.rounding import rounded
from trimtab.solvers.solve import solve_exact


def planted_problem(
    kind: str, nodes: int, tasks: int, used: float, *, maximise: bool = False, optional: bool | None = None
) -> AssignmentProblem:
    """As types C, D, E or a scheduler's; an assignment that was drawn uses the share `used` of each node.

    Each task is on one of the two nodes where it needs least, so that there is little room for mistakes.
    """
    draw = np.random.default_rng(0)
    if kind == "e":
        demand = np.rint(1 - 10 * np.log(1 - draw.random((tasks, nodes))))
        cost = np.rint(1000 / demand - 10 * draw.random((tasks, nodes)))
    elif kind == "scheduler":
        demand = np.tile(np.rint(10 * draw.lognormal(3.0, 0.8, (tasks, 1))), nodes)
        cost = demand / draw.choice([1.0, 2.0, 4.0], nodes) * draw.uniform(0.7, 1.3, (tasks, nodes))
    else:
        demand = draw.integers(5, 26 if kind == "c" else 101, (tasks, nodes))
        cost = draw.integers(10, 51, (tasks, nodes)) if kind == "c" else 111 - demand
    two = (demand + 1e-6 * draw.random(demand.shape)).argsort(axis=1)[:, :2]
    chosen = two[np.arange(tasks), draw.integers(0, 2, tasks)]
    load = np.bincount(chosen, demand[np.arange(tasks), chosen], nodes)
    value = -cost if maximise else cost
    problem = assignment_problem(value, demand, np.ceil(load / used), maximise=maximise, optional=optional)
    assert problem.is_feasible(chosen)
    return problem


KINDS_AND_USE = [("c", 0.95), ("d", 0.95), ("d", 0.99), ("e", 0.95), ("e", 0.99), ("scheduler", 0.99)]


@pytest.mark.parametrize(("kind", "used"), KINDS_AND_USE)
@pytest.mark.parametrize(("nodes", "tasks"), [(5, 100), (20, 400), (50, 3_000)])
def test_tight_problems_of_all_types_get_an_assignment_without_prices(kind, used, nodes, tasks):
    problem = planted_problem(kind, nodes, tasks, used)
    assignment = construct_assignment(problem, np.zeros((nodes + 1, 1)))
    assert assignment is not None
    assert problem.is_feasible(assignment)


@pytest.mark.parametrize(("kind", "used"), KINDS_AND_USE)
@pytest.mark.parametrize("tasks", [300, 3_000])
@pytest.mark.parametrize("maximise", [False, True])
def test_a_search_without_any_time_ends_with_an_assignment(kind, used, tasks, maximise):
    problem = planted_problem(kind, 20, tasks, used, maximise=maximise, optional=False)
    solution = solve(problem, time_limit_s=1e-9)
    assert solution.has_assignment
    check(problem, solution)


def test_the_whole_programme_by_highs_falls_back_on_it_too():
    problem = planted_problem("d", 5, 40, 0.95)
    solution = solve_exact(problem, time_limit_s=1e-9)
    assert solution.has_assignment
    check(problem, solution)


class Clock:
    """Every look at it takes a while."""

    def __init__(self, step_s: float = 0.01) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.mark.parametrize("limit_s", [0.1, 0.5, 1.0])
def test_a_search_that_its_time_ends_anywhere_has_an_assignment(limit_s, monkeypatch):
    """The time is counted in looks at the clock, so that the search ends at another place for each limit."""
    monkeypatch.setattr(time, "perf_counter", Clock())
    problem = planted_problem("d", 20, 3_000, 0.97)
    check(problem, solve(problem, time_limit_s=limit_s))


def test_parts_of_a_round_do_not_grow_for_ever_while_there_is_little_to_do(monkeypatch):
    """Under a clock that stands, each full part is quadrupled; there are none beyond the number of tasks."""
    problem = planted_problem("d", 4, 60, 0.95)
    free = np.zeros((5, 1))
    candidates = nearest(problem, free, 5)
    dual = climb(candidates, free)
    incumbent = Incumbent(candidates, dual, rounded(candidates, dual), np.random.default_rng(0))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    for _ in range(600):
        incumbent.eject_chains(1, 1)
    assert math.isfinite(incumbent.cost)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("options", [{}, {"maximise": True}, {"resources": 2}, {"optional": True}])
def test_what_is_returned_for_small_problems_is_feasible_and_never_where_nothing_is(seed, options):
    problem = random_problem(seed, **options)
    assignment = construct_assignment(problem, np.zeros((4, options.get("resources", 1))))
    if assignment is not None:
        assert problem.is_feasible(assignment)
    assert assignment is None or not math.isnan(best_by_trying(problem))


def test_a_task_is_put_in_where_another_makes_way():
    """Task 2 fits on node 0 alone, which the larger ones fill; one of them has to go to node 1."""
    demand = [[6.0, 6.0], [5.0, 5.0], [4.0, 9.0]]
    problem = assignment_problem([[0.0, 1.0], [0.0, 9.0], [0.0, 0.0]], demand, [11.0, 6.0])
    assert construct_assignment(problem, np.zeros((3, 1))).tolist() in ([1, 0, 0], [0, 1, 0])


def test_forbidden_pairs_are_not_used():
    value = [[math.inf, 3.0], [1.0, math.inf], [2.0, 2.0]]
    problem = assignment_problem(value, np.ones((3, 2)), [1.0, 2.0])
    assert construct_assignment(problem, np.zeros((3, 1))).tolist() == [1, 0, 1]


def test_none_where_there_is_none():
    problem = assignment_problem(np.ones((3, 2)), np.full((3, 2), 2.0), [3.0, 3.0])
    assert construct_assignment(problem, np.zeros((3, 1))) is None
    assert solve(problem).status is Status.INFEASIBLE


def test_kernels_give_the_same_bits_interpreted(monkeypatch):
    problem = planted_problem("e", 4, 60, 0.99)
    compiled = construct_assignment(problem, np.zeros((5, 1)))
    for name in ("_least_share", "_place", "_make_way", "eject_chains"):
        monkeypatch.setattr(construction, name, interpreted(getattr(construction, name)))
    assert construct_assignment(problem, np.zeros((5, 1))).tolist() == compiled.tolist()


def test_nothing_is_left_to_compile_once_the_solvers_are():
    """A limit is for solving; a search of each sort and precision finds all its kernels."""
    compilation._use_prices()  # loads what is in the cache
    compilation._use_exchanges()
    kernels = (search, eject_chains, construction._place, construction._make_way, candidate_pairs._nearest)
    before = [set(kernel.signatures) for kernel in kernels]
    for kind in (np.float32, np.float64):
        for tasks in (300, 3_000):
            planted = planted_problem("d", 20, tasks, 0.97)
            problem = assignment_problem(
                planted.value.astype(kind), planted.demand.astype(kind), planted.capacity
            )
            check(problem, solve(problem, time_limit_s=0.2))
    assert [set(kernel.signatures) for kernel in kernels] == before


@pytest.mark.parametrize("seed", range(4))
def test_chains_place_what_has_no_node_where_nodes_are_few(seed: int) -> None:
    """Fewer nodes than chains look at: rows end with pairs that are not there, none of them a place."""
    rng = np.random.default_rng(seed)
    demand = rng.integers(5, 30, (40, 5)).astype(float)
    planted = rng.integers(0, 5, 40)
    capacity = np.bincount(planted, demand[np.arange(40), planted], 5) * 1.06 + 1.0
    problem = assignment_problem(rng.integers(10, 50, (40, 5)).astype(float), demand, capacity)
    partly = np.where(np.arange(40) < 6, -1, planted).astype(np.int32)
    whole = construction._uncrowded(problem, partly, np.full((6, 1), 1e4), math.inf)
    assert whole is not None
    assert problem.is_feasible(whole)
