"""Deep Q-network, double, with masks.

Source: Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015, algorithm 1
(replay, target network); van Hasselt, Guez and Silver, Deep Reinforcement Learning with Double Q-learning,
AAAI 2016, equation 4 and section "Double DQN" (the online network chooses, the target network values).

Deviations from the sources:
- Adam with a learning rate that falls to 0 instead of RMSprop; errors are not clipped, as rare large costs
  count;
- targets are normalised (see `Network`), rewards are not clipped; the average reward may be subtracted
  (see `Learner`), estimated by the mean error as in differential Q-learning;
- actions that are not allowed are neither taken nor chosen in targets;
- a step whose episode was cut off is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.learn.methods.learner import Actions, Adam, Env, Learner, Masks, Network, masked


class Dqn(Learner):
    """A network of the values of all actions, trained on steps drawn from a replay memory."""

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        memory: int = 50_000,
        batch: int = 256,
        rate: float = 1e-3,
        average_rate: float = 0.01,
        target_every: int = 200,
        explored: float = 0.1,
        hidden: tuple[int, ...] = (32, 32),
        network: Callable[[], Network] | None = None,
        **shared: Any,
    ) -> None:
        """A new network and an empty memory.

        Args:
            observations: see `Learner`.
            actions: see `Learner`.
            memory: steps that are remembered.
            batch: steps in an update; there is one update for each step of all copies.
            rate: learning rate at the start; it falls to 0 linearly.
            average_rate: step size of the average reward at the start.
            target_every: updates after which the target network becomes the online one.
            explored: share of random actions; all at first, falling to this over half of the training.
            hidden: widths of the layers.
            network: makes the network; None = a new `Network` of these widths.
            shared: see `Learner`.
        """
        super().__init__(observations, actions, **shared)
        self.batch, self.rate, self.average_rate = batch, rate, average_rate
        self.target_every, self.explored = target_every, explored
        make = network or partial(Network, self.shape, self.n_actions, hidden, self.seed)
        self.network: Any = make()
        self._target: Any = make()
        self._adam, self._target_weights = Adam(self.network), Adam(self._target).weights
        self._memory: dict[str, NDArray[Any]] = {
            "observations": np.zeros((memory, *self.shape), np.float32),
            "actions": np.zeros(memory, np.int64),
            "rewards": np.zeros(memory, np.float32),
            "ended": np.zeros(memory, np.bool_),
            "later": np.zeros((memory, *self.shape), np.float32),
            "later_masks": np.zeros((memory, self.n_actions), np.bool_),
        }
        self._counts = np.zeros(2, np.int64)  # steps stored since the start, updates

    def act(self, observations: NDArray[Any], masks: Masks) -> Actions:
        """(n,) the actions of the highest values."""
        return masked(self.network.predict(observations), torch.from_numpy(masks)).argmax(dim=-1).numpy()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weights of both networks, Adam's state, and the memory."""
        ranges = {"online.range": self.network.range.numpy(), "target.range": self._target.range.numpy()}
        memory = {f"memory.{name}": array for name, array in self._memory.items()}
        own = {"target.weights": self._target_weights.numpy(), "counts": self._counts}
        return self._adam.arrays("online") | ranges | memory | own

    def _take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._adam.take(arrays, "online")
        self.network.range.copy_(torch.from_numpy(arrays["online.range"]))
        self._target.range.copy_(torch.from_numpy(arrays["target.range"]))
        self._target_weights.copy_(torch.from_numpy(arrays["target.weights"]))
        self._counts[:] = arrays["counts"]
        for name, array in self._memory.items():
            array[:] = arrays[f"memory.{name}"]

    def _iterate(self, env: Env) -> dict[str, float]:
        share = max(self.explored, 2 * self._left - 1)
        step = self._step(env, self._explore(self.act(*self._now), self._now[1], share))
        kept = ~step.cut
        found = (step.observations, step.actions, step.rewards, step.ended, *self._now)
        size = len(self._memory["actions"])
        places = (self._counts[0] + np.arange(kept.sum())) % size
        for array, values in zip(self._memory.values(), found, strict=True):
            array[places] = values[kept]
        self._counts[0] += kept.sum()
        return self._update(self._rng.integers(min(self._counts[0], size), size=self.batch))

    def _update(self, chosen: NDArray[np.int64]) -> dict[str, float]:
        """One update from the `chosen` steps of the memory."""
        memory = {name: array[chosen] for name, array in self._memory.items()}
        if self._counts[1] % self.target_every == 0:
            self._target_weights.copy_(self._adam.weights)
            self._target.range.copy_(self.network.range)
        self._counts[1] += 1
        actions = torch.from_numpy(memory["actions"])[:, None]
        best = torch.from_numpy(self.act(memory["later"], memory["later_masks"]))[:, None]
        later = self._target.predict(memory["later"]).gather(1, best)[:, 0] * torch.from_numpy(
            ~memory["ended"]
        )
        targets = torch.from_numpy(memory["rewards"]) + self.discount * later
        if self.average_reward:
            targets -= self.average
            errors = targets - self.network.predict(memory["observations"]).gather(1, actions)[:, 0]
            self.average += self.average_rate * self._left * float(errors.mean())
        targets = self.network.normalise(targets, self.average_rate)
        values = self.network(torch.from_numpy(memory["observations"])).gather(1, actions)[:, 0]
        loss = (values - targets).square().mean()
        self._adam.descend(loss, self.rate * self._left)
        return {"value": loss.item()}
