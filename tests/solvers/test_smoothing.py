"""The dual method: true bounds, chains that add up, feasible ends, proofs; compiled as interpreted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from support.gap_oracle import best_by_trying, check, random_problem
from trimtab.compiled.kernel import interpreted
from trimtab.solvers import AssignmentProblem, Status, assignment_problem, smoothing, solve
from trimtab.solvers.candidate_pairs import CandidatePairs, nearest, reduced, skip_costs
from trimtab.solvers.dual import Dual, _look, _move, climb, exact_value
from trimtab.solvers.ejection_chains import search
from trimtab.solvers.ejection_search import EjectionProblem, beam_of, eject_chains, ejection_state_of
from trimtab.solvers.rounding import rounded
from trimtab.solvers.smoothing import solve_by_dual


def tight_problem(
    seed: int, tasks: int, nodes: int, resources: int = 1, share: float = 0.8
) -> AssignmentProblem:
    """As type D of Chu and Beasley: what is cheap needs much; capacities are `share` of the mean demand."""
    draw = np.random.default_rng(seed)
    demand = draw.integers(5, 101, (tasks, nodes, resources))
    cost = 111 - demand.max(axis=2) + draw.integers(-10, 11, (tasks, nodes))
    return assignment_problem(cost, demand, share * demand.sum(axis=(0, 1)) / nodes**2 * np.ones((nodes, 1)))


def dual_value(problem: AssignmentProblem, prices: np.ndarray) -> float:
    """L(λ) = Σ_j min_i (cost + λ demand) − Σ λ capacity: a lower bound of the cost, for any λ ≥ 0."""
    price = prices[: problem.nodes]
    fits = (problem.demand <= problem.capacity).all(axis=2)
    cost = np.where(fits, problem.sign * problem.value + (problem.demand * price).sum(axis=2), np.inf)
    return float(np.minimum(cost.min(axis=1), skip_costs(problem)).sum() - (price * problem.capacity).sum())


def linear_bound(problem: AssignmentProblem) -> float:
    """Optimum of the linear relaxation."""
    tasks, nodes, resources = problem.demand.shape
    once = np.kron(np.eye(tasks), np.ones((1, nodes)))
    used = [np.kron(problem.demand[j, :, r], 1) for j in range(tasks) for r in range(resources)]
    rows = np.zeros((nodes * resources, tasks * nodes))
    for n, amounts in enumerate(used):
        j, r = divmod(n, resources)
        rows[np.arange(nodes) * resources + r, j * nodes + np.arange(nodes)] = amounts
    found = linprog(problem.value.ravel(), rows, problem.capacity.ravel(), once, np.ones(tasks))
    return float(found.fun)


@pytest.mark.parametrize("resources", [1, 3])
def test_the_dual_comes_close_to_the_linear_relaxation_from_below(resources):
    problem = tight_problem(0, 40, 6, resources, share=0.8 if resources == 1 else 1.0)
    free = np.zeros((7, resources))
    dual = climb(nearest(problem, free, 7), free)
    assert dual.value == pytest.approx(dual_value(problem, dual.prices), rel=1e-12)
    assert linear_bound(problem) * 0.997 < dual.value <= linear_bound(problem) + 1e-6


def test_any_prices_bound_the_optimum():
    problem = random_problem(3)
    best = best_by_trying(problem)
    draw = np.random.default_rng(0)
    for _ in range(20):
        assert dual_value(problem, np.vstack([draw.exponential(2.0, (3, 1)), [[0.0]]])) <= best + 1e-9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"maximise": True}, {"resources": 2}, {"optional": True}])
def test_small_problems_end_at_the_optimum(seed, options):
    problem = random_problem(seed, tasks=6, **options)
    best = best_by_trying(problem)
    solution = solve_by_dual(problem, time_limit_s=2.0)
    if math.isnan(best):
        assert solution.status is Status.INFEASIBLE
    else:
        assert solution.status is Status.OPTIMAL
        assert solution.objective == best
        check(problem, solution)
        assert ("dual by resource" in solution.method) <= (problem.demand.shape[2] == 1)


def test_a_tight_problem_within_its_time():
    problem = tight_problem(1, 60, 8)
    solution = solve(problem, time_limit_s=1.0)
    check(problem, solution)
    assert solution.gap_frac < 0.05
    assert solution.bound >= linear_bound(problem) * 0.999
    assert solution.status is Status.OPTIMAL or "time limit of 1 s" in solution.reason


def test_a_large_problem_and_its_warm_start():
    problem = tight_problem(2, 3_000, 20)
    cold = solve(problem, time_limit_s=10.0)
    check(problem, cold)
    assert cold.gap_frac < 0.02
    assert cold.method == "dual smoothing, ejection chains"
    value = problem.value.copy()
    value[:30] = value[30:60]
    changed = assignment_problem(value, problem.demand, problem.capacity)
    warm = solve(changed, time_limit_s=10.0, start=cold)
    check(changed, warm)
    assert warm.gap_frac < 0.02


def sized_problem(draw: np.random.Generator, tasks: int, nodes: int) -> AssignmentProblem:
    """As a scheduler's: tasks have a size, which is their demand, and nodes a speed."""
    size, speed = draw.lognormal(3.0, 0.8, tasks), draw.choice([1.0, 2.0, 4.0], nodes)
    cost = size[:, None] / speed * draw.uniform(0.7, 1.3, (tasks, nodes))
    demand = np.broadcast_to(size[:, None], (tasks, nodes)).copy()
    return assignment_problem(cost, demand, np.full(nodes, 1.1 * size.sum() / nodes))


