"""Agents that decide in the simulator: what they see, what they are paid, and that nothing else changes."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import trimtab as tt
import trimtab.learn
from trimtab.domain.requests import Status
from trimtab.errors import UsageError
from trimtab.learn.environments import DispatchEnv, DispatchVectorEnv, MatchEnv, MatchVectorEnv
from trimtab.learn.environments.observations import NODE_COLUMNS, PAIR_COLUMNS
from trimtab.learn.environments.rewards import REWARDS

NODE, PAIR = ({c.name: k for k, c in enumerate(columns)} for columns in (NODE_COLUMNS, PAIR_COLUMNS))
NAMES = ("trimtab/Dispatch-v0", "trimtab/Match-v0")
SLOTS = 14
PLAIN: dict[str, Any] = {  # unrelated speeds, no models
    "name": "plain",
    "cluster": {
        "types": {
            "fast": {"slots": 1, "memory_gib": 1.0, "usd_per_hour": 4.0},
            "slow": {"slots": 1, "memory_gib": 1.0, "usd_per_hour": 1.0},
            "wide": {"slots": 2, "memory_gib": 1.0, "usd_per_hour": 2.0},
        },
        "nodes": [
            {"type": "fast", "count": 4},
            {"type": "slow", "count": 6},
            {"type": "wide", "count": 2},
        ],
    },
    "classes": {
        "a": {
            "fixed_s": {"fast": 1.0, "slow": 3.0, "wide": 2.0},
            "unit_s": {"fast": 2.0, "slow": 5.0, "wide": 2.5},
            "slo_s": 9.0,
        },
        "b": {
            "fixed_s": {"fast": 2.0, "slow": 2.0, "wide": 3.0},
            "unit_s": {"fast": 6.0, "slow": 5.0, "wide": 8.0},
        },
    },
    "workload": {
        "generate": {
            "requests": 400,
            "arrival": {"process": "poisson", "rate_per_s": 1.0},
            "mix": {
                name: {"share": 0.5, "size": {"distribution": "lognormal", "mean": 1.0, "cv": 0.8}}
                for name in "ab"
            },
        },
        "load": 0.9,
        "service_cv": 0.3,
        "estimate_cv": 0.2,
    },
}


UNTARGETED = PLAIN | {"classes": {name: spec | {"slo_s": None} for name, spec in PLAIN["classes"].items()}}


def ratio(share: Any) -> Any:
    """x of the share x / (x + 1)."""
    return share / np.maximum(1.0 - share, 1e-12)


def soonest(rows: Any, mask: Any) -> int:
    """Least expected completion, from the columns of nodes."""
    load, slower, wait = (rows[:, NODE[name]] for name in ("load", "slower", "wait"))
    completion = ratio(wait) + ratio(load) + (1.0 + slower) / (1.0 - slower)
    return int(np.where(mask[: len(rows)], completion, np.inf).argmin())


def late_binding(slots: int, rows: Any, mask: Any) -> int:
    """The rule of `late-binding`, from the columns of pairs; the pairs of a request have equal columns."""
    rows = rows[: int(mask[:-1].sum())]
    of = {name: rows[:, k] for name, k in PAIR.items()}
    best = ratio(of["size"])
    there, load = best * (1.0 + of["slower"]) / (1.0 - of["slower"]), best * ratio(of["load"])
    queue = ratio(of["crowding"][0])
    score = there + load + queue * (3.0 * load + there - best) - 0.7 * best * ratio(of["waited"])
    if round(queue * slots) < 16:
        of_request = np.unique(rows[:, [PAIR["waited"], PAIR["size"]]], axis=0, return_inverse=True)[1]
        idle = np.array([(there + load)[of_request == k].min() for k in of_request])
        is_later = np.where(of["later"] < 1.0, best * ratio(of["later"]), np.inf) < idle
        score = np.where((idle > best * (1.0 + 1e-9)) & is_later, np.inf, score)
    return int(score.argmin()) if np.isfinite(score.min()) else len(mask) - 1


def played(env: Any, choose: Any, seed: int = 0) -> tuple[float, int]:
    """The sum of rewards of an episode, and its steps."""
    rows, info = env.reset(options={"seed": seed})
    total, steps, is_over = 0.0, 0, False
    while not is_over:
        rows, reward, ended, cut, info = env.step(choose(rows, info["action_mask"]))
        total, steps, is_over = total + reward, steps + 1, ended or cut
    return total, steps


def first_allowed(_: Any, mask: Any) -> int:
    return int(mask.argmax())


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, scenario="tiny").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("scenario", ["tiny", PLAIN], ids=["tiny", "plain"])
def test_least_expected_completion_outside_is_that_inside(scenario: Any) -> None:
    inside = tt.simulate(scenario, policy="least-expected-completion", seed=3)
    total, steps = played(DispatchEnv(scenario), soonest, seed=3)
    assert total == pytest.approx(-inside.metrics["completion_mean_s"], rel=1e-12)
    assert steps == len(inside.requests)


@pytest.mark.parametrize("scenario", ["tiny", PLAIN], ids=["models", "plain"])
@pytest.mark.parametrize("load", [0.6, 1.0])
def test_late_binding_outside_is_that_inside(scenario: Any, load: float) -> None:
    inside = tt.simulate(scenario, policy="late-binding", seed=1, load=load)
    slots = int(inside.inputs.cluster.slots.sum())
    env = MatchEnv(scenario, load=load, dtype="float64")
    total, _ = played(env, partial(late_binding, slots), seed=1)
    assert total == pytest.approx(-inside.metrics["completion_mean_s"], rel=1e-12)


def test_rewards_add_up_to_figures_of_the_run() -> None:
    for name, factor in (("tail", 1.0), ("slo", 1.0), ("utilisation", 1.0), ("cost", 1.0)):
        env = DispatchEnv(PLAIN, reward={name: factor, "completion": 0.0})
        total, _ = played(env, soonest)
        driver, inputs = env.runs.driver(0), env.runs.episodes.inputs(0)
        rows, work = driver.state.requests, inputs.requests.work
        took_s, node = rows["finish_s"] - work["arrival_s"], rows["node_idx"]
        usd_per_s = inputs.cluster.usd_per_hour[inputs.cluster.type_idx] / inputs.cluster.slots / 3600.0
        held_s = rows["finish_s"] - rows["start_s"]
        slots_s = inputs.cluster.slots.sum() * work["arrival_s"].max()
        expected = {
            "tail": -np.mean(took_s**2),
            "slo": -np.mean(took_s > inputs.slo_s[work["class_idx"]]),
            "utilisation": held_s.sum() / slots_s,
            "cost": -np.mean(held_s * usd_per_s[node]),
        }
        assert total == pytest.approx(expected[name]), name
    assert set(REWARDS) == {"completion", *expected}


@pytest.mark.parametrize("env", [DispatchEnv(PLAIN), MatchEnv(PLAIN)], ids=["dispatch", "match"])
def test_two_rollouts_of_one_seed_are_equal(env: Any) -> None:
    def rollout() -> tuple[list[float], Any]:
        rng, rewards = np.random.default_rng(5), []
        rows, info = env.reset(seed=11)
        for _ in range(300):
            rows, reward, ended, _, info = env.step(rng.choice(np.flatnonzero(info["action_mask"])))
            rewards.append(reward)
            assert not ended
        return rewards, rows

    (first, one), (second, two) = rollout(), rollout()
    assert first == second
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("vector", "single"),
    [
        (DispatchVectorEnv(3, PLAIN, seeds=[4]), DispatchEnv(PLAIN, seeds=[4])),
        (MatchVectorEnv(3, PLAIN, seeds=[4]), MatchEnv(PLAIN, seeds=[4])),
    ],
    ids=["dispatch", "match"],
)
def test_a_vector_is_its_runs_and_begins_anew_in_the_same_step(vector: Any, single: Any) -> None:
    rows, info = vector.reset(seed=0)
    alone, own = single.reset(seed=0)
    n_over = 0
    while n_over < 2:
        action = first_allowed(alone, own["action_mask"])
        rows, rewards, ended, _, info = vector.step(info["action_mask"].argmax(axis=1))
        alone, reward, is_over, _, own = single.step(action)
        np.testing.assert_array_equal(rewards, reward)
        np.testing.assert_array_equal(ended, is_over)
        if is_over:
            n_over += 1
            np.testing.assert_array_equal(info["final_obs"], np.stack([alone] * 3))
            alone, own = single.reset()
        np.testing.assert_array_equal(rows, np.stack([alone] * 3))
        np.testing.assert_array_equal(info["action_mask"], np.stack([own["action_mask"]] * 3))


@pytest.mark.parametrize("env", [DispatchEnv(PLAIN, hold=True), MatchEnv(PLAIN)], ids=["dispatch", "match"])
def test_all_is_served_even_if_the_agent_always_holds(env: Any) -> None:
    total, _ = played(env, lambda _, mask: len(mask) - 1)
    state = env.runs.driver(0).state
    assert (state.requests["status"] == Status.FINISHED).all()
    took_s = state.requests["finish_s"] - state.work["arrival_s"]
    assert total == pytest.approx(-took_s.mean())


def test_an_action_that_the_mask_forbids_holds_the_request() -> None:
    scenario = PLAIN | {"classes": {"a": {"fixed_s": {"fast": 1.0}, "unit_s": {"fast": 1.0}}}}
    scenario["workload"] = PLAIN["workload"] | {
        "generate": PLAIN["workload"]["generate"] | {"mix": {"a": PLAIN["workload"]["generate"]["mix"]["a"]}}
    }
    env = DispatchEnv(scenario)
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [True] * 4 + [False] * 8
    env.step(np.int64(11))
    assert env.runs.driver(0).state.requests["status"][0] == Status.HELD


def test_a_family_has_a_scenario_for_each_seed_and_rows_for_the_largest() -> None:
    def family(seed: int) -> dict[str, Any]:
        nodes = [{"type": "fast", "count": 1 + seed}]
        return PLAIN | {"cluster": PLAIN["cluster"] | {"nodes": nodes}}

    env = DispatchEnv(family, nodes=5, seeds=[2, 4])
    for seed in (2, 4):
        _, info = env.reset(options={"seed": seed})
        assert info["action_mask"].tolist() == [True] * (1 + seed) + [False] * (4 - seed)
    with pytest.raises(UsageError, match="the scenario of seed 7 has 8 nodes"):
        env.reset(options={"seed": 7})


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"reward": "speed"}, "is no reward"),
        ({"reward": "slo", "scenario": UNTARGETED}, "no class has a target"),
        ({"seeds": []}, "is empty"),
        ({"scenario": "no-such"}, "no-such"),
    ],
)
def test_what_cannot_be_is_refused(setting: dict[str, Any], problem: str) -> None:
    with pytest.raises(tt.TrimtabError, match=problem):
        DispatchEnv(**({"scenario": "tiny"} | setting))
