"""docs/benchmarks/output-length.md from bench/output-length.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table
from bench.policies_page import MEAN, P99
from trimtab.metrics import Estimate, mean_ci95

AIMS = {("late-binding", MEAN): 1.02, ("late-binding", P99): 1.06, ("least-expected-completion", MEAN): 1.05}
AIMED_LOAD = "0.95"
WORDS = {MEAN: "mean", P99: "p99"}

HEAD = """<!-- Made by `python -m bench.output_length` from what it measured; `--docs` writes it anew. -->

# Expected output lengths

How much slower requests to a language model become where policies do not know how long its answers will be. The three
thirds of the Azure conversation trace of 2023 (about 6,500 requests each) run on 16 nodes of 8 slots and three speeds, with
the true output tokens, and with those of `workload.output_estimate: online-mean`: the running mean of the answers to
prompts of about the same length, as the gateway learns it. Each third begins with nothing learned. An answer counts as
learned once its request has come. Ratios are taken third by third and seed by seed (5 seeds), ± half the width of their
95 % interval.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    head = ["load", "policy", "figure", "true lengths, s", "expected over true", "aim", "met"]
    return "\n".join([HEAD, where, markdown_table(head, _rows(results["cases"]))])


def _rows(cases: Mapping[str, Any]) -> Iterator[list[str]]:
    for load, case in cases.items():
        for policy, true in case["true"].items():
            for metric, word in WORDS.items():
                found = ratio(case, policy, metric)
                most = AIMS.get((policy, metric)) if load == AIMED_LOAD else None
                aim = ["", ""] if most is None else [f"≤ {most}", "yes" if found.mean <= most else "**no**"]
                text = f"{found.mean:.3f} ± {found.ci95:.1g}"
                yield [load, f"`{policy}`", word, f"{np.mean(true[metric]):.4g}", text, *aim]


def ratio(case: Mapping[str, Any], policy: str, metric: str) -> Estimate:
    """With expected lengths over with true ones, run by run."""
    of = (np.array(case[kind][policy][metric]) for kind in ("expected", "true"))
    return mean_ci95(np.divide(*of))