def replaced(draw: np.random.Generator, problem: AssignmentProblem, count: int) -> AssignmentProblem:
    """The problem with some tasks replaced by copies of others."""
    tasks, others = draw.choice(problem.tasks, (2, count), replace=False)
    value, demand = problem.value.copy(), problem.demand.copy()
    value[tasks], demand[tasks] = value[others], demand[others]
    return assignment_problem(value, demand, problem.capacity)


def test_change_after_change_every_warm_start_is_near_enough(rng, monkeypatch):
    """Prices and positions that were good once are given up when they no longer do."""
    anew = []
    search_anew = smoothing._search_anew
    monkeypatch.setattr(smoothing, "_search_anew", lambda state: anew.append(state) or search_anew(state))
    problem = sized_problem(rng, 3_000, 20)
    solution = solve(problem)
    for _ in range(25):
        problem = replaced(rng, problem, 30)
        solution = solve(problem, start=solution)
        check(problem, solution)
        assert solution.gap_frac <= smoothing.NEAR_FRAC
    assert 1 <= len(anew) <= 12


def test_a_start_that_will_not_do_is_kept_for_want_of_better(rng, monkeypatch):
    problem = sized_problem(rng, 3_000, 20)
    start = solve(problem)
    monkeypatch.setattr(smoothing, "NEAR_FRAC", 0.0)
    monkeypatch.setattr(smoothing, "_search_broadly", lambda state: None)  # finds nothing
    solution = solve(problem, start=start)
    check(problem, solution)
    assert solution.objective <= start.objective * (1 + 1e-12)


def test_chains_pass_over_tasks_of_little_regret(rng):
    problem = sized_problem(rng, 200, 5)
    candidates = nearest(problem, np.zeros((6, 1)), 6)
    dual = climb(candidates, np.zeros((6, 1)))
    order, ends = np.arange(200, dtype=np.int32), []
    for least in (0.0, 1e9):
        choice = rounded(candidates, dual)
        at = ejection_state_of(choice, np.ones((6, 1)))
        eject_chains(ejection_problem_of(candidates, dual), at, beam_of(3, 4), order, least, 1.0)
        ends.append((choice == rounded(candidates, dual)).all())
    assert ends == [False, True]


@pytest.mark.parametrize("resources", [1, 3])
def test_a_step_of_the_climb_is_the_same_compiled_and_interpreted(resources):
    candidates = nearest(tight_problem(4, 30, 6, resources), np.zeros((7, resources)), 6)
    ends = []
    for look, move in ((_look, _move), (interpreted(_look), interpreted(_move))):
        point, prices, kept = (np.zeros((7, resources)) for _ in range(3))
        curvature, excess, paid, off = (np.empty((7, resources)) for _ in range(4))
        for _ in range(5):
            soft = look(*candidates[:4], point, 3.0, curvature, excess, paid, off)
            move(point, prices, kept, curvature, excess, 0.1, 1.5, np.full(resources, 2.0), 0.3)
        ends.append([np.array(soft), point, prices, kept, curvature, excess, paid, off])
    assert ends[0][1].max() > 0.0
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_large_search_does_not_end_while_there_is_overload(monkeypatch):
    """The first pass leaves some, and repair finds nothing: the search goes on."""
    calls = []
    monkeypatch.setattr(smoothing, "repaired", lambda *given: calls.append(given))
    monkeypatch.setattr(
        smoothing, "rounded", lambda candidates, dual: np.zeros(candidates.node.shape[0], np.int32)
    )
    monkeypatch.setattr("trimtab.solvers.primal_heuristic.MENDING_ROUNDS", 0)
    problem = tight_problem(8, 3_000, 20)
    solution = solve(problem, time_limit_s=20.0)
    assert calls
    check(problem, solution)


def ejection_problem_of(candidates: CandidatePairs, dual: Dual) -> EjectionProblem:
    """What a search of chains reads."""
    costs = reduced(candidates, dual.prices)
    return EjectionProblem(
        candidates.node, candidates.cost, costs, candidates.demand, candidates.capacity, dual.prices, 0.1
    )


