"""docs/benchmarks/caches.md from bench/caches.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page import markdown_table
from trimtab.metrics import mean_ci95

HEAD = """<!-- Made by `python -m bench.caches` from what it measured; `--docs` writes it anew. -->

# Hit rates of the caches

Hit rates of the simulated caches beside the best possible rate of a cache that knows all requests in advance. 10,000
requests come one at a time to one node. Each asks for one of 200 items, drawn independently by Zipf's law. *Room* is the
share of all items, by size, that the cache holds. Values are percent of uses that are hits, ± half the width of the
95 % interval over the seeds.
"""

UNIT = """*Belady* (1966) drops the item whose next use is farthest away; this is optimal for items of one size. LRU and
GreedyDual-Size (`serving.eviction`) are equal here, because all items take a second to load. *Pinned*: the plan knows the
popularity, places the most popular items and leaves room for one other (`plan-pinned`).
"""

SIZES = """Sizes are lognormal (median 1, σ of the logarithm 1, maximum 8). Every hit counts the same, and *pinned* places items by
popularity over size. The optimum is hard to compute here. It lies between *feasible*, the hits of a schedule that keeps
items between two uses in order of size × time, and *bound*, the PFOO-L bound of Berger, Beckmann and Harchol-Balter
(SIGMETRICS 2018), which limits the room on average instead of at each moment.
"""

OTHERS = """The result cache and the prefix cache of a node are LRU. A prompt has four blocks that it shares with all prompts of the
same beginning and two of its own, which are never used again but push out others. At most 66.7 % of uses can be hits.
Room is the share of all results, and of all shared blocks.
"""

MEANING = """Where popularity lasts, LRU is far from the optimum, more so for small caches and flat popularity. A plan that pins
popular items gains half or more of the difference. Where sizes differ, GreedyDual-Size gains a part of it without knowing
the popularity. Prefix caches lose most, because blocks that are never used again are kept like all others.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    rows = results["rows"]
    seeds = len(next(iter(rows[0]["hit_frac"].values())))
    one_size = _table(rows, "models of one size", ("LRU", "pinned", "Belady"), "Belady")
    sizes = _table(
        rows, "models of many sizes", ("LRU", "GreedyDual-Size", "pinned", "feasible", "bound"), "bound"
    )
    parts = [HEAD, f"{seeds} seeds.\n", f"## Models on a node, of one size\n\n{UNIT}", one_size]
    parts += [f"## Models on a node, of many sizes\n\n{SIZES}", sizes]
    parts += [f"## Results and prefixes\n\n{OTHERS}", _others(rows)]
    return "\n".join([*parts, MEANING])


def _others(rows: Sequence[Mapping[str, Any]]) -> str:
    """Results and prefixes side by side."""
    of = {name: [row for row in rows if row["cache"] == name] for name in ("results", "prefixes")}
    lines = []
    for pair in zip(of["results"], of["prefixes"], strict=True):
        hits = [_percent(row["hit_frac"][name]) for row in pair for name in ("LRU", "Belady")]
        lines.append([*_place(pair[0]), *hits])
    head = [f"{name}: {rule}" for name in of for rule in ("LRU", "Belady")]
    return markdown_table(["Zipf exponent", "room", *head], lines)


def _place(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['zipf']:g}", f"{100 * row['room_frac']:g} %"]


def _table(rows: Sequence[Mapping[str, Any]], cache: str, names: Sequence[str], best: str) -> str:
    """One line for each popularity and room; the last column is LRU's share of the best."""
    lines = []
    for row in rows:
        if row["cache"] == cache:
            hit_frac = row["hit_frac"]
            share = [own / most for own, most in zip(hit_frac["LRU"], hit_frac[best], strict=True)]
            cells = [_percent(hit_frac[name]) for name in names]
            lines.append([*_place(row), *cells, _percent(share)])
    return markdown_table(["Zipf exponent", "room", *names, f"LRU / {best}"], lines)


def _percent(fractions: Sequence[float]) -> str:
    value = mean_ci95([100.0 * f for f in fractions])
    return f"{value.mean:.1f}" + (f" ± {value.ci95:.1f}" if value.ci95 is not None else "")
