"""`python -m bench.auto`: `auto` beside other policies on generated clusters and on chains; its page.

python -m bench.auto                  all anew
python -m bench.auto --part chains    only this part, which replaces what is saved of it
python -m bench.auto --docs           only the page, from bench/auto.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from bench.ages import commit_now
from bench.auto_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policies import rounded
from bench.startup import ROOT
from trimtab.engine.simulator import run
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.scenario.build import RunInputs, build, scenario_workload
from trimtab.experiments.serving.run import simulate
from trimtab.learn.generated_clusters import generated_cluster
from trimtab.policies import find

RESULTS, PAGE = ROOT / "bench" / "auto.json", ROOT / "docs" / "benchmarks" / "auto.md"
FIRST_SEED, CLUSTERS = 500, 60
POLICIES = ("late-binding", "auto", "what-if", "cost-index", "least-expected-completion")
METRICS = ("completion_mean_s", "completion_p99_s")
CHAINS = {"multimodal": (0.8, 1.0), "workflows": (0.85,)}  # scenario → loads
CHAIN_SEEDS = 3
CHAIN_POLICIES = (
    "auto",
    "auto(objective=p99)",
    "downstream-aware",
    "downstream-aware(ageing=0.8)",
    "late-binding",
    "late-binding+fair-runs",
    "least-expected-completion",
    "congestion-aware",
    "cost-index",
    "heft",
)


def on_clusters() -> dict[str, Any]:
    """Mean and p99 of each policy on each cluster, by seed."""
    scenarios = ((seed, generated_cluster(seed)) for seed in count(FIRST_SEED))
    with_models = ((seed, scenario) for seed, scenario in scenarios if scenario.models)
    clusters = {}
    for seed, scenario in islice(with_models, CLUSTERS):
        found = {policy: simulate(scenario, policy, seed).metrics for policy in POLICIES}
        clusters[str(seed)] = {p: [rounded(values[name]) for name in METRICS] for p, values in found.items()}
    return clusters


def on_chains() -> dict[str, Any]:
    """Mean, p99, processor seconds of the run and plans made, of each policy by scenario, load and seed."""
    found: dict[str, Any] = {}
    for name, loads in CHAINS.items():
        scenario = load_scenario(name)
        for load in loads:
            of_policy: dict[str, list[list[float]]] = {policy: [] for policy in CHAIN_POLICIES}
            for seed in range(CHAIN_SEEDS):
                inputs = build(scenario, seed, load)
                for policy in CHAIN_POLICIES:
                    of_policy[policy].append(_on_chain(scenario, inputs, policy, seed, load))
                print(f"{name} {load}, seed {seed}", file=sys.stderr, flush=True)
            found[f"{name} {load}"] = of_policy
    return found


def _on_chain(scenario: Scenario, inputs: RunInputs, policy: str, seed: int, load: float) -> list[float]:
    decider, n = find(policy), len(inputs.requests)
    declared = scenario_workload(decider.dispatch, scenario, seed, load)
    begun_s = time.process_time()
    driver = run(inputs.cluster, inputs.requests, inputs.options, decider, seed=seed, declared=declared)
    cpu_s = time.process_time() - begun_s
    taken_s = driver.state.requests["finish_s"][:n] - inputs.requests.work["arrival_s"]
    if np.isnan(taken_s).any():
        raise RuntimeError(f"{policy}: not all runs have ended")
    figures = taken_s.mean(), np.quantile(taken_s, 0.99), cpu_s, driver.planning.made
    return [rounded(float(figure)) for figure in figures]


PARTS = {"clusters": on_clusters, "chains": on_chains}


def main(given: Sequence[str] | None = None) -> None:
    parser = page_parser("bench.auto", __doc__)
    parser.add_argument("--part", choices=tuple(PARTS), help="only this part")
    arguments = parser.parse_args(given)
    if not arguments.docs:
        found = saved_figures(RESULTS) if arguments.part else {}
        for part in [arguments.part] if arguments.part else PARTS:
            found[part] = PARTS[part]()
            found.setdefault("commits", {})[part] = commit_now()
        save_figures(RESULTS, {**found, "machine": machine(), "versions": versions()})
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
