"""docs/benchmarks/learned.md from bench/learned.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.page import markdown_table

HEAD = """<!-- Made by `python -m bench.learned` from what it measured; `--docs` writes it anew. -->

# Learned policies

What learned weights change against `late-binding`, on workloads that no training saw. Each is a relative change of the
geometric mean over workloads, with its 95 % interval; below 0 is better. *Worst* is the largest change of the mean in one
workload, *> 5 % worse* the share of workloads whose mean is more than 5 % above that of `late-binding`.
"""

READ = """What is learned is mostly a choice on the front of mean against p99 that late binding's own numbers (`ageing`) lie on too: the objective
decides where. The bound and the ranges of features change hardly anything on clusters of the same family: they are for traffic of another
kind. Binding early (`learned-dispatch`) cannot reach what holding requests gives without learning. Trainings are short, half a CPU minute;
what ten times as long finds was not measured.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    parts = [
        HEAD,
        where,
        "## In short\n",
        "\n".join(verdict(results["cases"])),
        "",
        READ,
        _guards(results["cases"]),
        _training(results["trained"]),
    ]
    for title, case in results["cases"].items():
        rows = (
            (
                name,
                _change(p["mean"]),
                _change(p["p99"]),
                f"{100 * p['mean']['worst_frac']:+.0f} %",
                f"{100 * p['worse_share']:.0f} %",
                f"{p['cpu_s']:.0f}",
            )
            for name, p in case["policies"].items()
        )
        head = ("policy", "mean %", "p99 %", "worst", "> 5 % worse", "CPU s")
        parts.append(f"## On {case['workloads']} × {title}\n\n{markdown_table(head, rows)}")
    parts.append(_decisions(results["decisions_us"]))
    return "\n".join(parts)


def _decisions(decisions_us: Mapping[str, Mapping[str, float]]) -> str:
    names = list(next(iter(decisions_us.values())))
    rows = [(name, *(f"{found[name]:.2f}" for found in decisions_us.values())) for name in names]
    return (
        "## Microseconds of a decision at 1,000 nodes\n\nWeights that read nothing of single nodes need one pass of the network for "
        f"each group and kind of nodes.\n\n{markdown_table(('policy', *decisions_us), rows)}"
    )


def _change(c: Mapping[str, float]) -> str:
    return f"{100 * c['frac']:+.1f} ({100 * c['low_frac']:+.1f} to {100 * c['high_frac']:+.1f})"


def verdict(cases: Mapping[str, Any]) -> list[str]:
    """What holds in every case: computed, so that it can't outlive the figures."""
    lines = []
    names = dict.fromkeys(
        name for case in cases.values() for name in case["policies"] if name.startswith("ES")
    )
    for name in names:
        found = [case["policies"][name] for case in cases.values() if name in case["policies"]]
        gains = sum(p["mean"]["high_frac"] < 0.0 and p["p99"]["low_frac"] <= 0.0 for p in found)
        losses = sum(p["mean"]["low_frac"] > 0.0 or p["p99"]["low_frac"] > 0.0 for p in found)
        lines.append(
            f"- {name}: a lower mean beyond its interval, at a p99 that is not higher beyond its own, in {gains} of "
            f"{len(found)} cases; a higher mean or p99 beyond its interval in {losses}."
        )
    return lines


def _guards(cases: Mapping[str, Any]) -> str:
    """Shares of clusters that are worse, by guard."""
    case = next(iter(cases.values()))
    found = case["policies"]
    rows = [
        (name, *(_share(found, name + guard) for guard in (", no guard", "", ", guarded by rollouts")))
        for name in found
        if name.startswith("ES") and "," not in name
    ]
    head = ("weights", "without a guard", "bound and ranges", "rollouts besides")
    return (
        f"## The guard\n\nShare of the {case['workloads']} unseen generated clusters whose mean is more than 5 % above that of "
        f"`late-binding`.\n\n{markdown_table(head, rows)}"
    )


def _share(policies: Mapping[str, Any], name: str) -> str:
    return f"{100 * policies[name]['worse_share']:.0f} %" if name in policies else "–"


def _training(trained: Mapping[str, Any]) -> str:
    rows = (
        (
            f"ES {name}",
            f"`{t['policy']}`",
            f"`{t['objective']}`",
            str(t["generations"]),
            f"{t['cpu_s']:.0f}",
            f"{_last(t['curve'][:10]):+.3f} → {_last(t['curve'][-10:]):+.3f}",
        )
        for name, t in trained.items()
    )
    head = (
        "weights",
        "policy",
        "objective",
        "generations",
        "CPU s",
        "loss of the first → last ten generations",
    )
    return (
        "## Training\n\nEvolution strategies on 96 generated clusters of 8 to 32 nodes and 400 requests, six in a generation, "
        "with common random numbers (`trimtab learn train`). Loss is that of candidates, which deviate from the centre; 0 is the "
        f"rule without weights.\n\n{markdown_table(head, rows)}\n"
        "*No guard* takes away the bound on what a score may change by (1.5 best services) and the ranges of features that were "
        "seen in training. *Guarded by rollouts* is `learned-guarded`, which falls back where rollouts show regret.\n"
    )


def _last(values: list[float]) -> float:
    return sum(values) / len(values)
