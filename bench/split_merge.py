"""The gain of splitting and batching by load: `python -m bench.split_merge [--seeds N] [--requests N]`.

Prints, for each load, the mean completion of fixed choices and of split-merge, each over its seeds with the
95 % interval of its paired difference from no splitting and no batching. Load 1.0 is the capacity without
either.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.simulator import run
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.scenario.build import build
from trimtab.metrics.statistics import paired_difference_ci95
from trimtab.policies.data_aware.split_merge import SplitMerge
from trimtab.policies.load_aware.least_expected_completion import LeastExpectedCompletion

FILE = Path(__file__).with_name("split-merge.yaml")
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Fixed(Policy):
    """Least expected completion with the same parts and batches at every load."""

    plan_period_s: float = 1e9
    parts: int = 1
    batch_max: int = 1
    window_s: float = 0.0

    def init(self, cluster: Any) -> Any:
        """As least-expected-completion."""
        return LeastExpectedCompletion().init(cluster)

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        """Always the same."""
        one = np.ones(len(view.fixed_s))
        return empty_plan()._replace(
            split_max=self.parts * one, batch_max=self.batch_max * one, batch_window_s=self.window_s * one
        )

    dispatch = staticmethod(LeastExpectedCompletion.dispatch)


POLICIES: dict[str, Policy] = {
    "whole, one by one": Fixed(),
    "2 parts": Fixed(parts=2),
    "4 parts": Fixed(parts=4),
    "8 parts": Fixed(parts=8),
    "batches of 8": Fixed(batch_max=8),
    "4 parts, batches of 8": Fixed(parts=4, batch_max=8),
    "8 parts, batches of 8": Fixed(parts=8, batch_max=8),
    "8 parts, batches, 1 s window": Fixed(parts=8, batch_max=8, window_s=1.0),
    "split-merge": SplitMerge(join_s=0.1, marginal_frac=0.67),
    "split-merge, told nothing": SplitMerge(),
    "split-merge, no batches": SplitMerge(join_s=0.1, batch_max=1),
    "split-merge, windows": SplitMerge(join_s=0.1, marginal_frac=0.67, window_frac=0.5),
}


def mean_completion_s(scenario: Scenario, load: float, seed: int, policy: Policy, mode: str) -> float:
    """Mean over the requests of one run."""
    built = build(scenario, seed, load)
    driver = run(built.cluster, built.requests, built.options, Decider.of(policy), seed=seed, mode=mode)
    n = len(built.requests)
    arrival_s = built.requests.work["arrival_s"]
    return float(np.mean(driver.state.requests["finish_s"][:n] - arrival_s))


def table(scenario: Scenario, seeds: Sequence[int], mode: str) -> None:
    """Print it, load by load."""
    for load in LOADS:
        base: list[float] = []
        for name, policy in POLICIES.items():
            values = [mean_completion_s(scenario, load, seed, policy, mode) for seed in seeds]
            base = base or values
            change, mean_s = paired_difference_ci95(values, base), np.mean(values)
            less = f"{change.mean:+8.2f} ± {change.ci95 or 0.0:.2f}"
            print(f"load {load:.2f}  {name:28} {mean_s:8.2f} s  {less}", flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--mode", default="auto")
    given = parser.parse_args()
    scenario = load_scenario(FILE)
    generate = scenario.workload.generate
    assert generate is not None
    workload = scenario.workload.model_copy(
        update={"generate": generate.model_copy(update={"requests": given.requests})}
    )
    table(scenario.model_copy(update={"workload": workload}), range(given.seeds), given.mode)


if __name__ == "__main__":
    main()
