"""`python -m bench.agents`: environments for agents: their speed, and what each reward buys; its page.

    python -m bench.agents           measure (two CPU minutes), save bench/agents.json
    python -m bench.agents --docs    only the page

An agent is one linear score of a node's columns, the least wins, trained by evolution strategies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bench.agents_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.domain.requests import Status
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.experiments.scenario.build import RunInputs
from trimtab.learn.environments import DispatchEnv, DispatchVectorEnv
from trimtab.learn.environments.observations import NODE_COLUMNS
from trimtab.learn.environments.rewards import REWARDS
from trimtab.learn.methods.evolution_strategies import EvolutionStrategies
from trimtab.metrics import mean_ci95
from trimtab.policies import find

RESULTS, PAGE = ROOT / "bench" / "agents.json", ROOT / "docs" / "benchmarks" / "agents.md"
RULE: Final = "least-expected-completion"
TYPES: Final = {"fast": 1.0, "usual": 1.6, "slow": 2.6}  # seconds, relative
USD_PER_HOUR: Final = {"fast": 4.0, "usual": 2.0, "slow": 1.0}
SCENARIO: Final[dict[str, Any]] = {
    "name": "sixteen nodes",
    "cluster": {
        "types": {
            name: {"slots": 1, "memory_gib": 24.0, "usd_per_hour": USD_PER_HOUR[name]} for name in TYPES
        },
        "nodes": [{"type": name, "count": n} for name, n in zip(TYPES, (5, 5, 6), strict=True)],
    },
    "models": {f"model{c}": {"memory_gib": 7.0, "load_s": 8.0, "count": 3, "zipf": 1.0} for c in range(3)},
    "classes": {
        f"class{c}": {
            "fixed_s": dict.fromkeys(TYPES, 1.0),
            "unit_s": {name: 4.0 * by ** (0.6 + 0.4 * c) for name, by in TYPES.items()},
            "model": f"model{c}",
            "slo_s": 30.0,
        }
        for c in range(3)
    },
    "workload": {
        "generate": {
            "requests": 400,
            "arrival": {"process": "mmpp", "rates_per_s": [1.0, 2.5], "sojourns_s": [60.0, 20.0]},
            "mix": {
                f"class{c}": {"share": share, "size": {"distribution": "lognormal", "mean": 1.0, "cv": 0.8}}
                for c, share in enumerate((0.5, 0.3, 0.2))
            },
        },
        "load": 0.8,
        "service_cv": 0.2,
        "estimate_cv": 0.2,
    },
}
SEEDS, UNSEEN = range(10), range(1000, 1030)
PAIRS, GENERATIONS = 5, 40
STEPS, LONG = 50_000, 4_000  # of a measurement of speed
START: Final = np.array([float(c.name in ("load", "slower", "wait")) for c in NODE_COLUMNS])


def speeds() -> dict[str, float]:
    """Steps per CPU second in episodes of LONG requests, resets included."""
    generate = SCENARIO["workload"]["generate"] | {"requests": LONG}
    long = SCENARIO | {"workload": SCENARIO["workload"] | {"generate": generate}}
    env, wait = DispatchEnv(long, seeds=SEEDS), [c.name for c in NODE_COLUMNS].index("wait")
    rows, _ = env.reset(seed=0)
    begun_s, found = time.process_time(), {}
    for _ in range(STEPS):
        rows, _, ended, _, _ = env.step(np.int64(rows[:, wait].argmin()))
        if ended:
            rows, _ = env.reset()
    found["1"] = STEPS / (time.process_time() - begun_s)
    for many in (16, 64, 256):
        vector = DispatchVectorEnv(many, long, seeds=SEEDS)
        batch, _ = vector.reset(seed=0)
        begun_s = time.process_time()
        for _ in range(4 * STEPS // many):
            batch, *_ = vector.step(batch[:, :, wait].argmin(axis=1))
        found[str(many)] = (4 * STEPS // many) * many / (time.process_time() - begun_s)
    return found


def trained(reward: str) -> np.ndarray:
    """Weights of the columns that the reward teaches."""
    search = EvolutionStrategies(START, pairs=PAIRS, sigma=0.15, rate=0.08)
    many = 2 * PAIRS * len(SEEDS)
    vector = DispatchVectorEnv(many, SCENARIO, reward=reward)
    for _ in range(GENERATIONS):
        weights = np.repeat(search.candidates(), len(SEEDS), axis=0)
        rows, _ = vector.reset(options={"seeds": list(SEEDS) * (2 * PAIRS)})
        totals, ended = np.zeros(many), np.zeros(many, np.bool_)
        while not ended.all():
            rows, rewards, over, _, _ = vector.step((rows @ weights[:, :, None])[:, :, 0].argmin(axis=1))
            totals += np.where(ended, 0.0, rewards)
            ended |= over
        search.tell(-totals.reshape(2 * PAIRS, len(SEEDS)))
    return search.result


def figures_of(driver: Driver, inputs: RunInputs) -> dict[str, float]:
    """What a run came to; all requests are served."""
    rows, work, cluster = driver.state.requests, inputs.requests.work, inputs.cluster
    assert (rows["status"] == Status.FINISHED).all()
    took_s, held_s = rows["finish_s"] - work["arrival_s"], rows["finish_s"] - rows["start_s"]
    usd_per_s = cluster.usd_per_hour[cluster.type_idx] / 3600.0 / cluster.slots
    return {
        "mean": float(took_s.mean()),
        "p99": float(np.percentile(took_s, 99.0)),
        "missed": float((took_s > inputs.slo_s[work["class_idx"]]).mean()),
        "busy": float(held_s.sum() / (cluster.slots.sum() * work["arrival_s"].max())),
        "usd": float(1000.0 * np.mean(held_s * usd_per_s[rows["node_idx"]])),
    }


def judged(weights: np.ndarray) -> list[dict[str, float]]:
    """Figures of an agent on each seed that no training saw."""
    env, found = DispatchEnv(SCENARIO), []
    for seed in UNSEEN:
        rows, _ = env.reset(options={"seed": seed})
        is_over = False
        while not is_over:
            rows, _, is_over, _, _ = env.step(np.int64((rows @ weights).argmin()))
        found.append(figures_of(env.runs.driver(0), env.runs.episodes.inputs(seed)))
    return found


def of_rule(rule: str) -> list[dict[str, float]]:
    """Figures of a policy of the catalogue on the same seeds."""
    found, episodes = [], DispatchEnv(SCENARIO).runs.episodes
    for seed in UNSEEN:
        inputs = episodes.inputs(seed)
        driver = run(inputs.cluster, inputs.requests, inputs.options, find(rule), seed=seed, mode="compiled")
        found.append(figures_of(driver, inputs))
    return found


def changes(own: list[dict[str, float]], rule: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean paired difference of each figure, and half of its 95 % interval."""
    found = {}
    for name in rule[0]:
        interval = mean_ci95(np.array([a[name] - b[name] for a, b in zip(own, rule, strict=True)]))
        found[name] = [interval.mean, interval.ci95]
    return found


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.agents", __doc__).parse_args(given).docs:
        rule = of_rule(RULE)
        figures: dict[str, Any] = {"machine": machine(), "versions": versions(), "speeds": speeds()}
        figures |= {"seeds": len(UNSEEN), "generations": GENERATIONS}
        figures |= {"rule": {n: float(np.mean([r[n] for r in rule])) for n in rule[0]}}
        figures["agents"] = {
            "`late-binding`": changes(of_rule("late-binding"), rule),
            "not trained": changes(judged(START), rule),
        }
        for reward in REWARDS:
            begun_s = time.process_time()
            figures["agents"][reward] = changes(judged(trained(reward)), rule)
            print(reward, round(time.process_time() - begun_s), "CPU s", flush=True)
        save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
