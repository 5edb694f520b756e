"""docs/benchmarks/privacy.md from bench/privacy.json, section by section, and its plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scipy.stats import norm

from bench.page import markdown_table
from trimtab.privacy.accounting import rho_of

HEAD = """<!-- Made by `python -m bench.privacy` from what it measured; `--docs` writes it anew. -->

# Privacy

What privacy costs, and what it buys: shared traces here, [learning together](federated.md), and
[encrypted sums and private training](private-learning.md).
"""
SHARED = """## Shared traces

`trimtab trace share` makes a synthetic trace under (ε, 10⁻⁶)-differential privacy ([guide](../guides/share-a-trace.md)). Do decisions stay the same?
Policies are compared at load 0.8 (images 0.7) on the original and on each shared trace, with the same two seeds; a fleet is sized at the trace's own
rate (ServeGen's halved, images' times 60). *τ* is Kendall's between the orders of {policies} policies, by mean completion and by p99; *regret* is how much the mean on the original grows if the policy that is best on the shared
trace is taken; *off* is the mean relative difference of the five best policies' figures; *fleet* is the price of the cheapest fleet over that of the
original. Figures are means over the releases, each with noise of its own, with least and greatest in brackets where they differ.

The first row is the original against itself with other seeds: no shared trace can agree better. ε = 10,000 has hardly any noise: what is off there is the
model of the shared trace, not privacy.
"""
IMAGE = "![τ and regret by ε](../images/privacy.svg)\n"
REFUSED = "refused: too small a table"
MEANING = """Requests of a shared trace are drawn independently. Where figures live on what follows what (a model that is asked for again and again, as in GenTD26), they are off
with noise or without, as the rows of ε = 10,000 show: there a shared trace orders policies, and does not predict their seconds. Under a promise for tenants only the rows that
count are there, at most five of each: the shared trace is smaller than its original, so fleets sized on it are too small. What a case lacks, `make bench-privacy` measures.
"""
ATTACKS = """## What an attacker gains

Advantage of the strongest attack on membership (right alarms minus false ones), who knows every other row: with Gaussian noise of ρ it is
2 Φ(√(ρ/2)) − 1 (Dong, Roth and Su 2022), and (ε, δ) alone promises (e^ε − 1 + 2δ)/(e^ε + 1). `tests/traces/sharing/test_share_attacks.py` mounts that attack on rows and on
tenants: within the bound with noise, successful without.
"""
NO_NOISE: Final = "10000"


def page(figures: Mapping[str, Any]) -> str:
    """The whole page: each section that was measured."""
    on = figures["machine"]
    where = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}; load average {on['load_average']}.\n"
    )
    sections = [SECTIONS[name](figures[name]) for name in SECTIONS if name in figures]
    return "\n".join([HEAD, where, *sections])


def _shared(figures: Mapping[str, Any]) -> str:
    cases = figures["cases"]
    some = next(iter(cases.values()))["moved"]
    policies = max(entry["policies"] for entries in some.values() for entry in entries)
    parts = [SHARED.format(policies=policies), IMAGE]
    for case in cases.values():
        head = (
            "ε",
            "releases",
            "τ, mean",
            "τ, p99",
            "regret %",
            "mean off %",
            "p99 off %",
            f"fleet for {case['slo']}",
        )
        rows = [
            (_title(label), str(len(entries)), *_cells(entries)) for label, entries in case["moved"].items()
        ]
        parts += [f"### {case['title']}\n", markdown_table(head, rows)]
    bounds = [
        (
            f"{e:g}",
            f"{2 * norm.cdf(math.sqrt(rho_of(e, 5e-7) / 2)) - 1:.3f}",
            f"{(math.exp(e) - 1) / (math.exp(e) + 1):.3f}",
        )
        for e in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    attacks = markdown_table(("ε", "strongest attack", "bound of (ε, δ)"), bounds)
    return "\n".join([*parts, MEANING, ATTACKS, attacks])


def _title(label: str) -> str:
    return "10,000 (hardly any noise)" if label == NO_NOISE else label


def _cells(entries: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    if not entries:
        return (REFUSED, *[""] * 5)
    columns: dict[Callable[[Mapping[str, Any]], float], str] = {
        lambda e: e["mean_tau"]: ".2f",
        lambda e: e["p99_tau"]: ".2f",
        lambda e: 100.0 * e["regret_frac"]: ".1f",
        lambda e: off(e, "mean_s"): ".1f",
        lambda e: off(e, "p99_s"): ".1f",
        lambda e: e["fleet"]["usd_per_hour"][1] / e["fleet"]["usd_per_hour"][0]: ".2f",
    }
    return [_spread([of(entry) for entry in entries], form) for of, form in columns.items()]


def _spread(values: Sequence[float], form: str) -> str:
    mean, low, high = (format(v, form) for v in (sum(values) / len(values), min(values), max(values)))
    return mean if low == high else f"{mean} [{low}, {high}]"


def off(entry: Mapping[str, Any], figure: str) -> float:
    """Mean relative difference of a figure of the best five policies, percent."""
    pairs = [policy[figure] for policy in entry["best_five"]]
    return 100.0 * sum(abs(shared / original - 1.0) for original, shared in pairs) / len(pairs)


SECTIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {"share": _shared}


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """τ and the error of the mean over ε, a line for each trace."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "trimtab"
    chart, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.2), layout="constrained")
    for case in figures["share"]["cases"].values():
        for axis, of in ((left, lambda e: e["mean_tau"]), (right, lambda e: off(e, "mean_s"))):
            points = list(_points(case["moved"], of))
            axis.plot(*zip(*points, strict=True), marker="o", label=case["title"])
    for axis, title in ((left, "Kendall's τ of the policies' order"), (right, "mean completion off, %")):
        axis.set(xscale="log", xlabel="ε", title=title, xticks=[0.5, 1, 2, 4, 8])
        axis.set_xticklabels(["0.5", "1", "2", "4", "8"])
        axis.minorticks_off()
    left.set_ylim(top=1.02)
    right.set_ylim(bottom=0.0)
    left.legend(fontsize="small")
    chart.savefig(path, metadata={"Date": None})
    plt.close(chart)


def _points(
    moved: Mapping[str, Sequence[Mapping[str, Any]]], of: Callable[[Mapping[str, Any]], float]
) -> Iterator[tuple[float, float]]:
    for label, entries in moved.items():
        if label not in ("original, other seeds", NO_NOISE) and entries:
            yield float(label), sum(map(of, entries)) / len(entries)
