"""`python -m bench.learned_oracles`: methods of learning on problems whose optimum is known, and their page.

Some ten minutes of one core. Saves bench/learned-oracles.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bench.learned_oracles_page import page
from bench.machine import machine
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.learn.methods.a2c import A2c
from trimtab.learn.methods.dqn import Dqn
from trimtab.learn.methods.evolved_network import EvolvedNetwork
from trimtab.learn.methods.learner import Learner
from trimtab.learn.methods.ppo import Ppo
from trimtab.learn.methods.q_learning import QLearning
from trimtab.learn.oracles.decision_process import DecisionProcess
from trimtab.learn.oracles.oracle_env import OracleEnv
from trimtab.learn.oracles.queueing_problems import two_class_admission, two_queues, unequal_servers

RESULTS = ROOT / "bench" / "learned-oracles.json"
PAGE = ROOT / "docs" / "benchmarks" / "learned-oracles.md"
PROBLEMS = (unequal_servers, two_class_admission, two_queues)
SEEDS = range(10, 15)
CONTINUING = {"discount": 0.98, "average_reward": True}
METHODS: Mapping[str, tuple[type[Learner], int, int, dict[str, Any]]] = {  # class, steps, copies, settings
    "Q-learning": (QLearning, 2_000_000, 128, {"slow": 15.0, "power": 0.9, "segment_steps": 16_384}),
    "A2C": (A2c, 1_048_576, 64, {"rollout": 8, "entropy": 0.1, "segment_steps": 16_384}),
    "PPO": (Ppo, 524_288, 128, {"rate": 3e-3, "entropy": 0.05, "segment_steps": 32_768}),
    "evolution strategies": (EvolvedNetwork, 524_288, 128, {"horizon": 64, "sigma": 0.2, "rate": 0.1}),
    "DQN": (Dqn, 1_048_576, 128, {"rate": 3e-3, "target_every": 100, "segment_steps": 32_768}),
}


def rules(process: DecisionProcess) -> Iterator[tuple[str, np.ndarray]]:
    """Policies that people would try first, as (states,) actions."""
    yield "the first that is allowed", process.allowed.argmax(axis=1)
    if process.name == "two queues":
        at = process.states[:, :2]
        speeds = process.rows[0, :, 2]
        for name, keys in (("shortest queue", at), ("shortest delay", (at + 1) / speeds)):
            yield (
                name,
                np.where(process.allowed[:, :2], keys, np.inf).argmin(axis=1) + 2 * process.allowed[:, 2],
            )


def best_of_one(process: DecisionProcess) -> float:
    """The least cost of a rule that sends to the first of two queues below a length of it."""
    first, here = process.states[:, 0], process.allowed[:, 0]
    there = np.where(process.allowed[:, 1], 1, 2)
    lengths = range(int(first.max()) + 2)
    return min(
        process.average_cost(np.where(here & (first < m) | (there == 2) & here, 0, there)) for m in lengths
    )


def runs(process: DecisionProcess, *, first_only: bool = False) -> Iterator[dict[str, Any]]:
    """Each method on each seed: how far its cost lies above the optimum."""
    optimum = process.optimum().average_cost
    for name, (method, steps, copies, settings) in METHODS.items():
        excess, began = [], time.process_time()
        for seed in SEEDS:
            form = "index" if method is QLearning else "flat"
            env = OracleEnv(process, copies, form, first_only=first_only)
            more = {} if method is EvolvedNetwork else CONTINUING
            learner = method(
                env.single_observation_space, env.single_action_space, seed=seed, **settings, **more
            )
            losses = [progress.losses for progress in learner.train(env, steps)]
            actions = learner.act(env.observations, process.allowed)
            excess.append(round(process.average_cost(actions) / optimum - 1, 5))
        cpu_s = (time.process_time() - began) / len(SEEDS)
        row = {
            "problem": process.name,
            "method": name,
            "steps": steps,
            "copies": copies,
            "settings": settings,
        }
        ends = {loss: [round(losses[0][loss], 4), round(losses[-1][loss], 4)] for loss in losses[0]}
        yield {**row, "excess": excess, "cpu_s": round(cpu_s, 2), "first_and_last_losses": ends}
        print(process.name, "one node" if first_only else "", name, excess, f"{cpu_s:.1f} CPU s", flush=True)


def measured() -> Iterator[dict[str, Any]]:
    """The figures so far, after each method."""
    routing = two_queues()
    best = best_of_one(routing) / routing.optimum().average_cost - 1
    figures: dict[str, Any] = {"machine": machine(), "best_of_one_node": round(best, 5), "problems": []}
    figures |= {"runs": [], "one_node": []}
    for problem in PROBLEMS:
        process = problem()
        optimum = process.optimum().average_cost
        known = {
            name: round(process.average_cost(actions) / optimum - 1, 5) for name, actions in rules(process)
        }
        described = {"name": process.name, "states": len(process.states), "cost": round(optimum, 6)}
        figures["problems"].append(described | {"rules": known})
    for problem in PROBLEMS:
        for run in runs(problem()):
            figures["runs"].append(run)
            yield figures
    for run in runs(routing, first_only=True):
        figures["one_node"].append(run)
        yield figures


def main() -> None:
    if not page_parser("bench.learned_oracles", __doc__).parse_args().docs:
        os.nice(5)
        for figures in measured():
            save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
