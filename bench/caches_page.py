"""docs/benchmarks/caches.md from bench/caches.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page import markdown_table
from trimtab.metrics import mean_ci95

HEAD = """<!-- Made by `python -m bench.caches` from what it measured; `--docs` writes it anew. -->

# Hit rates of the caches

What the hosts' caches keep, beside the most that any cache of their size could, were it told all requests in
advance. 10,000 requests come one at a time to one node, so that only what is kept counts. What they ask for,
one of 200, is drawn by Zipf's law, each time anew: nothing is popular only for a while. *Room* is the share
of all items, by size, that the cache holds. % of uses that are hits, ± half the width of the 95 % interval
over the seeds.
"""

UNIT = """*Belady* (1966) drops what is used again last of all, and is the best for items of one size. LRU and
GreedyDual-Size (`serving.eviction`) are the same there, as all items cost a second to load. *Pinned*: the
plan places the most popular items and leaves room for any one other (`plan-pinned`); it is told the
popularity.
"""

SIZES = """Sizes are lognormal (median 1, σ of the logarithm 1, 8 at most); a hit is a hit, whatever its size,
and *pinned* goes by popularity over size. The most hits are hard to find then. They lie between *feasible*,
hits that a schedule does have (the intervals between two uses of an item, by size × length, each where it
still fits), and *bound*, the PFOO-L bound of Berger, Beckmann and Harchol-Balter (SIGMETRICS 2018), where the
room need not suffice at each moment but on the whole.
"""

OTHERS = """The result cache keeps as many results as it has room for, and each node's prefix cache as many
blocks of prompts: both LRU. A prompt has four blocks that it shares with all prompts of its beginning, and
two of its own, which are never used again and push out others all the same: 66.7 % can be hits at most. Room
is the share of all results, and of all shared blocks.
"""

MEANING = """What comes of it: where popularity lasts, LRU is far from the best, the farther the smaller the
cache and the flatter the popularity. Half to 70 % of what it lacks (one size) is popularity, which can be
known: a plan that pins what is asked for most has these hits. Without any such knowledge GreedyDual-Size has
a fifth to a third of what LRU lacks of the bound where sizes differ. Prompts lose most, as blocks that never
come again are kept like all others.
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
