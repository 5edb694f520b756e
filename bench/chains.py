"""`python -m bench.chains`: policies for runs of chains on recorded workflows and on `multimodal`; its page.

    python -m bench.chains                   all anew
    python -m bench.chains --policies a,b    only these policies, which replace what is saved of them
    python -m bench.chains --only mag        only workflows whose file name holds this
    python -m bench.chains --missing         only workflows of which nothing is saved, to go on after a stop
    python -m bench.chains --docs            only the page, from bench/chains.json

The workflows are those of WfInstances, read from ../shared/data beside the checkout. Every policy meets the
same services and estimates of a seed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.chains_page import LIST_SCHEDULERS, OURS, page
from bench.machine import machine, versions
from bench.page_command import page_parser, saved_figures, write_page
from bench.results import write_whole
from bench.startup import ROOT
from bench.work import timed
from trimtab.domain.stage_graph import critical_paths_s
from trimtab.experiments.bounds.bound import bound_of
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.scenario.loader import resolve_scenario

DATA = ROOT.parent / "shared" / "data" / "wfinstances"
EXAMPLES = ROOT / "examples" / "clusters"
CLUSTERS = {
    "4 equal": EXAMPLES / "workflows-4.yaml",
    "16 equal": EXAMPLES / "workflows-16.yaml",
    "64 equal": EXAMPLES / "workflows-64.yaml",
    "three speeds": EXAMPLES / "workflows.yaml",
}
RESULTS, PAGE = ROOT / "bench" / "chains.json", ROOT / "docs" / "benchmarks" / "chains.md"
ESTIMATE_CV = 0.3  # of the seeds after the first, whose estimates are exact
WORKFLOW_SEEDS, MULTIMODAL_SEEDS = 1, 5
LOAD, P99 = 0.8, 0.99
SERVERS = ("late-binding", "least-expected-completion", "congestion-aware")
DIGITS = 7  # significant, of what is saved


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def makespan_s(inputs: RunInputs, policy: str) -> float:
    """Last end of a run minus first arrival."""
    return float(completions_s(inputs, policy).max())


def completions_s(inputs: RunInputs, policy: str) -> np.ndarray:
    """Completion of each run and request. Raises RuntimeError unless all of them were served."""
    state, n = timed(inputs, policy).driver.state, len(inputs.requests)
    taken_s: np.ndarray = (state.requests["finish_s"] - state.work["arrival_s"])[:n]
    if np.isnan(taken_s).any():
        raise RuntimeError(f"{policy}: not all runs have ended")
    return taken_s


def makespan_bound_s(inputs: RunInputs) -> float:
    """Largest of the critical path on the fastest nodes and the work over the speed of all nodes."""
    chains, cluster = inputs.requests.chains, inputs.cluster
    assert chains is not None
    unit_s = cluster.unit_s[0, cluster.type_idx]  # classes of recorded workflows are all alike
    per_s = float((cluster.slots / unit_s).sum())
    work_s = float((chains.truth["units"] * chains.truth["factor"]).sum()) / per_s
    return max(work_s, float(critical_paths_s(cluster, chains)[0]))


def with_estimates(scenario: Scenario, seed: int) -> Scenario:
    """Exact estimates for the first seed, errors for the others."""
    cv = 0.0 if seed == 0 else ESTIMATE_CV
    workload = scenario.workload.model_copy(update={"estimate_cv": cv})
    return scenario.model_copy(update={"workload": workload})


def family_of(file: Path) -> str:
    """Workflows of one application."""
    return file.name.split("-")[0]


def smallest_first() -> list[Path]:
    """The files of all workflows, so that what is stopped has the most of them."""
    return sorted(DATA.rglob("*.json.gz"), key=lambda file: (file.stat().st_size, file.name))


def measure_workflows(results: dict[str, Any], policies: Sequence[str], only: str, *, missing: bool) -> None:
    """Add the makespans of each seed to what is known of each workflow and cluster.

    `missing` leaves out what is saved of all of the policies.
    """
    for file in smallest_first():
        if only not in file.name:
            continue
        name = file.name.removesuffix(".json.gz")
        for cluster, path in CLUSTERS.items():
            known = results.get(cluster, {}).get(name, {"policies": {}})["policies"]
            if missing and all(policy in known for policy in policies):
                continue
            case = results.setdefault(cluster, {}).setdefault(
                name, {"family": family_of(file), "policies": {}}
            )
            scenario = resolve_scenario(trace=file, cluster=path)
            runs = [build(with_estimates(scenario, seed), seed) for seed in range(WORKFLOW_SEEDS)]
            case["bound_s"] = [rounded(makespan_bound_s(inputs)) for inputs in runs]
            for policy in policies:
                case["policies"][policy] = [rounded(makespan_s(inputs, policy)) for inputs in runs]
            save({**saved(), "workflows": results})
        print(name, file=sys.stderr, flush=True)


def measure_multimodal(results: dict[str, Any], policies: Sequence[str], seeds: int) -> None:
    """Add mean and 99th percentile of the completions of each seed."""
    scenario = load_scenario("multimodal").with_overrides(load=LOAD)
    found: dict[str, list[list[float]]] = {policy: [] for policy in policies}
    bounds_s = []
    for seed in range(seeds):
        inputs = build(scenario, seed)
        bound = bound_of(inputs.cluster, inputs.requests, inputs.options)
        assert bound is not None
        bounds_s.append(rounded(bound.mean_s))
        for policy in policies:
            taken_s = completions_s(inputs, policy)
            found[policy].append([rounded(float(taken_s.mean())), rounded(float(np.quantile(taken_s, P99)))])
        print(f"multimodal, seed {seed}", file=sys.stderr, flush=True)
    results["bound_s"] = bounds_s
    results.setdefault("policies", {}).update(found)


def saved() -> dict[str, Any]:
    """The measurements of an earlier run."""
    content: dict[str, Any] = {"workflows": {}, "multimodal": {}}
    if RESULTS.exists():
        content |= json.loads(RESULTS.read_text(encoding="utf-8"))
    return content


def save(results: Mapping[str, Any]) -> None:
    write_whole(RESULTS, json.dumps({**results, "machine": machine(), "versions": versions()}) + "\n")


def main(given: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = page_parser("bench.chains", __doc__)
    parser.add_argument("--policies", type=lambda text: text.split(","), metavar="A,B", help="only these")
    parser.add_argument("--only", default="", metavar="TEXT", help="workflows whose name holds this")
    parser.add_argument("--missing", action="store_true", help="only workflows of which nothing is saved")
    parser.add_argument("--part", choices=("workflows", "multimodal"), help="only this part")
    arguments = parser.parse_args(given)
    results = saved()
    if not arguments.docs and arguments.part != "multimodal":
        policies = arguments.policies or (OURS, *LIST_SCHEDULERS)
        measure_workflows(results["workflows"], policies, arguments.only, missing=arguments.missing)
        save(results)
    if not arguments.docs and arguments.part != "workflows":
        policies = arguments.policies or (OURS, *LIST_SCHEDULERS, *SERVERS)
        measure_multimodal(results["multimodal"], policies, MULTIMODAL_SEEDS)
        save(results)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
