"""The section on environments of the guide to learning: its examples run, its tables are what is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import trimtab as tt
from support.guide_examples import found, ran
from trimtab.learn.environments.allocate_env import JOB_COLUMNS, JOB_REWARDS
from trimtab.learn.environments.observations import PAIR_COLUMNS
from trimtab.learn.environments.rewards import REWARDS
from trimtab.policies.shared.plan_features import PLAN_FEATURES

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "learn.md"


def test_the_first_example_is_paid_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    names = ran(found()["learn: import gymnasium as gym"])
    driver = names["env"].unwrapped.runs.driver(0)
    took_s = driver.state.requests["finish_s"] - driver.state.work["arrival_s"]
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(took_s.mean())
    assert names["envs"].num_envs == 64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own packages
def test_an_agent_of_stable_baselines_trains() -> None:
    agent: Any = ran(found()["learn: from stable_baselines3 import PPO"], gym=gymnasium)["agent"]
    assert agent.num_timesteps == 512
    env = gymnasium.make("trimtab/Dispatch-v0", scenario="tiny")
    rows, _ = env.reset(options={"seed": 0})
    is_over, total = False, 0.0
    while not is_over:
        action, _ = agent.predict(rows, deterministic=True)
        rows, reward, is_over, _, _ = env.step(np.int64(action))
        total += float(reward)
    best = tt.simulate("tiny", policy="least-expected-completion", seed=0).metrics["completion_mean_s"]
    assert total < 0.0
    assert -total > 0.5 * best


def test_tables_name_all_columns_and_rewards() -> None:
    text = GUIDE.read_text()
    for c in (*PAIR_COLUMNS, *JOB_COLUMNS, *PLAN_FEATURES):
        assert f"| `{c.name}` | {c.unit} | {c.meaning} | {c.least:g} to {c.most:g} |" in text
    for name, reward in (*REWARDS.items(), *JOB_REWARDS.items()):
        assert f"| `{name}` | {reward.unit} | {reward.total} |" in text