def test_kernels_give_the_same_bits_interpreted():
    problem = tight_problem(5, 20, 4)
    free = np.zeros((5, 1))
    candidates = nearest(problem, free, 5)
    dual = climb(candidates, free)
    first = rounded(candidates, dual)
    ends = []
    for run in (lambda f: f, interpreted):
        choice, weight = first.copy(), dual.prices + 0.5
        worth = [
            run(eject_chains)(
                ejection_problem_of(candidates, dual),
                ejection_state_of(choice, weight),
                beam_of(3, 2),
                np.arange(20, dtype=np.int32),
                0.0,
                2.0,
            )
            for _ in range(2)
        ]
        best, draws = choice.copy(), np.random.default_rng(2).random((3, 4))
        cost = run(search)(
            candidates.node, candidates.cost, candidates.demand, candidates.capacity,
            5, 3, 2, 4, 0.99, 1.1, 1.0,
            choice, best, math.inf, weight, draws, 50,
        )  # fmt: skip
        ends.append((worth, cost, choice.tolist(), best.tolist(), weight.tolist()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("resources", [1, 2])
def test_a_pursuit_lowers_cost_and_overload_and_says_what_they_are(resources):
    problem = tight_problem(3, 60, 5, resources, share=0.8 if resources == 1 else 1.0)
    free = np.zeros((6, resources))
    candidates = nearest(problem, free, 6)
    dual = climb(candidates, free)
    at = ejection_state_of(np.zeros(60, np.int32), dual.prices + 5.0)
    last = math.inf
    for _ in range(4):
        cost, overload = eject_chains(
            ejection_problem_of(candidates, dual), at, beam_of(4, 3), np.arange(60, dtype=np.int32), 0.0, 1.0
        )
        assignment = candidates.nodes_of(at.choice)
        assert cost == problem.objective(assignment)
        excess = np.maximum(problem.load(assignment) - problem.capacity, 0.0)
        assert overload == pytest.approx((excess * at.weight[:5]).sum(), rel=1e-9)
        assert cost + overload <= last
        last = cost + overload


def test_a_pursuit_by_chains_of_two_leaves_no_move_and_no_exchange_that_gains():
    """With every column in reach and every open chain carried on, what is left is a local optimum."""
    problem = tight_problem(4, 30, 4)
    free = np.zeros((5, 1))
    candidates = nearest(problem, free, 5)
    dual = climb(candidates, free)
    board = ejection_problem_of(candidates, dual)._replace(reach=1e9)
    at = ejection_state_of(rounded(candidates, dual), dual.prices + 5.0)
    ends = [
        eject_chains(board, at, beam_of(2, 200), np.arange(30, dtype=np.int32), 0.0, 1.0) for _ in range(20)
    ]
    assert ends[-1] == ends[-2]

    def worth(choice):
        assignment = candidates.nodes_of(choice)
        excess = np.maximum(problem.load(assignment) - problem.capacity, 0.0)
        return problem.objective(assignment) + float((excess * at.weight[:4]).sum())

    node = candidates.node[np.arange(30), at.choice]
    for j in range(30):
        for k in range(4):
            moved = at.choice.copy()
            moved[j] = k
            assert worth(moved) >= sum(ends[-1]) - 1e-6
        for j2 in range(j):
            if node[j] != node[j2]:
                changed = at.choice.copy()
                changed[j] = np.flatnonzero(candidates.node[j] == node[j2])[0]
                changed[j2] = np.flatnonzero(candidates.node[j2] == node[j])[0]
                assert worth(changed) >= sum(ends[-1]) - 1e-6


def test_rounding_keeps_closer_to_capacities_than_the_cheapest_nodes_or_draws():
    problem = tight_problem(6, 2_000, 20)
    free = np.zeros((21, 1))
    candidates = nearest(problem, free, 21)
    dual = climb(candidates, free)

    def overload(columns):
        load = problem.load(candidates.nodes_of(columns))
        return float(np.maximum(load - problem.capacity, 0.0).sum())

    weight = np.exp(
        -(reduced(candidates, dual.prices) - reduced(candidates, dual.prices).min(axis=1)[:, None])
        / dual.softness
    )
    share = np.cumsum(weight / weight.sum(axis=1)[:, None], axis=1)
    drawn = (share < np.random.default_rng(0).random((2_000, 1))).sum(axis=1)
    cheapest = np.zeros(2_000, np.int32)
    assert overload(rounded(candidates, dual)) < 0.2 * min(overload(drawn), overload(cheapest))


def test_the_cost_that_a_search_returns_is_that_of_its_choice():
    problem = tight_problem(7, 30, 5)
    free = np.zeros((6, 1))
    candidates = nearest(problem, free, 6)
    dual = climb(candidates, free)
    choice = np.zeros(30, np.int32)
    best, weight = choice.copy(), dual.prices + 1.0
    draws = np.random.default_rng(0).random((40, 6))
    cost = search(
        candidates.node, candidates.cost, candidates.demand, candidates.capacity, 6, 4, 3, 6, 0.99, 1.2, 1.0,
        choice, best, math.inf, weight, draws, 1000,
    )  # fmt: skip
    assignment = candidates.nodes_of(best)
    assert problem.is_feasible(assignment)
    assert cost == problem.objective(assignment)
    assert exact_value(candidates, dual.prices) <= cost
