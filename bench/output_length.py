"""`python -m bench.output_length`: what expected output lengths cost policies, on a recorded hour; its page.

Each third of the Azure conversation trace of 2023 runs with the true lengths and with those that
`OutputEstimate` expects, which knows nothing at first. The trace is read from ../shared/data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.machine import machine, versions
from bench.output_length_page import page
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policies import rounded
from bench.policy_cases import azure
from bench.startup import ROOT
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.scenario import Scenario

RESULTS, PAGE = ROOT / "bench" / "output-length.json", ROOT / "docs" / "benchmarks" / "output-length.md"
LOADS, SEEDS, THIRD_S = (0.8, 0.95), 5, 1_167.0
POLICIES = ("late-binding", "least-expected-completion")
METRICS = ("completion_mean_s", "completion_p99_s")


def scenario(load: float, output_estimate: str, third: int) -> Scenario:
    """A third of the hour, on 16 nodes of 8 slots and three speeds."""
    parts = azure()
    of_trace = {"start_s": third * THIRD_S, "stop_s": (third + 1) * THIRD_S}
    parts["workload"]["trace"]["options"] = of_trace
    parts["workload"] |= {"load": load, "estimate_cv": 0.0, "output_estimate": output_estimate}
    return Scenario.model_validate({**parts, "name": f"third {third + 1}"})


def measure(load: float, output_estimate: str) -> dict[str, dict[str, list[float | None]]]:
    """Values by policy and metric, one for each third and seed."""
    found = [
        compare(scenario(load, output_estimate, third), POLICIES, SEEDS, sweep=(), jobs=1)
        for third in range(3)
    ]
    return {
        policy: {
            name: [rounded(run.metrics[name]) for third in found for run in third.results[i].runs]
            for name in METRICS
        }
        for i, policy in enumerate(POLICIES)
    }


def results() -> dict[str, Any]:
    """All figures."""
    cases = {
        str(load): {"true": measure(load, "drawn"), "expected": measure(load, "online-mean")}
        for load in LOADS
    }
    return {"cases": cases, "machine": machine(), "versions": versions()}


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.output_length", __doc__).parse_args(given).docs:
        save_figures(RESULTS, results())
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
