"""`python -m bench.auto`: `auto` beside `late-binding` on generated clusters with models; its page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice
from typing import Any

from bench.auto_page import page
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.policies import rounded
from bench.startup import ROOT
from trimtab.experiments.serving.run import simulate
from trimtab.learn.generated_clusters import generated_cluster

RESULTS, PAGE = ROOT / "bench" / "auto.json", ROOT / "docs" / "benchmarks" / "auto.md"
FIRST_SEED, CLUSTERS = 500, 60
POLICIES = ("late-binding", "auto", "what-if", "cost-index", "least-expected-completion")
METRICS = ("completion_mean_s", "completion_p99_s")


def results() -> dict[str, Any]:
    """Mean and p99 of each policy on each cluster, by seed."""
    scenarios = ((seed, generated_cluster(seed)) for seed in count(FIRST_SEED))
    with_models = ((seed, scenario) for seed, scenario in scenarios if scenario.models)
    clusters = {}
    for seed, scenario in islice(with_models, CLUSTERS):
        found = {policy: simulate(scenario, policy, seed).metrics for policy in POLICIES}
        clusters[str(seed)] = {p: [rounded(values[name]) for name in METRICS] for p, values in found.items()}
    return {"clusters": clusters, "machine": machine(), "versions": versions()}


def main(given: Sequence[str] | None = None) -> None:
    if not page_parser("bench.auto", __doc__).parse_args(given).docs:
        save_figures(RESULTS, results())
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
