"""`python -m bench.learned`: learned weights and hybrids beside rules, on workloads not trained on.

    python -m bench.learned             train what bench/weights lacks, run what bench/learned.json lacks
    python -m bench.learned --only aigc only cases whose title holds this, run anew
    python -m bench.learned --docs      only the page

Saved after each policy of each case. Trainings take up to a CPU minute each, the cases some ten together.
Traces are read from ../shared/data beside the checkout; cases whose trace is not there are left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench.learned_page import GUARDED, HYBRID, PRICED, RULE, page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policy_cases import cases as policy_cases
from bench.startup import ROOT
from trimtab.domain.artifact import Artifact
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.serving.policy_timing import time_policies
from trimtab.learn.drawn_workloads import Objective, Workloads, figures_of
from trimtab.learn.generated_clusters import generated_cluster
from trimtab.learn.judgement import UNSEEN
from trimtab.learn.transfer import trained_by
from trimtab.learn.weight_search import Setting
from trimtab.policies import find

RESULTS, PAGE = ROOT / "bench" / "learned.json", ROOT / "docs" / "benchmarks" / "learned.md"
WEIGHTS = ROOT / "bench" / "weights"
TRAINED_ON: Final = Workloads(requests=400, nodes=(8, 12, 16, 24, 32))
SETTINGS: Final = {
    "residual": Setting("learned-residual", Objective.parsed("mean+0.5*tail"), TRAINED_ON, 80, 8),
    "residual-mean": Setting("learned-residual", Objective.parsed("mean"), TRAINED_ON, 80, 8),
    "dispatch": Setting("learned-dispatch", Objective.parsed("mean+0.5*tail"), TRAINED_ON, 80, 8),
    "a2c": Setting("learned-dispatch", Objective.parsed("mean"), TRAINED_ON, 8, method="a2c"),
    "ppo": Setting("learned-dispatch", Objective.parsed("mean"), TRAINED_ON, 4, method="ppo"),
    "dqn": Setting("learned-dispatch", Objective.parsed("mean"), TRAINED_ON, 2, method="dqn"),
}
RULES: Final = (RULE, "auto", "cost-index", "least-expected-completion", PRICED)
HYBRIDS: Final = ("hybrid-rules", HYBRID)
NO_GUARD: Final = ",bound=inf,in_range=false"
LOADS: Final = (0.4, 0.6, 0.8, 1.0, 1.2)
TRACES: Final = ("GenTD26", "Azure conversation", "Mooncake")
TRACED: Final = 3_000  # requests of a trace, of its beginning


class Case(NamedTuple):
    """Workloads to judge by."""

    group: str  # key of learned_page.GROUPS
    workloads: Workloads
    many: int
    first: int


def cases() -> Iterator[tuple[str, Case]]:
    """By title; those whose trace is not there are left out, and told."""
    yield "8 to 64 nodes, 0.5 to 1.1", Case("family", Workloads(requests=1_500), 100, UNSEEN)
    for load in LOADS:
        yield f"load {load}", Case("loads", Workloads(requests=1_000, load=load), 16, UNSEEN + 200)
    for nodes, requests, many in ((8, 1_500, 10), (64, 1_500, 10), (256, 3_000, 5), (1_000, 8_000, 3)):
        workloads = Workloads(requests=requests, nodes=(nodes,))
        yield f"{nodes:,} nodes", Case("nodes", workloads, many, UNSEEN + 300)
    for load in LOADS:
        scenario = _shorter(load_scenario("aigc-images").with_overrides(load=load))
        yield f"aigc-images, load {load}", Case("cases", Workloads(scenario), 3, 20)
    for name in ("edge-cloud", "regime-change"):
        yield name, Case("cases", Workloads(_shorter(load_scenario(name))), 3, 20)
    for case in policy_cases():
        if case.name.removesuffix(" unequal") in TRACES:
            if case.trace is not None and not case.trace.exists():
                print(f"{case.name}: left out, no {case.trace}", file=sys.stderr)
                continue
            yield case.name.removesuffix(" unequal"), Case("cases", Workloads(_shorter(case.scenario)), 3, 20)


def _shorter(scenario: Scenario) -> Scenario:
    """The scenario with `TRACED` requests, of its trace or generated."""
    parts = scenario.model_dump(mode="json", exclude_defaults=True)
    workload = parts["workload"]
    if "trace" in workload:
        workload["trace"]["options"]["limit"] = TRACED
    else:
        workload["generate"]["requests"] = TRACED
    return Scenario.model_validate(parts)


def policies(group: str) -> dict[str, str]:
    """Title of each policy of a group of cases → the policy."""
    found = {name: name for name in (*RULES, *HYBRIDS)}
    for name, setting in SETTINGS.items():
        title = name if setting.method != "es" else f"ES {name}"
        given = f"artifact={WEIGHTS / name}.safetensors"
        found[title] = f"{setting.policy}({given})"
        if setting.policy == "learned-residual":
            found[title + GUARDED] = f"learned-guarded({given})"
        if group == "family" and setting.method == "es":
            found[f"{title}, no guard"] = f"{setting.policy}({given}{NO_GUARD})"
    return found


def train(name: str) -> dict[str, Any]:
    """Train one file of weights, if it is not there; what its metadata and its training tell."""
    path, begun_s, setting = WEIGHTS / f"{name}.safetensors", time.process_time(), SETTINGS[name]
    search = trained_by(setting)
    while not search.is_over:
        search.step()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(search.artifact(name).content())
    curve = [round(generation.loss, 5) for generation in search.history]
    return {**setting.told(), "cpu_s": round(time.process_time() - begun_s), "curve": curve}


def run(case: Case, policy: str) -> dict[str, Any]:
    """Mean and p99 of completion on each workload, and the CPU seconds of all runs.

    Policies that plan prices run on a fifth of the workloads: a plan takes them longest.
    """
    decider = find(policy)
    figures_of(Workloads(requests=200), 0, decider)  # compiled before time counts
    is_dear = policy in (PRICED, HYBRID)
    numbers = range(case.first, case.first + (max(3, case.many // 5) if is_dear else case.many))
    for i in numbers:
        case.workloads.inputs(i)
    begun_s = time.process_time()
    found = [figures_of(case.workloads, i, decider) for i in numbers]
    cpu_s = time.process_time() - begun_s
    return {
        "mean": [float(f"{f.mean:.6g}") for f in found],
        "p99": [float(f"{f.p99:.6g}") for f in found],
        "cpu_s": round(cpu_s, 2),
    }


def decisions() -> dict[str, dict[str, float]]:
    """Clusters of 1,000 nodes → policy → microseconds of a decision."""
    known = policies("nodes")
    timed = {name: known[name] for name in (RULE, "least-expected-completion", "ES residual", "ES dispatch")}
    found = {}
    for title, i in (("one model, four types", 3), ("five models, three types", 5)):
        scenario = generated_cluster(i, 6_000, nodes=1_000, load=0.9)
        times = time_policies(scenario, list(timed.values()), 0)
        found[title] = {name: round(1e6 * t.decision_s, 2) for name, t in zip(timed, times, strict=True)}
    return found


def measure(only: str | None) -> None:
    """Train and run what is not saved; with `only` run the cases anew whose title holds it."""
    figures: dict[str, Any] = saved_figures(RESULTS) if RESULTS.exists() else {"trained": {}, "cases": {}}
    figures |= {"machine": machine(), "versions": versions()}
    for name in SETTINGS:
        if not (WEIGHTS / f"{name}.safetensors").exists():
            figures["trained"][name] = train(name)
            figures["cases"] = {}
        figures["trained"][name]["sha256"] = Artifact.read(str(WEIGHTS / f"{name}.safetensors")).sha256
    save_figures(RESULTS, figures)
    for title, case in cases():
        if only is not None and only not in title:
            continue
        requests = len(case.workloads.inputs(case.first).requests.work)
        told = {"group": case.group, "workloads": case.many, "requests": requests}
        saved = figures["cases"].setdefault(title, {**told, "policies": {}})
        for name, policy in policies(case.group).items():
            if only is not None or name not in saved["policies"]:
                saved["policies"][name] = run(case, policy)
                save_figures(RESULTS, figures)
        cpu_s = sum(found["cpu_s"] for found in saved["policies"].values())
        print(f"{title}: {cpu_s:.0f} CPU s", file=sys.stderr)
    figures["decisions_us"] = decisions()
    save_figures(RESULTS, figures)


def main(given: Sequence[str] | None = None) -> None:
    parser = page_parser("bench.learned", __doc__)
    parser.add_argument("--only", metavar="TEXT", help="only cases whose title holds this, run anew")
    arguments = parser.parse_args(given)
    if not arguments.docs:
        measure(arguments.only)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
