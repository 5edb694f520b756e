"""Evolution strategies on the network of a policy that acts in a Gymnasium environment.

Source and deviations: see `evolution_strategies`. Besides, all members of a generation act at once: each in
its own share of the copies of the environment, and they are judged by their rewards there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.errors import TrimtabError, UsageError
from trimtab.learn.methods.evolution_strategies import EvolutionStrategies
from trimtab.learn.methods.learner import Actions, Env, Learner, Masks, Network, masked


class EvolvedNetwork(Learner):
    """A deterministic policy whose weights follow perturbations that were rewarded better."""

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        seed: int = 0,
        pairs: int = 16,
        horizon: int = 256,
        sigma: float = 0.1,
        rate: float = 0.05,
        hidden: tuple[int, ...] = (16,),
    ) -> None:
        """A new policy. A segment of training is one generation.

        Args:
            observations: see `Learner`.
            actions: see `Learner`.
            seed: see `Learner`.
            pairs: mirrored pairs of members in a generation.
            horizon: steps in each copy by which a member is judged.
            sigma: see `EvolutionStrategies`.
            rate: see `EvolutionStrategies`.
            hidden: widths of the layers.
        """
        fixed: dict[str, Any] = {"discount": 1.0, "average_reward": False, "segment_steps": 1}
        super().__init__(observations, actions, seed=seed, **fixed)
        self.horizon = horizon
        self.policy = Network(self.shape, self.n_actions, hidden, seed)
        start = torch.nn.utils.parameters_to_vector(self.policy.parameters()).detach().numpy()
        self._strategies = EvolutionStrategies(start, pairs=pairs, sigma=sigma, rate=rate, seed=seed)

    def act(self, observations: NDArray[Any], masks: Masks) -> Actions:
        """(n,) the actions of the highest scores, by the running mean of the generations."""
        return self._members(self._strategies.result[None])(observations, masks)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `EvolutionStrategies` goes on from."""
        return dict(self._strategies.checkpoint()["arrays"])

    def _take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._strategies.restore({"arrays": arrays, "state": {"generation": self.segment}})

    def _iterate(self, env: Env) -> dict[str, float]:
        weights = self._strategies.candidates()
        if env.num_envs % len(weights):
            expected = f"a multiple of {len(weights)}, the members of a generation"
            raise UsageError("too many or too few copies", value=env.num_envs, expected=expected)
        act = self._members(weights)
        total = np.zeros(env.num_envs)
        for _ in range(self.horizon):
            total += self._step(env, act(*self._now)).rewards
        rewards = total.reshape(len(weights), -1).mean(axis=1) / self.horizon
        if not np.isfinite(rewards).all():
            raise TrimtabError(f"training has failed: a reward in generation {self.segment} is not finite")
        self._strategies.tell(-rewards[:, None])
        return {"best": float(rewards.max()), "mean": float(rewards.mean())}

    def _members(self, weights: NDArray[np.float64]) -> Callable[[NDArray[Any], Masks], Actions]:
        """How members with `weights` (members, weights) act at once, each in its share of the copies."""
        shapes = {name: p.shape for name, p in self.policy.named_parameters()}
        parts = torch.from_numpy(weights).float().split([shape.numel() for shape in shapes.values()], dim=1)
        each = {n: part.reshape(-1, *s) for (n, s), part in zip(shapes.items(), parts, strict=True)}

        def scores(member: Any, seen: Any) -> Any:
            return torch.func.functional_call(self.policy, member, (seen,))

        @torch.no_grad()
        def act(observations: NDArray[Any], masks: Masks) -> Actions:
            seen = torch.from_numpy(observations).reshape(len(weights), -1, *self.shape)
            found = torch.func.vmap(scores)(each, seen).flatten(0, 1)
            return masked(found, torch.from_numpy(masks)).argmax(dim=-1).numpy()

        return act
