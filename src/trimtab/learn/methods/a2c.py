"""Advantage actor-critic.

Source: Mnih et al., Asynchronous Methods for Deep Reinforcement Learning, ICML 2016, section 4, "Asynchronous
advantage actor-critic" and algorithm S3, in its synchronous form: all copies step together, one update
follows.

Deviations from the source:
- synchronous, without threads; policy and value are two networks, not one with two heads;
- Adam instead of RMSprop; gradients are shortened to a norm of .5;
- advantages by generalised estimation with λ (1: the source's n-step returns), divided by their deviation;
- forbidden actions have the chance 0 (Huang and Ontañón, FLAIRS 2022).
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from trimtab.learn.methods.actor_critic import ActorCritic, Batch


class A2c(ActorCritic):
    """One update from each rollout."""

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        rollout: int = 16,
        rate: float = 3e-3,
        **shared: Any,
    ) -> None:
        """See `ActorCritic`."""
        super().__init__(observations, actions, rollout=rollout, rate=rate, **shared)

    def _improve(self, batch: Batch) -> dict[str, float]:
        log_chances = self._distribution(batch.observations, batch.masks)
        taken = log_chances.gather(1, batch.actions[:, None])[:, 0]
        advantages = batch.advantages / (batch.advantages.std() + 1e-8)
        policy_loss = -(advantages * taken).mean()
        value_loss = (self.value(batch.observations).squeeze(-1) - batch.returns).square().mean()
        losses = self._descend(policy_loss, value_loss, log_chances)
        return dict(zip(("policy", "value", "entropy"), losses.tolist(), strict=True))
