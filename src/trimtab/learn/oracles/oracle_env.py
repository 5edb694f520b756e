"""A decision process as a vectorised Gymnasium environment."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab.errors import UsageError
from trimtab.learn.oracles.decision_process import DecisionProcess

Form = Literal["flat", "rows", "index"]


class OracleEnv(VectorEnv[NDArray[Any], NDArray[np.int64], NDArray[Any]]):
    """Many copies of one decision process; episodes have no end.

    Observations, float32: `flat` (n, features), `rows` (n, nodes, features); or `index` (n,) int64, the
    number of the observation, for tables. Actions (n,) int64; those allowed are in `info["action_mask"]`,
    (n, actions) bool. The reward is minus the cost of the step.

    A reset draws states evenly from all there are ("exploring starts": Sutton and Barto, Reinforcement
    Learning, 2nd edition 2018, section 5.3). A policy that never saw a long queue may wait there for ever,
    which costs the more the longer it runs.
    """

    def __init__(
        self, process: DecisionProcess, num_envs: int, form: Form = "flat", *, first_only: bool = False
    ) -> None:
        """Copies of `process`.

        Args:
            process: the problem.
            num_envs: number of copies.
            form: of the observations.
            first_only: the common mistake: observe the first node only.
        """
        self.process, self.num_envs = process, num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.observations = _observations(process.rows[:, :1] if first_only else process.rows, form)
        """(states, …) the observation of each state."""
        self.single_observation_space = (
            gym.spaces.Discrete(int(self.observations.max()) + 1)
            if form == "index"
            else gym.spaces.Box(0.0, np.inf, self.observations.shape[1:], np.float32)
        )
        self.single_action_space = gym.spaces.Discrete(process.allowed.shape[1])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._bounds = np.cumsum(process.chances)[:-1]
        self._state = np.zeros(num_envs, np.int64)
        self._never = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Any state in each copy; `seed` is one number for all of them."""
        if isinstance(seed, list):
            raise UsageError("a seed for each copy", field="seed", value=seed, expected="one number for all")
        super().reset(seed=seed, options=options)
        self._state = self.np_random.integers(len(self.process.states), size=self.num_envs)
        return self.observations[self._state], {"action_mask": self.action_masks()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action and one event in each copy."""
        forbidden = np.flatnonzero(~self.process.allowed[self._state, actions])
        if len(forbidden):
            raise UsageError(
                f"{self.process.name}: an action that is not allowed",
                field=f"copy {forbidden[0]}",
                value=int(actions[forbidden[0]]),
                expected="one that info['action_mask'] allows",
            )
        rewards = -self.process.costs[self._state, actions]
        events = np.searchsorted(self._bounds, self.np_random.random(self.num_envs), side="right")
        self._state = self.process.successors[self._state, actions, events]
        info = {"action_mask": self.action_masks()}
        return self.observations[self._state], rewards, self._never, self._never, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(n, actions) what each copy may do now."""
        return self.process.allowed[self._state]


def _observations(rows: NDArray[np.float32], form: Form) -> NDArray[Any]:
    """(states, …) observations; `flat` leaves out columns that are constant or the same as another."""
    if form == "rows":
        return rows
    flat = np.unique(rows.reshape(len(rows), -1), axis=1)
    flat = flat[:, np.ptp(flat, axis=0) > 0]
    return np.unique(flat, axis=0, return_inverse=True)[1].astype(np.int64) if form == "index" else flat
