"""`python -m bench.imitation`: networks that make plans beside optima and rules; their page.

    python -m bench.imitation           train what bench/weights lacks, judge it all, save after each part
    python -m bench.imitation --docs    only the page

Training takes a CPU minute for each file of weights, judging five.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from bench.imitation_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.domain.artifact import Artifact, Floats
from trimtab.domain.cluster import Ints
from trimtab.learn.drawn_workloads import Objective, Workloads
from trimtab.learn.judgement import UNSEEN, judged
from trimtab.learn.plan_training import plan_training
from trimtab.learn.small_schedules import copied, drawn_window, optimal_schedule, starts_s, total_s
from trimtab.learn.weight_search import METHODS, Method, Setting
from trimtab.metrics import mean_ci95
from trimtab.policies import find
from trimtab.policies.resource_aware.hungarian import least_cost
from trimtab.policies.shared.plan_features import Window, window
from trimtab.policies.shared.plan_networks import SetNetwork, matched, sequence, set_scores

RESULTS, PAGE = ROOT / "bench" / "imitation.json", ROOT / "docs" / "benchmarks" / "imitation.md"
WEIGHTS = ROOT / "bench" / "weights"
TRAINED_ON: Final = Workloads(requests=200, nodes=(8, 16, 32))
GENERATIONS: Final[Mapping[Method, int]] = {
    "imitate-plans": 10,
    "imitate-schedules": 10,
    "rnn": 30,
    "transformer": 30,
}
SEEDS: Final = (0, 1)  # of trainings by small instances
SIZES: Final = ((5, 3), (8, 4), (10, 6))  # requests and slots of an instance
INSTANCES, FIRST_DRAW = 200, 1_000  # of a size; no training draws by such a seed
PERIOD_S: Final = 1.0  # between plans of all policies that match
LARGE: Final = Workloads(requests=1_500, nodes=(64, 96, 128))
CLUSTERS: Final = 12
MOMENTS: Final = ((16, 32), (64, 128))  # requests and slots of a plan that is timed
TIMED: Final = 200


def trainings() -> dict[str, tuple[Method, int]]:
    """Name of each file of weights → method and seed."""
    found: dict[str, tuple[Method, int]] = {}
    for method in GENERATIONS:
        for seed in SEEDS if method in ("rnn", "transformer") else SEEDS[:1]:
            found[f"{method}-{seed}"] = method, seed
    return found


def setting(method: Method, seed: int) -> Setting:
    """What a file of weights is trained by."""
    trains, workloads = METHODS[method], TRAINED_ON if method.startswith("imitate") else Workloads()
    mean, generations = Objective.parsed("mean"), GENERATIONS[method]
    return Setting(
        trains.policies[0], mean, workloads, generations, hidden=trains.hidden, seed=seed, method=method
    )


def train(name: str) -> dict[str, Any]:
    """Train a file of weights; what its training tells."""
    method, seed = trainings()[name]
    begun_s, given = time.process_time(), setting(method, seed)
    training = plan_training(method)(given)
    while not training.is_over:
        training.step()
    WEIGHTS.mkdir(exist_ok=True)
    artifact = training.artifact(name)
    path(name).write_bytes(artifact.content())
    curve = [round(generation.loss, 5) for generation in training.history]
    cpu_s = round(time.process_time() - begun_s)
    return {**given.told(), "sha256": artifact.sha256, "cpu_s": cpu_s, "curve": curve}


def path(name: str) -> Any:
    """The file of weights of a name."""
    return WEIGHTS / f"plan-{name}.safetensors"


def network(name: str) -> Any:
    """The network of a file of weights."""
    policy = METHODS[trainings()[name][0]].policies[0]
    given: Any = find(f"{policy}(artifact={path(name)})").dispatch
    return given.network()


Rule = Callable[[Window], Ints]  # the slot of each request, -1 = none


def matched_again(w: Window, rule: Rule) -> float:
    """Sum of completions where a rule matches all that waits, and again whenever a request has started.

    The match whose slot is free first starts. Where there is none, the pair that completes first does.
    """
    first, w = w, copied(w)
    pairs, open_ = list[tuple[int, int]](), list(range(len(w.best_s)))
    while open_:
        rows = np.array(open_)
        left = window(
            w.service_s[rows],
            w.load_s[rows],
            w.free_s,
            w.best_s[rows],
            w.waited_s[rows],
            w.item[rows],
            w.node,
        )
        slot = rule(left)
        matches = np.flatnonzero(slot >= 0)
        if len(matches):
            k = int(matches[np.argmin(w.free_s[slot[matches]])])
            j = int(slot[k])
        else:
            ends_s = w.free_s + left.load_s + left.service_s
            k, j = (int(index) for index in np.unravel_index(ends_s.argmin(), ends_s.shape))
        i = open_.pop(k)
        pairs.append((i, j))
        w.free_s[j] = starts_s(first, pairs)[-1][1]
        if w.item[i] >= 0:
            w.load_s[w.item == w.item[i], j] = 0.0
    return sum(end_s for _, end_s in starts_s(first, pairs))


def _optimal_matching(w: Window) -> Ints:
    return least_cost(w.free_s + w.load_s + w.service_s, np.zeros(len(w.best_s)))


def _cost_of(name: str) -> Callable[[Window], float]:
    found = network(name)
    if isinstance(found, SetNetwork):
        return lambda w: matched_again(w, lambda left: matched(*set_scores(found, left)))
    return lambda w: total_s(w, *sequence(found, copied(w)))


def small() -> dict[str, dict[str, dict[str, float]]]:
    """Size of instances → maker of schedules → its mean and worst excess over the optimum."""
    makers = {"hungarian": lambda w: matched_again(w, _optimal_matching)}
    makers |= {name: _cost_of(name) for name in trainings()}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for n, m in SIZES:
        draw = np.random.default_rng((FIRST_DRAW, n, m))
        instances = [drawn_window(draw, n, m) for _ in range(INSTANCES)]
        best_s = np.array([optimal_schedule(w).total_s for w in instances])
        size = found[f"{n} requests, {m} slots"] = {}
        for name, cost_s in makers.items():
            excess: Floats = np.array([cost_s(w) for w in instances]) / best_s - 1.0
            mean = mean_ci95(excess)
            optimal = float((excess < 1e-9).mean())
            size[name] = {
                "mean": mean.mean,
                "ci95": mean.ci95 or 0.0,
                "worst": excess.max(),
                "optimal": optimal,
            }
    return found


def policies() -> dict[str, str]:
    """Title → policy, in the loop."""
    every = f"plan_period_s={PERIOD_S}"
    found = {"hungarian": f"hungarian({every})", "auto": "auto"}
    for name, (method, _) in trainings().items():
        found[name] = f"{METHODS[method].policies[0]}(artifact={path(name)},{every})"
    return found


def plan_ms() -> dict[str, dict[str, float]]:
    """Size of a plan → maker → CPU milliseconds of its mean plan, features not counted."""
    makers: dict[str, Callable[[Window], Any]] = {"hungarian": _optimal_matching}
    for name, (_, seed) in trainings().items():
        found = network(name)
        if seed == 0 and isinstance(found, SetNetwork):
            makers[name] = lambda w, found=found: matched(*set_scores(found, w))  # type: ignore[misc]
        elif seed == 0:
            makers[name] = lambda w, found=found: sequence(found, w)  # type: ignore[misc]
    times: dict[str, dict[str, float]] = {}
    for n, m in MOMENTS:
        draw = np.random.default_rng((FIRST_DRAW, n, m))
        windows = [drawn_window(draw, n, m) for _ in range(TIMED // 10)]
        for name, make in makers.items():
            make(copied(windows[0]))
            given = [copied(w) for w in windows for _ in range(10)]
            begun_s = time.process_time()
            for w in given:
                make(w)
            took_ms = 1e3 * (time.process_time() - begun_s) / len(given)
            times.setdefault(f"{n} requests, {m} slots", {})[name] = round(took_ms, 3)
    return times


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.imitation", __doc__).parse_args(given).docs:
        figures: dict[str, Any] = saved_figures(RESULTS) if RESULTS.exists() else {"trained": {}}
        figures |= {"machine": machine(), "versions": versions()}
        for name in trainings():
            if not path(name).exists():
                figures["trained"][name] = train(name)
                figures["policies"] = {}
                save_figures(RESULTS, figures)
            told = Artifact.read(str(path(name))).sha256
            assert figures["trained"][name]["sha256"] == told, f"{path(name)} is of another training"
        figures["small"] = small()
        figures["instances"], figures["clusters"] = INSTANCES, CLUSTERS
        for name, policy in policies().items():
            if name not in figures.setdefault("policies", {}):
                begun_s = time.process_time()
                (found,) = judged([policy], LARGE, range(UNSEEN, UNSEEN + CLUSTERS))
                told_of = {key: value for key, value in found.to_dict().items() if key != "policy"}
                figures["policies"][name] = {**told_of, "cpu_s": round(time.process_time() - begun_s, 1)}
                save_figures(RESULTS, figures)
        figures["plan_ms"] = plan_ms()
        save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
