"""docs/benchmarks/bursts.md from bench/bursts.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page import markdown_table
from bench.policies_page import MEAN, P99, estimate, fixed, ranked, ratio
from trimtab.metrics import Estimate

TESTED = ("late-binding", "auto", "least-expected-completion")
MOST = {0.7: 1.03, 1.0: 1.10}  # by load: mean over the best fixed policy's

HEAD = """<!-- Made by `python -m bench.bursts` from what it measured; `--docs` writes it anew. -->

# Bursts

3,000 requests on the cluster of `bench/bursts.yaml`, whose nodes hold no model at first and take 60 s to load one.
Arrivals are steady, come in bursts of several kinds, or are recorded. *Best fixed* is the best of all policies but `auto`
and `late-binding`. Ratios are taken seed by seed, ± half the width of their 95 % interval.
Aim: `late-binding` and `auto` at most 1.03 × the best fixed policy at load 0.7, and 1.10 × at load 1.0.
"""

WHY = """## What bursts do

On nodes that hold the model, the policies that choose what is best for each request do well in bursts of every kind. They
lost where nodes were empty: a request avoids a load of 60 s while a node with the model is near, so in quiet times a few
nodes serve everything. The burst then finds the others empty, and hundreds of requests wait for loads. Round robin and
`least-connections` had spread the loads over the quiet time without meaning to.

The cause is that a request pays a load alone, but all that follow gain. So `late-binding` needs
[loading ahead](../concepts/needs.md): nodes load models that are asked for into memory that is free, in proportion to how
often they are asked for. That holds no slot, evicts nothing, and until a request uses the model it is the first to go.
`auto` and `what-if` have it too, because `late-binding` is one of their candidates. `least-expected-completion` stays as
published.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, cases = results["machine"], results["cases"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    parts = [HEAD, where, _claims(cases), WHY]
    for load in MOST:
        parts.append(f"## Load {load:g}\n")
        parts += [_section(name, case) for name, case in cases.items() if case["load"] == load]
    return "\n".join(parts)


def _best(case: Mapping[str, Any]) -> str:
    return ranked(case, MEAN, [name for name in fixed(case) if name != TESTED[0]])[0]


def _claims(cases: Mapping[str, Any]) -> str:
    rows, lost = [], 0
    for name, case in cases.items():
        best = _best(case)
        ratios = [ratio(case, MEAN, policy, best) for policy in TESTED]
        is_met = all(found.mean <= MOST[case["load"]] for found in ratios[:2])
        lost += not is_met
        rows.append([name, f"`{best}`", *map(_text, ratios), "yes" if is_met else "**no**"])
    head = ["workload", "best fixed", *(f"`{policy}`" for policy in TESTED), "met"]
    return f"{len(rows) - lost} of {len(rows)} are met.\n\n{markdown_table(head, rows)}"


def _text(value: Estimate) -> str:
    return f"{value.mean:.3g}" if value.ci95 is None else f"{value.mean:.3g} ± {value.ci95:.1g}"


def _section(name: str, case: Mapping[str, Any]) -> str:
    rows: Sequence[Sequence[str]] = [
        [f"`{policy}`", _text(estimate(case, policy, MEAN)), _text(estimate(case, policy, P99))]
        for policy in ranked(case, MEAN)
    ]
    return f"### {name}\n\n{markdown_table(['policy', 'mean s', 'p99 s'], rows)}"
