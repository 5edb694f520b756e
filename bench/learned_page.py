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


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    parts = [HEAD, where, _verdict(results["cases"]), _training(results["trained"])]
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
    return "\n".join(parts)


def _change(c: Mapping[str, float]) -> str:
    return f"{100 * c['frac']:+.1f} ({100 * c['low_frac']:+.1f} to {100 * c['high_frac']:+.1f})"


def _verdict(cases: Mapping[str, Any]) -> str:
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
    return "## In short\n\n" + "\n".join(lines) + "\n"


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
