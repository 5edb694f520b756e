"""docs/benchmarks/chains.md from bench/chains.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import Estimate, mean_ci95

OURS = "downstream-aware"
LIST_SCHEDULERS = ("heft", "peft", "cpop", "min-min", "max-min", "sufferage")
MOST_OF_LIST, MOST_OF_BEST = 1.02, 0.9
MEAN, P99 = 0, 1  # of what is saved of a seed

HEAD = f"""<!-- Made by `python -m bench.chains` from what it measured; `--docs` writes it anew. -->

# Chains

`{OURS}` beside the dynamic list schedulers of the catalogue ({", ".join(f"`{name}`" for name in LIST_SCHEDULERS)}), with the same
parameters everywhere. `python -m bench.chains` measures all of it anew; the workflows lie in `../shared/data/wfinstances` beside the checkout.
"""

WORKFLOWS = f"""## Recorded workflows

Workflows of WfInstances, one at a time, on the example clusters of 4, 16 and 64 equal nodes and of three speeds. Estimates are exact,
so a value is the same in every run. The first number is the sum of makespans of the family under `{OURS}` over the least sum of a list
scheduler, which is named where it is better. Behind it stands the sum over that of the bounds: the larger of the critical path on the
fastest nodes, and the work over the speed of all nodes. Goal: at most {MOST_OF_LIST}. The last column counts the workflows that were measured. 1000genome loses where
stages of all chromosomes go before the first join: joins then end together, and nodes are idle until they have.
"""

MULTIMODAL = f"""## The built-in scenario multimodal

Load 0.8. Means over the seeds with 95 % intervals. A ratio pairs the same seeds: `{OURS}` over the policy of the row. Goal: mean
at most {MOST_OF_BEST} of the best other mean, and no worse a 99th percentile. No policy ends runs sooner on average than the bound.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [HEAD]
    if results["workflows"]:
        parts += [WORKFLOWS, _workflows(results["workflows"]), _losses(results["workflows"])]
    if results["multimodal"]:
        parts += [MULTIMODAL, _multimodal(results["multimodal"])]
    return "\n".join(parts)


def _sums_s(cases: Mapping[str, Any], family: str) -> tuple[dict[str, float], float]:
    """Makespans of a family by policy, and bounds, all summed over workflows and seeds."""
    members = [case for case in cases.values() if case["family"] == family]
    sums_s = {name: sum(sum(case["policies"][name]) for case in members) for name in (OURS, *LIST_SCHEDULERS)}
    return sums_s, sum(sum(case["bound_s"]) for case in members)


def _best(makespans_s: Mapping[str, float]) -> str:
    """The list scheduler of least makespan."""
    return min(LIST_SCHEDULERS, key=lambda name: makespans_s[name])


def _workflows(clusters: Mapping[str, Any]) -> str:
    families = sorted({case["family"] for cases in clusters.values() for case in cases.values()})
    cases = next(iter(clusters.values())).values()
    sizes = {family: sum(case["family"] == family for case in cases) for family in families}
    rows = [
        [family, *(_cell(cases, family) for cases in clusters.values()), f"{sizes[family]}"]
        for family in families
    ]
    return markdown_table(["family", *clusters, "workflows"], rows)


def _cell(cases: Mapping[str, Any], family: str) -> str:
    sums_s, bound_s = _sums_s(cases, family)
    best = _best(sums_s)
    ratio = sums_s[OURS] / sums_s[best]
    text = f"{ratio:.3f}" if ratio <= MOST_OF_LIST else f"**{ratio:.3f}**"
    beaten = f" (`{best}`)" if ratio > 1.0005 else ""
    return f"{text}{beaten}, {sums_s[OURS] / bound_s:.2f}"


def _losses(clusters: Mapping[str, Any]) -> str:
    """Single workflows on which a list scheduler is better by more than the goal allows."""
    rows = list(_lost(clusters))
    if not rows:
        return "No single workflow is lost by more than the goal allows.\n"
    table = markdown_table(["workflow", "cluster", "ratio", "best", "over the bound"], rows)
    return f"Single workflows that are lost by more than that:\n\n{table}"


def _lost(clusters: Mapping[str, Any]) -> Iterator[list[str]]:
    for cluster, cases in clusters.items():
        for name, case in cases.items():
            sums_s = {policy: sum(values) for policy, values in case["policies"].items()}
            best = _best(sums_s)
            if sums_s[OURS] > MOST_OF_LIST * sums_s[best]:
                over = sums_s[OURS] / sum(case["bound_s"])
                yield [name, cluster, f"{sums_s[OURS] / sums_s[best]:.3f}", f"`{best}`", f"{over:.2f}"]


def _multimodal(found: Mapping[str, Any]) -> str:
    seeds = len(found["bound_s"])
    values = {name: np.array(of_seeds) for name, of_seeds in found["policies"].items()}
    ours = values[OURS]
    rows = []
    for name in sorted(values, key=lambda name: float(values[name][:, MEAN].mean())):
        cells = [_text(mean_ci95(values[name][:, k])) for k in (MEAN, P99)]
        ratios = [_text(mean_ci95(ours[:, k] / values[name][:, k]), digits=3) for k in (MEAN, P99)]
        rows.append([f"`{name}`", *cells, *(ratios if name != OURS else ["", ""])])
    head = ["policy", "mean s", "p99 s", "ratio of means", "ratio of p99"]
    bound = _text(mean_ci95(found["bound_s"]))
    return f"{seeds} seeds. Bound on the mean: {bound} s.\n\n{markdown_table(head, rows)}"


def _text(value: Estimate, digits: int = 2) -> str:
    mean, half = value
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")
