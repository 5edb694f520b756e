"""`python -m bench.learned`: learned weights beside rules, on clusters that no training saw; its page.

    python -m bench.learned           train what bench/weights lacks, judge it all, save after each part
    python -m bench.learned --docs    only the page

Training takes two CPU minutes for each file of weights, judging ten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from bench.learned_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.domain.artifact import Artifact
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.serving.policy_timing import time_policies
from trimtab.learn.drawn_workloads import Objective, Workloads
from trimtab.learn.generated_clusters import generated_cluster
from trimtab.learn.judgement import UNSEEN, judged
from trimtab.learn.weight_search import Setting, WeightSearch

RESULTS, PAGE = ROOT / "bench" / "learned.json", ROOT / "docs" / "benchmarks" / "learned.md"
WEIGHTS = ROOT / "bench" / "weights"
TRAINED_ON: Final = Workloads(requests=400, nodes=(8, 12, 16, 24, 32))
SETTINGS: Final = {
    "residual": Setting("learned-residual", Objective.parsed("mean+0.5*tail"), TRAINED_ON, 80, 8),
    "residual-mean": Setting("learned-residual", Objective.parsed("mean"), TRAINED_ON, 80, 8),
    "dispatch": Setting("learned-dispatch", Objective.parsed("mean+0.5*tail"), TRAINED_ON, 80, 8),
}
NO_GUARD: Final = ",bound=inf,in_range=false"
CASES: Final = {  # title → workloads, how many, first number
    "generated clusters, 8 to 64 nodes": (Workloads(requests=1_500), 100, UNSEEN),
    "aigc-images, load 0.8": (Workloads(load_scenario("aigc-images").with_overrides(load=0.8)), 5, 20),
    "aigc-images, load 1.0": (Workloads(load_scenario("aigc-images").with_overrides(load=1.0)), 5, 20),
}
RULES: Final = ("auto", "cost-index", "least-expected-completion")


def policies() -> dict[str, str]:
    """Title of each policy → the policy."""
    found = {}
    for name, setting in SETTINGS.items():
        given = f"artifact={WEIGHTS / name}.safetensors"
        found[f"ES {name}"] = f"{setting.policy}({given})"
        found[f"ES {name}, no guard"] = f"{setting.policy}({given}{NO_GUARD})"
        if setting.policy == "learned-residual":
            found[f"ES {name}, guarded by rollouts"] = f"learned-guarded({given})"
    return {**found, **{name: name for name in RULES}}


def train(name: str) -> dict[str, Any]:
    """Train one file of weights, if it is not there; what its metadata and its training tell."""
    path, begun_s = WEIGHTS / f"{name}.safetensors", time.process_time()
    search = WeightSearch(SETTINGS[name])
    while not search.is_over:
        search.step()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(search.artifact(name).content())
    curve = [round(generation.loss, 5) for generation in search.history]
    return {**SETTINGS[name].told(), "cpu_s": round(time.process_time() - begun_s), "curve": curve}


def decisions() -> dict[str, dict[str, float]]:
    """Clusters of 1,000 nodes → policy → microseconds of a decision."""
    weighted = {name: policy for name, policy in policies().items() if name in ("ES residual", "ES dispatch")}
    timed = {"late-binding": "late-binding", "least-expected-completion": "least-expected-completion"}
    timed |= weighted
    found = {}
    for title, i in (("one model, four types", 3), ("five models, three types", 5)):
        scenario = generated_cluster(i, 6_000, nodes=1_000, load=0.9)
        times = time_policies(scenario, list(timed.values()), 0)
        found[title] = {name: round(1e6 * t.decision_s, 2) for name, t in zip(timed, times, strict=True)}
    return found


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.learned", __doc__).parse_args(given).docs:
        figures: dict[str, Any] = saved_figures(RESULTS) if RESULTS.exists() else {"trained": {}, "cases": {}}
        figures |= {"machine": machine(), "versions": versions()}
        for name in SETTINGS:
            if not (WEIGHTS / f"{name}.safetensors").exists():
                figures["trained"][name] = train(name)
                figures["cases"] = {}
                save_figures(RESULTS, figures)
            sha256 = Artifact.read(str(WEIGHTS / f"{name}.safetensors")).sha256
            figures["trained"][name]["sha256"] = sha256
        for title, (workloads, many, first) in CASES.items():
            case = figures["cases"].setdefault(title, {"workloads": many, "policies": {}})
            for name, policy in policies().items():
                if name not in case["policies"]:
                    begun_s = time.process_time()
                    (found,) = judged([policy], workloads, range(first, first + many))
                    told = {key: value for key, value in found.to_dict().items() if key != "policy"}
                    case["policies"][name] = {**told, "cpu_s": round(time.process_time() - begun_s, 1)}
                    save_figures(RESULTS, figures)
            case["policies"] = {name: case["policies"][name] for name in policies()}
        figures["decisions_us"] = decisions()
        save_figures(RESULTS, figures)
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
