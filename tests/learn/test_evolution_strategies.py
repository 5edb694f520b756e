"""Evolution strategies on functions whose optimum is known; ranks by hand; a run that goes on."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.learn.methods.evolution_strategies import EvolutionStrategies, centred_ranks

TARGET = np.array([1.0, -2.0, 0.5])


def losses_of(candidates: np.ndarray, scales: tuple[float, ...] = (1.0, 1e6)) -> np.ndarray:
    """Squared distances from the target, as tasks of very different scales."""
    distance = ((candidates - TARGET) ** 2).sum(axis=1)
    return np.stack([scale * distance for scale in scales], axis=1)


def went(search: EvolutionStrategies, generations: int) -> EvolutionStrategies:
    for _ in range(generations):
        search.tell(losses_of(search.candidates()))
    return search


def test_it_finds_the_least_of_a_quadratic_whatever_the_scale_of_its_tasks() -> None:
    search = went(EvolutionStrategies(np.zeros(3), pairs=8, sigma=0.05, rate=0.05, seed=1), 200)
    np.testing.assert_allclose(search.result, TARGET, atol=0.1)


def test_weights_that_are_held_stay() -> None:
    search = EvolutionStrategies(np.array([0.0, 7.0, 0.0]), pairs=8, sigma=0.05, rate=0.05)
    search.hold(np.array([False, True, False]))
    np.testing.assert_allclose(went(search, 150).result, [1.0, 7.0, 0.5], atol=0.1)


def test_candidates_are_mirrored_around_the_centre() -> None:
    candidates = EvolutionStrategies(np.arange(3.0), pairs=4, sigma=0.5).candidates()
    np.testing.assert_allclose(candidates[:4] + candidates[4:], np.tile(2.0 * np.arange(3.0), (4, 1)))


def test_ranks_by_hand() -> None:
    np.testing.assert_allclose(
        centred_ranks(np.array([[3.0, 1.0], [1.0, 1.0], [9.0, 1.0]])), [[0.0, 0.0], [-0.5, 0.0], [0.5, 0.0]]
    )


def test_a_run_that_goes_on_is_that_which_was_never_interrupted() -> None:
    whole = went(EvolutionStrategies(np.zeros(3), seed=3), 20)
    kept = went(EvolutionStrategies(np.zeros(3), seed=3), 12).checkpoint()
    rest = EvolutionStrategies(np.zeros(3), seed=3)
    rest.restore(kept)
    assert rest.generation == 12
    np.testing.assert_array_equal(went(rest, 8).result, whole.result, strict=True)


def test_what_cannot_be_searched() -> None:
    with pytest.raises(UsageError, match="pairs: out of range"):
        EvolutionStrategies(np.zeros(2), pairs=0)
    search = EvolutionStrategies(np.zeros(2), pairs=1)
    with pytest.raises(UsageError, match="not a number"):
        search.tell(np.full((2, 1), np.nan))
    with pytest.raises(UsageError, match="other settings"):
        EvolutionStrategies(np.zeros(3)).restore(search.checkpoint())
