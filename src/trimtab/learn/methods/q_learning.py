"""Tabular Q-learning.

Source: Watkins and Dayan, Q-learning, Machine Learning 8, 1992, equation 1; with `average_reward` and a
discount of 1, differential Q-learning: Wan, Naik and Sutton, Learning and Planning in Average-Reward Markov
Decision Processes, ICML 2021, equations 5 and 6.

Deviations from the sources:
- many copies learn into one table; where several meet the same pair in one step, the table moves towards
  the mean of their targets, as far as so many single updates towards it would;
- the step size of a pair falls with its visits, 1 / (1 + visits / `slow`) to the power of `power`; that of
  the average reward is a constant times the share of the training left;
- actions that are not allowed are neither taken nor counted in the maximum;
- a step whose episode was cut off teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError, UsageError
from trimtab.learn.methods.learner import Actions, Env, Learner, Masks


class QLearning(Learner):
    """A table of the values of all pairs of observation and action."""

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        number: Callable[[NDArray[Any]], NDArray[np.int64]] | None = None,
        n_numbers: int = 0,
        slow: float = 100.0,
        power: float = 0.7,
        average_rate: float = 0.01,
        explored: float = 0.1,
        segment_steps: int = 131_072,
        **shared: Any,
    ) -> None:
        """A table of zeros.

        Args:
            observations: discrete, or any with `number`.
            actions: see `Learner`.
            number: of observations (n, …), the row of the table of each, (n,).
            n_numbers: rows of the table; with `number` only.
            slow: visits after which a pair's step size begins to fall.
            power: how fast it falls, between .5 and 1.
            average_rate: step size of the average reward at the start.
            explored: share of random actions; all at first, falling to this over half of the training.
            segment_steps: see `Learner`.
            shared: see `Learner`.
        """
        super().__init__(observations, actions, segment_steps=segment_steps, **shared)
        if isinstance(observations, gym.spaces.Discrete):
            number, n_numbers = _itself, int(observations.n)
        elif number is None:
            raise UsageError("a table needs numbered observations", field="number", expected="a function")
        self._number, self._slow, self._power = number, slow, power
        self._average_rate, self._explored = average_rate, explored
        self._table = np.zeros((n_numbers, self.n_actions))
        self._visits = np.zeros_like(self._table)

    def act(self, observations: NDArray[Any], masks: Masks) -> Actions:
        """(n,) the actions of the highest values."""
        return np.where(masks, self._table[self._number(observations)], -np.inf).argmax(axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Values and visits of all pairs."""
        return {"table": self._table, "visits": self._visits}

    def _take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._table[:], self._visits[:] = arrays["table"], arrays["visits"]

    def _iterate(self, env: Env) -> dict[str, float]:
        share = max(self._explored, 2 * self._left - 1)
        step = self._step(env, self._explore(self.act(*self._now), self._now[1], share))
        later = np.where(self._now[1], self._table[self._number(self._now[0])], -np.inf).max(axis=1)
        targets = step.rewards - self.average * self.average_reward + self.discount * later * ~step.ended
        pairs = self._number(step.observations) * self.n_actions + step.actions
        errors = targets - self._table.ravel()[pairs]
        if not np.isfinite(errors).all():
            raise TrimtabError(
                f"training has failed: a target at step {self.steps} is not finite; nor is a reward"
            )
        pairs, errors = pairs[~step.cut], errors[~step.cut]
        met, where, times = np.unique(pairs, return_inverse=True, return_counts=True)
        visits, table = self._visits.reshape(-1), self._table.reshape(-1)
        rates = (1 + visits[met] / self._slow) ** -self._power
        visits[met] += times
        table[met] += (1 - (1 - rates) ** times) * np.bincount(where, errors) / times
        self.average += self._average_rate * self._left * float(errors.mean()) * self.average_reward
        return {"error": float(np.abs(errors).mean())}


def _itself(numbers: NDArray[Any]) -> NDArray[np.int64]:
    return numbers
