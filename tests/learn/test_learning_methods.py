"""Each method against the optimum of a small problem, and what all of them promise."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from trimtab.errors import TrimtabError, UsageError
from trimtab.learn.methods.a2c import A2c
from trimtab.learn.methods.dqn import Dqn
from trimtab.learn.methods.evolved_network import EvolvedNetwork
from trimtab.learn.methods.learner import Adam, Learner, Network
from trimtab.learn.methods.ppo import Ppo
from trimtab.learn.methods.q_learning import QLearning
from trimtab.learn.oracles.oracle_env import OracleEnv
from trimtab.learn.oracles.queueing_problems import two_class_admission, two_queues

CONTINUING = {"discount": 0.95, "average_reward": True}
QUICK: dict[type[Learner], dict[str, Any]] = {  # settings for a test
    QLearning: {"slow": 30.0, "power": 0.9, "segment_steps": 4096, **CONTINUING},
    Dqn: {"rate": 3e-3, "target_every": 50, "segment_steps": 4096, "memory": 8192, **CONTINUING},
    A2c: {"rollout": 8, "rate": 5e-3, "entropy": 0.1, "segment_steps": 4096, **CONTINUING},
    Ppo: {"rate": 3e-3, "entropy": 0.05, "batch": 256, "segment_steps": 4096, **CONTINUING},
    EvolvedNetwork: {"pairs": 8, "horizon": 64, "sigma": 0.2, "rate": 0.1},
}
EVERY = pytest.mark.parametrize("method", QUICK, ids=lambda m: m.__name__)


def learner(method: type[Learner], env: Any, **other: Any) -> Learner:
    settings = {**QUICK[method], "seed": 0, **other}
    return method(env.single_observation_space, env.single_action_space, **settings)


def environment(method: type[Learner], form: str = "flat", copies: int = 32) -> OracleEnv:
    return OracleEnv(two_class_admission(), copies, "index" if method is QLearning else form)


@pytest.mark.parametrize("method", [m for m in QUICK if m is not EvolvedNetwork], ids=lambda m: m.__name__)
def test_admission_is_learned_within_five_per_cent(method: type[Learner]) -> None:
    """Taking whoever comes costs 47 % more than the optimum, keeping a slot too many 3 %."""
    env = environment(method, copies=64)
    trained = learner(method, env)
    list(trained.train(env, 131_072))
    cost = env.process.average_cost(trained.act(env.observations, env.process.allowed))
    assert cost <= 1.05 * env.process.optimum().average_cost


@EVERY
def test_a_run_that_goes_on_from_half_gives_equal_weights(method: type[Learner]) -> None:
    env = environment(method)
    whole = learner(method, env)
    halves = []
    for number, _ in enumerate(whole.train(env, 16_384)):
        halves.append(whole.checkpoint())
        if number == 1:
            other_env = environment(method)
            resumed = learner(method, other_env)
            resumed.restore(halves[-1])
    progress = list(resumed.train(other_env, 16_384))
    assert progress[-1].steps == 16_384
    assert resumed.checkpoint()["state"] == whole.checkpoint()["state"]
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(resumed.arrays()[name], array, err_msg=name)


@EVERY
def test_seeds_give_equal_runs_and_other_seeds_other_ones(method: type[Learner]) -> None:
    def trained(seed: int) -> np.ndarray:
        env = environment(method)
        found = learner(method, env, seed=seed)
        list(islice(found.train(env, 8192), 1))
        return next(iter(found.arrays().values())).copy()

    np.testing.assert_array_equal(trained(1), trained(1))
    assert (trained(1) != trained(2)).any()


@pytest.mark.parametrize("method", [m for m in QUICK if m is not QLearning], ids=lambda m: m.__name__)
def test_rows_are_trained_on(method: type[Learner]) -> None:
    env = OracleEnv(two_queues(), 32, "rows")
    trained = learner(method, env)
    assert len(list(islice(trained.train(env, 8192), 1))) == 1
    actions = trained.act(env.observations, env.process.allowed)
    assert env.process.allowed[np.arange(len(actions)), actions].all()


def test_rows_are_learned_from() -> None:
    env = OracleEnv(two_queues(), 32, "rows")
    trained = learner(A2c, env)
    list(trained.train(env, 65_536))
    always_first = env.process.average_cost(env.process.allowed.argmax(axis=1))
    assert env.process.average_cost(trained.act(env.observations, env.process.allowed)) < always_first


def test_any_number_of_nodes_takes_the_same_weights() -> None:
    two, nine = (Network((nodes, 3), nodes + 1, (8,), seed=0) for nodes in (2, 9))
    nine.load_state_dict(two.state_dict())
    assert nine.predict(np.ones((4, 9, 3), np.float32)).shape == (4, 10)


class Broken(OracleEnv):
    """Rewards are not numbers after a while."""

    def step(self, actions: np.ndarray) -> Any:
        observations, rewards, *rest = super().step(actions)
        self.asked = getattr(self, "asked", 0) + 1
        return observations, rewards * (np.nan if self.asked > 40 else 1), *rest


@EVERY
def test_rewards_that_are_no_numbers_stop_training(method: type[Learner]) -> None:
    env = Broken(two_class_admission(), 32, "index" if method is QLearning else "flat")
    with pytest.raises(TrimtabError, match="training has failed"):
        list(learner(method, env).train(env, 65_536))


class Late(OracleEnv):
    """Begins an episode a step late."""

    def __init__(self) -> None:
        super().__init__(two_class_admission(), 32)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}


def test_what_cannot_be_trained_on_is_refused() -> None:
    box, two = gym.spaces.Box(0, 1, (3,)), gym.spaces.Discrete(2)
    with pytest.raises(UsageError, match="expected a Discrete space"):
        Ppo(box, box)
    with pytest.raises(UsageError, match=r"discount: .*got 1\.5"):
        Ppo(box, two, discount=1.5)
    with pytest.raises(UsageError, match="number: a table needs numbered observations"):
        QLearning(box, two)
    with pytest.raises(UsageError, match=r"autoreset_mode: .*expected AutoresetMode\.SAME_STEP"):
        list(learner(Ppo, Late()).train(Late(), 64))
    with pytest.raises(UsageError, match="expected a multiple of 16"):
        list(
            learner(EvolvedNetwork, environment(EvolvedNetwork, copies=24)).train(
                environment(EvolvedNetwork, copies=24), 64
            )
        )


def test_a_checkpoint_of_other_settings_is_refused() -> None:
    env = environment(Ppo)
    with pytest.raises(UsageError, match=r"(policy|value)\.\w+: a checkpoint of other settings"):
        learner(Ppo, env, hidden=(8,)).restore(learner(Ppo, env).checkpoint())


class Corridor(gym.vector.VectorEnv):
    """Two steps, the second rewarded by 1 for action 1; no masks. `cuts`: episodes are cut off, not ended."""

    def __init__(self, cuts: bool) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs, self.cuts = 32, cuts
        self.single_observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.second = np.zeros(32, np.bool_)

    def _seen(self) -> np.ndarray:
        return np.stack([~self.second, self.second], axis=1).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.second = np.zeros(32, np.bool_)
        return self._seen(), {}

    def step(self, actions: np.ndarray) -> Any:
        over, none = self.second.copy(), np.zeros(32, np.bool_)
        rewards = np.where(over, actions, 0).astype(np.float64)
        self.second = ~over
        info = {"final_obs": np.tile(np.float32([0, 1]), (32, 1)), "_final_obs": over} if over.any() else {}
        return self._seen(), rewards, none if self.cuts else over, over if self.cuts else none, info


@pytest.mark.parametrize("cuts", [False, True])
def test_values_end_with_the_episode_but_go_on_where_it_is_cut_off(cuts: bool) -> None:
    env = Corridor(cuts)
    trained = A2c(
        env.single_observation_space, env.single_action_space, discount=0.5, trace=1.0, rollout=4, rate=0.01
    )
    list(trained.train(env, 65_536))
    values = trained.value.predict(np.eye(2, dtype=np.float32))[:, 0].numpy()
    # Cut off: the second step is followed by itself, so it is worth 1 / (1 - .5); the first half of that.
    np.testing.assert_allclose(values, [1.0, 2.0] if cuts else [0.5, 1.0], rtol=0.1)
    assert trained.act(np.float32([[0, 1]]), np.ones((1, 2), np.bool_)) == 1


def test_evolution_finds_the_reward() -> None:
    env = Corridor(cuts=False)
    trained = learner(EvolvedNetwork, env)
    list(trained.train(env, 32_768))
    assert trained.act(np.float32([[0, 1]]), np.ones((1, 2), np.bool_)) == 1


def test_adam_is_pytorchs() -> None:
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    adam, reference = Adam(ours), torch.optim.Adam(theirs.parameters(), lr=0.01)
    inputs = torch.arange(12.0).reshape(4, 3)
    for _ in range(20):
        adam.descend(ours(inputs).square().mean(), 0.01)
        reference.zero_grad()
        theirs(inputs).square().mean().backward()
        reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_scores_stay_where_their_range_moves() -> None:
    network = Network((2, 3), 3, (8,), seed=0)
    seen = np.random.default_rng(0).random((5, 2, 3), np.float32)
    network.normalise(torch.tensor([1.0, 5.0]), 0.1)
    before = network.predict(seen)
    network.normalise(torch.tensor([-40.0, 90.0]), 0.5)
    torch.testing.assert_close(network.predict(seen), before)
