"""What A2C and PPO share: a policy and a value network, rollouts, advantages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.learn.methods.learner import Actions, Adam, Env, Learner, Masks, Network, masked


@dataclass(frozen=True)
class Batch:
    """The steps of one rollout, as tensors; n is length times copies."""

    observations: Any  # (n, …)
    masks: Any  # (n, actions)
    actions: Any  # (n,)
    log_chances: Any  # (n,) of these actions when they were taken
    advantages: Any  # (n,)
    returns: Any  # (n,) what the value network is to predict, normalised


class ActorCritic(Learner):
    """Rollouts of a stochastic policy, improved on after each."""

    FOLLOWS = 0.1  # share by which the average reward and the range of values move towards those of a rollout

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        rollout: int,
        rate: float,
        trace: float = 0.95,
        entropy: float = 0.01,
        hidden: tuple[int, ...] = (32, 32),
        network: Callable[[], Network] | None = None,
        **shared: Any,
    ) -> None:
        """A new learner.

        Args:
            observations: see `Learner`.
            actions: see `Learner`.
            rollout: steps in each copy between updates.
            rate: learning rate at the start; it falls to 0 linearly.
            trace: λ of generalised advantage estimation, 0 to 1.
            entropy: weight of the policy's entropy at the start; it falls to 0 linearly.
            hidden: widths of the layers of both networks.
            network: makes the policy's network; None = a new `Network` of these widths.
            shared: see `Learner`.
        """
        super().__init__(observations, actions, **shared)
        self.rollout, self.trace, self.rate, self.entropy = rollout, trace, rate, entropy
        made = network() if network else Network(self.shape, self.n_actions, hidden, self.seed)
        self.policy: Any = made
        self.value = Network(self.shape, 1, hidden, self.seed + 1)
        self._policy_adam, self._value_adam = Adam(self.policy, largest_norm=0.5), Adam(self.value)

    def act(self, observations: NDArray[Any], masks: Masks) -> Actions:
        """(n,) the most likely actions."""
        return masked(self._scores(observations), torch.from_numpy(masks)).argmax(dim=-1).numpy()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weights of policy and value, and Adam's state."""
        weights = self._policy_adam.arrays("policy") | self._value_adam.arrays("value")
        return weights | {"value.range": self.value.range.numpy()}

    def _take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._policy_adam.take(arrays, "policy")
        self._value_adam.take(arrays, "value")
        self.value.range.copy_(torch.from_numpy(arrays["value.range"]))

    @torch.no_grad()
    def _scores(self, observations: NDArray[Any]) -> Any:
        return self.policy(torch.from_numpy(observations))

    def _values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        return self.value.predict(observations).squeeze(-1).numpy()

    def _iterate(self, env: Env) -> dict[str, float]:
        steps = []
        for _ in range(self.rollout):
            observations, masks = self._now
            scores = masked(self._scores(observations), torch.from_numpy(masks)).numpy()
            waits = self._rng.standard_exponential(scores.shape, np.float32)
            noise = -np.log(np.maximum(waits, 1e-30))  # Gumbel: the largest sum is a sample of the softmax
            steps.append(self._step(env, (scores + noise).argmax(axis=1)))
        return self._improve(self._batch(steps))

    def _batch(self, steps: list[Any]) -> Batch:
        """A rollout with its advantages.

        Source: Schulman, Moritz, Levine, Jordan and Abbeel, ICLR 2016, equation 16. Where an episode was cut
        off, its last reward is followed by the value of where it would have gone on from.
        """
        observations = np.concatenate([step.observations for step in steps])
        n = len(steps[0].actions)
        values = self._values(np.concatenate([observations, self._now[0]])).reshape(len(steps) + 1, n)
        rewards = np.stack([step.rewards for step in steps])
        if self.average_reward:
            share = max(self.FOLLOWS, rewards.size / self.steps)
            self.average += share * (float(rewards.mean()) - self.average)
            rewards -= self.average
        advantages, later = np.empty_like(rewards), np.zeros(n)
        for t in reversed(range(len(steps))):
            goes_on = ~(steps[t].ended | steps[t].cut)
            if steps[t].cut.any():
                rewards[t, steps[t].cut] += self.discount * self._values(steps[t].final)
            error = rewards[t] + self.discount * values[t + 1] * goes_on - values[t]
            later = error + self.discount * self.trace * later * goes_on
            advantages[t] = later
        seen, masks = (
            torch.from_numpy(observations),
            torch.from_numpy(np.concatenate([s.masks for s in steps])),
        )
        actions = torch.from_numpy(np.concatenate([step.actions for step in steps]))
        with torch.no_grad():
            log_chances = self._distribution(seen, masks).gather(1, actions[:, None])[:, 0]
        flat = torch.from_numpy(advantages.astype(np.float32).ravel())
        returns = self.value.normalise(flat + torch.from_numpy(values[:-1].ravel()), self.FOLLOWS)
        return Batch(seen, masks, actions, log_chances, flat, returns)

    def _distribution(self, observations: Any, masks: Any) -> Any:
        """(n, actions) logarithms of the chances of actions; forbidden ones have the chance 0."""
        return torch.log_softmax(masked(self.policy(observations), masks), dim=-1)

    def _descend(self, policy_loss: Any, value_loss: Any, log_chances: Any) -> Any:
        """One step of both networks; (3,) losses and entropy."""
        entropy = -(log_chances.exp() * log_chances).sum(dim=-1).mean()
        self._policy_adam.descend(policy_loss - self.entropy * self._left * entropy, self.rate * self._left)
        self._value_adam.descend(value_loss, self.rate * self._left)
        return torch.stack([policy_loss, value_loss, entropy]).detach()

    @abstractmethod
    def _improve(self, batch: Batch) -> dict[str, float]:
        """Update both networks; losses by name."""
