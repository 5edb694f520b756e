"""Comparisons as `compare` returns them, made from random numbers: nothing is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from trimtab.experiments.compare import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.kind import Curves
from trimtab.experiments.compare.tasks import BoundResult, RunResult
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.metrics import METRICS, Estimate, mean_ci95

POLICIES = (
    "random",
    "round-robin",
    "weighted-round-robin",
    "least-connections",
    "power-of-d",
    "least-expected-wait",
    "least-expected-completion",
    "bounded-hash",
    "least-expected-wait+sjf",
    "least-expected-wait+edf",
    "least-expected-wait+priority-ageing",
)
TYPES = ("a100", "h100", "l40s", "t4")
LOADS = (0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class NamedScenario:
    """What reports ask a scenario for."""

    name: str = "synthetic-images"
    workload: Any = field(default_factory=lambda: SimpleNamespace(trace=None, bursts=()))
    cluster: Any = field(
        default_factory=lambda: SimpleNamespace(types={"node": SimpleNamespace(service=None)})
    )
    faults: tuple[()] = ()
    background: tuple[()] = ()

    def content(self) -> dict[str, object]:
        return {"name": self.name}

    def hash(self) -> str:
        return "5f3c9a7be1d2" * 5


def comparison(
    policies: Sequence[str] = POLICIES,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    *,
    loads: Sequence[float] = LOADS,
    bounded: bool = True,
    unfit: int = 0,
    nodes: int = 100,
    bins: int = 120,
    folder: Workfolder | None = None,
    scenario_name: str = "synthetic-images",
) -> Comparison:
    """A comparison in which later policies of the list are, by and large, faster."""
    scenario: Any = NamedScenario(scenario_name)
    results = tuple(
        policy_result(policy, i, seeds, bounded=bounded, unfit=unfit, nodes=nodes, bins=bins)
        for i, policy in enumerate(policies)
    )
    bounds = [
        BoundResult(s, 11.0 + 0.1 * s, "B1 Lagrangian", ("no preemption", "true service times"))
        for s in seeds
    ]
    return Comparison(
        kind=SERVING,
        scenario=scenario,
        seeds=tuple(seeds),
        offered_load=0.8,
        n_items=10_000,
        results=results,
        bounds=tuple(bounds) if bounded else (),
        sweep=tuple(sweep_point(p, i, load, seeds) for i, p in enumerate(policies) for load in loads),
        elapsed_s=12.3,
        folder=folder,
    )


def policy_result(
    policy: str, rank: int, seeds: Sequence[int], *, bounded: bool, unfit: int, nodes: int, bins: int
) -> PolicyResult:
    runs = tuple(
        run_result(
            policy, rank, seed, curves=seed == seeds[0], bounded=bounded, unfit=unfit, nodes=nodes, bins=bins
        )
        for seed in seeds
    )
    return PolicyResult(policy, over_seeds(runs), mean_ci95([run.distance_frac for run in runs]), 1.0, runs)


def over_seeds(runs: Sequence[RunResult]) -> dict[str, Estimate]:
    return {name: mean_ci95([run.metrics[name] for run in runs]) for name in METRICS}


def run_result(
    policy: str,
    rank: int,
    seed: int,
    *,
    curves: bool = True,
    bounded: bool = True,
    unfit: int = 0,
    nodes: int = 100,
    bins: int = 120,
) -> RunResult:
    metrics = metrics_of(rank, seed, 0.8)
    return RunResult(
        policy=policy,
        seed=seed,
        load=None,
        metrics=metrics,
        distance_frac=metrics["completion_mean_s"] / (11.0 + 0.1 * seed) - 1 if bounded else float("nan"),
        curves=random_curves(rank, nodes, bins) if curves else None,
        loop_s=0.1,
        remarks={
            "fits_no_node": tuple(range(min(unfit, 5))),
            "n_fits_no_node": unfit,
            "lacks": (),
        },
        batch_ci95={},
    )


def metrics_of(rank: int, seed: int, load: float) -> dict[str, float]:
    """All metrics of one run; seeds move all policies alike, as common random numbers do."""
    common = np.random.default_rng(seed)
    own = np.random.default_rng([seed, rank])
    slow = (1.0 + 1.6 / (1 + rank)) * (0.4 / (1.02 - load)) ** 0.6 * common.uniform(0.9, 1.1)
    metrics = {name: float(own.uniform(0.1, 0.9)) for name in METRICS}
    metrics |= {
        "completion_mean_s": 14.0 * slow * own.uniform(0.99, 1.01),
        "completion_p50_s": 10.0 * slow,
        "completion_p99_s": 70.0 * slow * own.uniform(0.9, 1.1),
        "completion_var_s2": 400.0 * slow**2,
        "queueing_mean_s": 8.0 * slow - 6.0,
        "utilisation_var": 0.02 * slow * own.uniform(0.8, 1.2),
        "idle_frac": 0.2 + 0.02 * slow,
        "rejected_frac": 0.0,
        "slo_attained_frac": 1.0 - 0.2 * slow / (1 + slow),
        "deadline_satisfied_frac": float("nan"),
        "model_loads": float(500 + 10 * rank),
    }
    return metrics


def random_curves(rank: int, nodes: int, bins: int) -> Curves:
    rng = np.random.default_rng(rank)
    frac = np.linspace(0.0, 1.0, 400)
    wave = 0.5 + 0.4 * np.sin(np.linspace(0, 9, bins))[None, :]
    size = -(-nodes // len(TYPES))
    return Curves(
        quantile_frac=frac,
        completion_s=np.sort(rng.lognormal(2.6 + 1.2 / (2 + rank), 0.9, 400)),
        edges_s=np.linspace(0.0, 3600.0, bins + 1),
        queue_length=np.clip(120 * wave[0] / (1 + 0.3 * rank) + rng.normal(0, 6, bins), 0, None),
        utilisation_frac=np.clip(wave + rng.normal(0, 0.15, (nodes, bins)), 0.0, 1.0),
        row_names=tuple(f"{TYPES[j // size]}-{j % size}" for j in range(nodes)),
    )


def sweep_point(policy: str, rank: int, load: float, seeds: Sequence[int]) -> SweepPoint:
    runs = [metrics_of(rank, seed, load) for seed in seeds]
    return SweepPoint(policy, load, {name: mean_ci95([run[name] for run in runs]) for name in METRICS})
