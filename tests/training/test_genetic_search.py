"""The genetic search against all allocations of a small cluster, its order against a naive one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from support.replay_profiles import toy_jobs, toy_profile
from trimtab.compiled.kernel import interpreted, kernel
from trimtab.domain.training_jobs import gpu_nodes
from trimtab.training.allocator_catalogue import clock_of, find_allocator, placement_of
from trimtab.training.allocators.shared.genetic_search import SearchProblem, pareto_order, search_allocation
from trimtab.training.restart_costs import FlatRestart
from trimtab.training.training_loop import Setup, run_jobs
from trimtab.training.truths.replay_truth import ReplayTruth


def problem(rng: np.random.Generator, jobs: int = 3, **more: Any) -> SearchProblem:
    """Three jobs, two nodes with two GPUs."""
    gpus = np.arange(5)
    speedup = np.minimum(gpus, rng.uniform(1, 4, (jobs, 2, 1))) * np.array([[[1.0], [0.8]]])
    cost = 1.0 / (speedup + 1e-3)
    columns: dict[str, Any] = {
        "present": np.zeros((jobs, 2), np.int64),
        "capacity": np.full(2, 2),
        "least": np.ones(jobs, np.int64),
        "most": np.full(jobs, 4),
        "fixed": np.zeros(jobs, np.bool_),
        "cost": cost,
        "moved_cost": 1.1 * cost,
        "speedup": speedup,
    } | more
    return SearchProblem(**columns)


def cost_of(p: SearchProblem, rows: Any) -> float:
    """Infinite for an allocation that breaks a rule."""
    spread = (rows > 0).sum(axis=1) > 1
    counts = rows.sum(axis=1)
    crowded = ((rows > 0) & spread[:, None]).sum(axis=0) > 1
    few = (counts > 0) & (counts < p.least)
    moved = (rows != p.present).any(axis=1)
    if (rows.sum(axis=0) > p.capacity).any() or crowded.any() or few.any() or (counts > p.most).any():
        return np.inf
    if (moved & p.fixed).any():
        return np.inf
    at = np.arange(len(rows)), spread.astype(int), counts
    return float(np.where(moved, p.moved_cost[at], p.cost[at]).sum())


def every_allocation(jobs: int) -> Any:
    for flat in itertools.product(range(3), repeat=2 * jobs):
        yield np.array(flat).reshape(jobs, 2)


def test_the_best_of_all_allocations_is_found(rng: np.random.Generator) -> None:
    for k in range(6):
        more: dict[str, Any] = {}
        if k == 1:
            more = {"least": np.array([2, 1, 3])}
        if k == 2:
            more = {"present": np.array([[0, 1], [1, 0], [0, 0]]), "fixed": np.array([True, False, False])}
        if k == 3:
            more = {"most": np.array([1, 2, 1])}
        if k == 4:
            more = {"capacity": np.array([0, 2])}
        p = problem(rng, **more)
        found = search_allocation(p, p.present[None].astype(np.int8), 100, k)
        assert all(cost_of(p, rows.astype(np.int64)) < np.inf for rows in found)
        best = min(cost_of(p, rows) for rows in every_allocation(3))
        assert cost_of(p, found[0].astype(np.int64)) == best


def test_compiled_and_interpreted_searches_are_equal(rng: np.random.Generator) -> None:
    from trimtab.training.allocators.shared import genetic_search

    p = problem(rng)
    plain = interpreted(genetic_search._evolve)
    first = [np.zeros((200, 3, 2), np.int8), np.zeros((200, 2)), np.zeros(200, np.int64)]
    rest = [np.zeros(200, np.int64), np.zeros(200)]
    with np.errstate(over="ignore"):  # random numbers wrap around
        count = plain(*p, *first, *rest, 1, 3, 7)
    found = search_allocation(p, p.present[None].astype(np.int8), 3, 7)
    assert len(found) == count
    assert sorted(map(bytes, found)) == sorted(bytes(rows) for rows in first[0][:count])


@kernel
def ordered(costs: Any, rank: Any, distance: Any) -> None:
    """Call the helper."""
    pareto_order(costs, costs.shape[0], rank, distance)


def test_fronts_are_those_of_pairwise_comparison(rng: np.random.Generator) -> None:
    for _ in range(20):
        costs = rng.integers(0, 8, (30, 2)).astype(float)
        rank, distance = np.zeros(30, np.int64), np.zeros(30)
        ordered(costs, rank, distance)
        left, front = set(range(30)), 0
        while left:
            first = {
                a
                for a in left
                if not any((costs[b] <= costs[a]).all() and (costs[b] < costs[a]).any() for b in left)
            }
            assert {i for i in left if rank[i] == front} == first
            left -= first
            front += 1


def test_pollux_lets_jobs_grow_by_doubling_and_shares_out() -> None:
    profile = toy_profile(noise=20.0)
    workload = toy_jobs(profile, [0.0, 0.0], 1, 0)
    setup = Setup(
        nodes=gpu_nodes(0, [4, 4]),
        type_names=("gpu",),
        truth=ReplayTruth([profile]),
        clock=clock_of("rounds(period_s=60)"),
        placement=placement_of("consolidated"),
        restart=FlatRestart(5.0),
    )
    run = run_jobs(workload, find_allocator("pollux"), setup)
    assert run.finished.all()
    first = run.change_gpus[run.change_decision == 0]
    assert first.tolist() == [1, 1]  # never run before: one GPU each
    second = run.change_gpus[run.change_decision == 1]
    assert (second <= 2).all()
    assert run.used_gpus.max() > 2
