"""An agent that gives training jobs their GPUs, round by round."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from trimtab.errors import UsageError
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.learn.environments import AllocateEnv
from trimtab.learn.environments.allocate_env import JOB_COLUMNS, LEVELS

ASKED = LEVELS.index(1.0)


def played(env: AllocateEnv, choose: Any, seed: int = 0) -> float:
    """The sum of rewards of an episode."""
    _, info = env.reset(options={"seed": seed})
    total, is_over = 0.0, False
    while not is_over:
        _, reward, is_over, is_cut, info = env.step(choose(info["action_mask"]))
        assert not is_cut
        total += reward
    return total


def as_asked(mask: Any) -> Any:
    return np.where(mask[:, ASKED], ASKED, 0)


def test_gymnasium_finds_nothing_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("trimtab/Allocate-v0").unwrapped, skip_render_check=True)


def test_rewards_add_up_to_figures_of_the_run() -> None:
    env = AllocateEnv(jobs=150)
    sums = {
        name: played(AllocateEnv(jobs=150, reward=name), as_asked) for name in ("deadlines", "utilisation")
    }
    completion = played(env, as_asked)
    records, jobs = env.run.records(), env.run.jobs.jobs
    assert np.isfinite(records.finish_s).all()
    assert completion == pytest.approx(-np.mean(records.finish_s - jobs["submit_s"]), rel=1e-12)
    assert sums["deadlines"] == pytest.approx(np.mean(records.finish_s <= jobs["deadline_s"]))
    gpu_s = env.run.total_gpus * jobs["submit_s"].max()
    assert sums["utilisation"] == pytest.approx(jobs["attained_gpu_s"].sum() / gpu_s)


def test_jobs_as_asked_in_order_complete_about_as_with_fifo() -> None:
    """Both pass over what does not fit; `fifo` starts jobs when they come, here they wait for a round."""
    scenario = TRAINING_KIND.read("elastic-training", load=None, policies=None, seeds=None)
    inputs = TRAINING_KIND.build(scenario, 0, None)
    fifo = TRAINING_KIND.measure(TRAINING_KIND.run(inputs, "fifo", "auto"))["completion_mean_s"]
    assert -played(AllocateEnv(jobs=150), as_asked) == pytest.approx(fifo, rel=0.02)


def test_all_jobs_end_even_if_the_agent_gives_nothing() -> None:
    env = AllocateEnv(jobs=150, load=2.0)
    played(env, lambda mask: np.zeros(len(mask), np.int64))
    assert np.isfinite(env.run.records().finish_s).all()


def test_two_rollouts_of_one_seed_are_equal() -> None:
    def rollout() -> tuple[list[float], Any]:
        env, rng, rewards = AllocateEnv(jobs=8), np.random.default_rng(2), []
        rows, _ = env.reset(seed=7)
        for _ in range(200):
            rows, reward, _, _, _ = env.step(rng.integers(0, len(LEVELS), 8))
            rewards.append(reward)
        return rewards, rows

    (first, one), (second, two) = rollout(), rollout()
    assert first == second
    np.testing.assert_array_equal(one, two)
    assert one.shape == (8, len(JOB_COLUMNS))


def test_a_level_that_the_mask_forbids_gives_nothing() -> None:
    env = AllocateEnv()
    _, info = env.reset(options={"seed": 0})
    assert info["action_mask"][:, 0].all()
    assert not info["action_mask"][1:, 1:].any()  # one job has come
    forbidden = np.flatnonzero(~info["action_mask"][0])
    env.step(np.full(32, forbidden[0]))
    assert env.run.running.n_gpus.sum() == 0


@pytest.mark.parametrize(
    ("setting", "problem"), [({"reward": "speed"}, "is no reward"), ({"seeds": []}, "is empty")]
)
def test_what_cannot_be_is_refused(setting: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        AllocateEnv(**setting)
    with pytest.raises(UsageError, match="has no episode yet"):
        AllocateEnv().step(np.zeros(32, np.int64))
