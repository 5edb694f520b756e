"""The random numbers of a decision: uniform, independent along every counter, equal in both modes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from support.builders import cluster
from support.by_hand import asked
from support.mini_policies import Anywhere
from trimtab.compiled.kernel import kernel
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.engine.draws import stream, uniform
from trimtab.engine.simulator import run

P_MIN = 1e-4  # seeds are fixed; a sound generator passes with probability 1 − 1e-4 a test


@kernel
def fill_draws(table: Any, seed: int) -> None:
    """table[serial, attempt, i] = u(seed, serial, attempt, i)."""
    for serial in range(table.shape[0]):
        for attempt in range(table.shape[1]):
            state = stream(seed, serial, attempt)
            for i in range(table.shape[2]):
                table[serial, attempt, i] = uniform(state, i)


def _table(seed: int, shape: tuple[int, int, int] = (20_000, 4, 4)) -> np.ndarray:
    table = np.zeros(shape)
    fill_draws(table, seed)
    return table


def test_compiled_and_interpreted_draws_are_equal() -> None:
    table = _table(12345, (50, 3, 3))
    with np.errstate(over="ignore"):
        plain = [[[uniform(stream(12345, r, a), i) for i in range(3)] for a in range(3)] for r in range(50)]
    np.testing.assert_array_equal(table, plain)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**62])
def test_draws_are_uniform(seed: int) -> None:
    u = _table(seed).reshape(-1)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert stats.kstest(u, "uniform").pvalue > P_MIN
    assert stats.chisquare(np.bincount((u * 1000).astype(int), minlength=1000)).pvalue > P_MIN


Neighbours = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
NEIGHBOURS: dict[str, Neighbours] = {
    "serial": lambda t: (t[:-1], t[1:]),
    "attempt": lambda t: (t[:, :-1], t[:, 1:]),
    "i": lambda t: (t[:, :, :-1], t[:, :, 1:]),
    "attempt against i": lambda t: (t[:, 0, 1], t[:, 1, 0]),
}


def _pair_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Chi-square over a 16 × 16 grid of pairs."""
    cells = (a.reshape(-1) * 16).astype(int) * 16 + (b.reshape(-1) * 16).astype(int)
    return float(stats.chisquare(np.bincount(cells, minlength=256)).pvalue)


@pytest.mark.parametrize("along", NEIGHBOURS)
def test_neighbouring_draws_are_independent(along: str) -> None:
    assert _pair_p_value(*NEIGHBOURS[along](_table(7))) > P_MIN


def test_seeds_are_independent() -> None:
    tables = [_table(seed, (20_000, 1, 2)) for seed in (0, 1, 2, 1 << 40)]
    for a, b in combinations(tables, 2):
        assert _pair_p_value(a, b) > P_MIN


def test_no_two_draws_coincide() -> None:
    u = np.concatenate([_table(seed).reshape(-1) for seed in range(3)])
    assert len(np.unique(u)) == len(u)


def test_a_policy_gets_the_draws_of_its_seed_and_request() -> None:
    c = cluster(1000)
    rows = run(
        c, asked(c, np.arange(200.0).tolist()), Options(), Decider.of(Anywhere()), seed=9
    ).state.requests
    expected = (_table(9, (200, 1, 1))[:, 0, 0] * 1000).astype(int)
    np.testing.assert_array_equal(rows["node_idx"], expected)
