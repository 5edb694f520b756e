"""Each method trains on the simulator's environments: rows of nodes, masks, episodes that end."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from trimtab.learn.environments import DispatchVectorEnv, MatchVectorEnv
from trimtab.learn.methods.a2c import A2c
from trimtab.learn.methods.dqn import Dqn
from trimtab.learn.methods.evolved_network import EvolvedNetwork
from trimtab.learn.methods.learner import Learner
from trimtab.learn.methods.ppo import Ppo
from trimtab.learn.methods.q_learning import QLearning

TINY: dict[str, Any] = {
    "name": "tiny",
    "cluster": {
        "types": {"fast": {"slots": 1, "memory_gib": 1.0}, "slow": {"slots": 1, "memory_gib": 1.0}},
        "nodes": [{"type": "fast", "count": 1}, {"type": "slow", "count": 2}],
    },
    "classes": {"a": {"unit_s": {"fast": 1.0, "slow": 3.0}}},
    "workload": {
        "generate": {
            "requests": 40,
            "arrival": {"process": "poisson", "rate_per_s": 1.0},
            "mix": {"a": {"share": 1.0, "size": {"distribution": "exponential", "mean": 1.0}}},
        },
        "load": 0.8,
    },
}


def idle_nodes(rows: np.ndarray) -> np.ndarray:
    """The number of an observation: which of the three nodes have nothing to do, by their first column."""
    return (rows[:, :3, 0] > 0) @ np.array([1, 2, 4])


SETTINGS: dict[type[Learner], dict[str, Any]] = {
    QLearning: {"number": idle_nodes, "n_numbers": 8, "segment_steps": 2048},
    Dqn: {"memory": 2048, "batch": 32, "segment_steps": 1024},
    A2c: {"segment_steps": 2048},
    Ppo: {"batch": 256, "segment_steps": 2048},
    EvolvedNetwork: {"pairs": 4, "horizon": 128},
}


def trained(method: type[Learner], env: Any) -> Learner:
    spaces = env.single_observation_space, env.single_action_space
    learner = method(*spaces, seed=1, **SETTINGS[method])  # type: ignore[arg-type]
    assert len(list(islice(learner.train(env, 4096), 2))) == 2
    return learner


@pytest.mark.parametrize("method", SETTINGS, ids=lambda m: m.__name__)
def test_requests_are_dispatched(method: type[Learner]) -> None:
    learner = trained(method, DispatchVectorEnv(16, TINY))
    again = trained(method, DispatchVectorEnv(16, TINY))
    for name, array in learner.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array, err_msg=name)
        assert np.isfinite(array).all()


def test_pairs_are_matched() -> None:
    env = MatchVectorEnv(16, TINY)
    learner = trained(A2c, env)
    observations, info = env.reset(seed=0)
    chosen = learner.act(observations, info["action_mask"])
    assert info["action_mask"][np.arange(16), chosen].all()
