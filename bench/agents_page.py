"""docs/benchmarks/agents.md from bench/agents.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.page import markdown_table

HEAD = """<!-- Made by `python -m bench.agents` from what it measured; `--docs` writes it anew. -->

# Agents in the simulator

How fast the environment `trimtab/Dispatch-v0` is, and what an agent learns from each of its rewards.
"""
SPEED = """## Speed

Steps per CPU second with 16 nodes and 4,000 requests an episode, resets and the choice of the node with the least wait
(numpy) included; all 12 columns of a node are filled in.
"""
REWARDED = """## What each reward buys, and what it loses

One linear score of a node's columns, the least wins, trained by evolution strategies for each reward with the same budget
({generations} generations, one training seed), from the same start. Differences from `least-expected-completion` on {seeds} seeds that no training saw,
with their 95 % intervals. 16 nodes of three types, models that have to be loaded, bursts, load 0.8; the faster a node, the dearer its second.
The last row is the rule itself.
"""
COLUMNS = {
    "mean": ("mean s", 1.0),
    "p99": ("p99 s", 1.0),
    "missed": ("late, points", 100.0),
    "busy": ("slots held, points", 100.0),
    "usd": ("USD per 1,000", 1.0),
}
MEANING = """*Late* are requests above the target of their class, *slots held* is slot time with loads over all until the last arrival.

A reward buys what it names. `completion`, `tail` and `slo` teach about the same here: a price for loads, which `least-expected-completion`
lacks by default. Two are to beware of alone. `utilisation` is best served by the slowest nodes and by loading models, so the agent
sends work where it takes longest. `cost` sends nearly all of it to the cheapest nodes, and lets it wait there. Give both with a weight beside `completion`.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, rule = results["machine"], results["rule"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    speeds = [(runs, f"{steps:,.0f}") for runs, steps in results["speeds"].items()]
    rows = [
        (name, *(_change(change[key], by) for key, (_, by) in COLUMNS.items()))
        for name, change in results["agents"].items()
    ]
    rows.append(("(the rule)", *(f"{by * rule[key]:.1f}" for key, (_, by) in COLUMNS.items())))
    head = ("reward", *(title for title, _ in COLUMNS.values()))
    return "\n".join(
        [
            HEAD,
            where,
            SPEED,
            markdown_table(("runs in a vector", "steps a CPU second"), speeds),
            REWARDED.format(seeds=results["seeds"], generations=results["generations"]),
            markdown_table(head, rows),
            MEANING,
        ]
    )


def _change(change: list[float], by: float) -> str:
    return f"{by * change[0]:+.1f} ± {by * change[1]:.1f}"
