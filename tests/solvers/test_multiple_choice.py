"""Multiple-choice knapsacks against HiGHS, brute force and what a bound must keep."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from trimtab.solvers.multiple_choice import Choices, choose


def random_choices(seed: int, items: int, step: float, power: float = -0.5) -> Choices:
    """Jobs on three types of GPU, as Sia states them: values are powers of speed-ups."""
    rng = np.random.default_rng(seed)
    counts = np.array([1, 2, 4, 8, 12, 16])
    units, resource = np.tile(counts, 3), np.repeat(np.arange(3), len(counts))
    serial = rng.uniform(0.01, 0.3, items)[:, None]
    speed = rng.lognormal(0, 0.5, (items, 3))[:, resource] * units / (1 + serial * (units - 1))
    value = (speed / speed.min(axis=1, keepdims=True)) ** power
    cost = (np.round(value, 2) if step else value) * (1 if power < 0 else -1)
    cost[rng.random(cost.shape) < 0.2] = np.inf
    capacity = rng.integers(0, items * 2, 3)
    return Choices(cost, np.full(items, 1.1), units, resource, capacity, step)


def optimum(problem: Choices) -> float:
    items = len(problem.cost)
    item, option = np.nonzero(np.isfinite(problem.cost))
    saved = problem.cost[item, option] - problem.skip_cost[item]
    rows = np.zeros((items + len(problem.capacity), len(item)))
    rows[item, np.arange(len(item))] = 1.0
    rows[items + problem.resource[option], np.arange(len(item))] = problem.units[option]
    most = np.concatenate([np.ones(items), problem.capacity])
    found: Any = milp(
        saved,
        constraints=LinearConstraint(rows, -np.inf, most),
        integrality=np.ones(len(item)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    return float(found.fun + problem.skip_cost.sum())


def check(problem: Choices, chosen: Any) -> None:
    """The choice is feasible, costs what it says, and no less than its bound."""
    runs = np.flatnonzero(chosen.option >= 0)
    option = chosen.option[runs]
    used = np.bincount(problem.resource[option], problem.units[option], len(problem.capacity))
    assert (used <= problem.capacity).all()
    skipped = problem.skip_cost[chosen.option < 0].sum()
    assert chosen.cost == pytest.approx(problem.cost[runs, option].sum() + skipped)
    assert chosen.bound <= chosen.cost + 1e-9


@pytest.mark.parametrize("step", [0.01, 0.0])
@pytest.mark.parametrize("power", [-0.5, 0.5])
@pytest.mark.parametrize("seed", range(8))
def test_it_finds_and_proves_the_optimum(seed: int, power: float, step: float) -> None:
    problem = random_choices(seed, 12, step, power)
    chosen = choose(problem)
    assert chosen is not None
    check(problem, chosen)
    assert chosen.cost == pytest.approx(optimum(problem), abs=1e-6)
    assert chosen.bound == pytest.approx(chosen.cost, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_items_that_have_to_take_an_option(seed: int) -> None:
    problem = random_choices(seed, 4, 0.0)
    problem.skip_cost[:2] = np.inf
    options = range(-1, problem.cost.shape[1])
    best = math.inf
    for pick in itertools.product(options, repeat=len(problem.cost)):
        used = [0, 0, 0]
        cost = 0.0
        for i, c in enumerate(pick):
            cost += problem.skip_cost[i] if c < 0 else problem.cost[i, c]
            if c >= 0:
                used[problem.resource[c]] += problem.units[c]
        if cost < best and all(u <= c for u, c in zip(used, problem.capacity, strict=True)):
            best = cost
    chosen = choose(problem)
    assert (chosen is None) == (best == math.inf)
    if chosen is not None:
        assert chosen.cost == pytest.approx(best)


@pytest.mark.parametrize("seed", range(3))
def test_a_narrow_search_still_says_how_far_it_may_be(seed: int) -> None:
    problem = random_choices(seed, 60, 0.0)
    rough, exact = choose(problem, widths=(2,)), choose(problem)
    assert rough is not None
    assert exact is not None
    check(problem, rough)
    assert rough.bound <= exact.cost + 1e-9 <= rough.cost + 2e-9
    assert rough.gap_frac < 0.01


def test_one_resource_and_no_items() -> None:
    cost = np.array([[1.0, 0.5], [1.0, 0.4], [1.0, 0.3]])
    one = Choices(cost, np.full(3, 2.0), np.array([1, 2]), np.zeros(2, np.int64), np.array([4]))
    chosen = choose(one)
    assert chosen is not None
    assert chosen.cost == pytest.approx(1.0 + 1.0 + 0.3)
    empty = Choices(np.zeros((0, 2)), np.zeros(0), one.units, one.resource, one.capacity)
    nothing = choose(empty)
    assert nothing is not None
    assert nothing.cost == nothing.bound == 0.0
