"""Training of the weights of `learned-dispatch` by reinforcement learning in `trimtab/Dispatch-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np

from trimtab.learn.drawn_workloads import Floats
from trimtab.learn.environments import DispatchVectorEnv
from trimtab.learn.methods.a2c import A2c
from trimtab.learn.methods.actor_critic import ActorCritic
from trimtab.learn.methods.corrected_scores import CorrectedScores
from trimtab.learn.methods.dqn import Dqn
from trimtab.learn.methods.learner import Learner
from trimtab.learn.methods.ppo import Ppo
from trimtab.learn.weight_search import POOL, Setting, WeightTraining
from trimtab.policies.learned.learned_dispatch import LearnedDispatch
from trimtab.policies.shared.features import N_FEATURES

_COPIES: Final = 32  # of the environment
_SHARED: Final = {"discount": 0.995, "average_reward": True}
_MEMORY: Final = 8_192  # steps that DQN remembers: 50 MB in a checkpoint with 64 nodes
_STATE: Final = ("steps", "segment", "average")


class DispatchTraining(WeightTraining):
    """A training by decisions and their rewards; the loss of a generation is that of the greedy choices."""

    def __init__(self, setting: Setting, pool: Executor | None = None) -> None:
        """As `Training`."""
        super().__init__(setting, pool)
        of, seed = setting.workloads, setting.seed
        nodes = max(of.inputs(i).cluster.n_nodes for i in range(POOL))
        self._env = DispatchVectorEnv(_COPIES, of.scenario_of, nodes=nodes, seeds=range(POOL))
        spaces = self._env.single_observation_space, self._env.single_action_space
        start, is_own = setting.first_weights()

        def network() -> CorrectedScores:
            return CorrectedScores(
                start, is_own[-N_FEATURES:], limit=LearnedDispatch().bound / 2.0, seed=seed
            )

        shared: dict[str, Any] = {**_SHARED, "seed": seed, "segment_steps": setting.decisions}
        self.learner: Learner
        if setting.method == "dqn":
            self.learner = Dqn(*spaces, network=network, memory=_MEMORY, **shared)
            self.network = self.learner.network
        else:
            method: type[ActorCritic] = A2c if setting.method == "a2c" else Ppo
            self.learner = method(*spaces, network=network, **shared)
            self.network = self.learner.policy
        self._segments = self.learner.train(self._env, setting.generations * setting.decisions)
        self._kept = self.learner.checkpoint()  # at the end of the last generation

    def _weights(self) -> Floats:
        found: Floats = self.network.weights()
        return found

    def _improve(self, chosen: list[int]) -> Floats:
        next(self._segments)
        table = self._table(chosen, self._weights()[None])
        self._kept = self.learner.checkpoint()
        return table

    def _arrays(self) -> dict[str, Any]:
        state = [self._kept["state"][name] for name in _STATE]
        return {**self._kept["arrays"], "state": np.array(state)}

    def _take(self, arrays: Mapping[str, Any]) -> None:
        steps, segment, average = arrays["state"].tolist()
        own = {name: arrays[name] for name in self.learner.arrays().keys() & arrays.keys()}
        state = {"steps": int(steps), "segment": int(segment), "average": average}
        self._kept = {"arrays": own, "state": state}
        self.learner.restore(self._kept)
