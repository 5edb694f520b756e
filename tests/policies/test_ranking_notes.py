"""Ranking nodes by their notes: what sorting them all gives, ties by node, for any number of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.compiled.kernel import kernel
from trimtab.compiled.numba_extras import lowest_bit
from trimtab.domain.view import MAX_RANKED, RANKED
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted

SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 60, 61, 100, 257)


@kernel
def ranked_compiled(floats: np.ndarray, ranking: np.ndarray, n: int) -> int:
    return int(rank_noted(floats, ranking, n))


@kernel
def lowest_compiled(bits: int) -> int:
    return lowest_bit(bits)


def no_ranking() -> np.recarray:
    return np.zeros(MAX_RANKED, RANKED).view(np.recarray)


def notes_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Notes [n]: all different, rising, falling, many equal ones, or few that are candidates at all."""
    notes = rng.normal(size=n)
    if kind == "rising":
        return np.sort(notes)
    if kind == "falling":
        return -np.sort(notes)
    if kind == "equal":
        return rng.integers(0, 3, n).astype(np.float64)
    if kind == "few":
        return np.where(rng.random(n) < 0.9, np.inf, np.round(notes))
    return notes


@pytest.mark.parametrize("kind", ["different", "rising", "falling", "equal", "few"])
def test_candidates_are_the_first_of_all_nodes_sorted(kind: str) -> None:
    rng = np.random.default_rng(3)
    for n in SIZES:
        for _ in range(10):
            notes = notes_of(kind, n, rng)
            able = np.flatnonzero(notes < np.inf)
            expected = able[np.argsort(notes[able], kind="stable")][:MAX_RANKED]
            for function in (rank_noted, ranked_compiled):
                floats, ranking = (
                    np.full(notes_room(n), np.nan),
                    no_ranking(),
                )
                floats[NOTES : NOTES + n] = notes
                count = function(floats, ranking, n)
                np.testing.assert_array_equal(ranking.node_idx[:count], expected)
                np.testing.assert_array_equal(ranking.score[:count], notes[expected])
                np.testing.assert_array_equal(floats[NOTES : NOTES + n], notes)


def test_notes_that_are_no_numbers_are_no_candidates() -> None:
    floats, ranking = np.zeros(notes_room(9)), no_ranking()
    floats[NOTES : NOTES + 9] = np.nan
    floats[NOTES + 4] = 1.0
    assert rank_noted(floats, ranking, 9) == 1
    assert ranking.node_idx[0] == 4


def test_the_lowest_bit_of_any_that_are_set() -> None:
    for lowest in range(63):
        for bits in (1 << lowest, (1 << 63) - (1 << lowest), (1 << lowest) | (1 << 62)):
            assert lowest_bit(bits) == lowest_compiled(bits) == lowest
