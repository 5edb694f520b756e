"""Proximal policy optimisation.

Source: Schulman, Wolski, Dhariwal, Radford and Klimov, Proximal Policy Optimization Algorithms,
arXiv:1707.06347, 2017, equation 7 (clipped objective), equation 9 and algorithm 1.

Deviations from the source:
- advantages are normalised within each batch; gradients are shortened to a norm of .5;
- policy and value are two networks; the learning rate falls to 0, the range of clipping stays;
- forbidden actions have the chance 0 (Huang and Ontañón, FLAIRS 2022).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch

from trimtab.learn.methods.actor_critic import ActorCritic, Batch


class Ppo(ActorCritic):
    """Several passes over each rollout, in which the policy moves within a range of clipping."""

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        rollout: int = 32,
        passes: int = 4,
        batch: int = 1024,
        clip: float = 0.2,
        rate: float = 1e-3,
        **shared: Any,
    ) -> None:
        """See `ActorCritic`; `passes` over a rollout in batches of `batch`; `clip` is the source's ε."""
        super().__init__(observations, actions, rollout=rollout, rate=rate, **shared)
        self.passes, self.batch, self.clip = passes, batch, clip

    def _improve(self, batch: Batch) -> dict[str, float]:
        normal = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        sums, n = torch.zeros(3), 0
        for _ in range(self.passes):
            order = torch.from_numpy(self._rng.permutation(len(normal)))
            for chosen in order.split(self.batch):
                sums += self._update(batch, chosen, normal[chosen])
                n += 1
        return dict(zip(("policy", "value", "entropy"), (sums / n).tolist(), strict=True))

    def _update(self, batch: Batch, chosen: Any, advantages: Any) -> Any:
        observations = batch.observations[chosen]
        log_chances = self._distribution(observations, batch.masks[chosen])
        taken = log_chances.gather(1, batch.actions[chosen][:, None])[:, 0]
        ratio = (taken - batch.log_chances[chosen]).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        value_loss = (self.value(observations).squeeze(-1) - batch.returns[chosen]).square().mean()
        return self._descend(policy_loss, value_loss, log_chances)
