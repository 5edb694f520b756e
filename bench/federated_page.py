"""docs/benchmarks/federated.md from bench/federated.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import mean_ci95

HEAD = """<!-- Made by `python -m bench.federated` from what it measured; `--docs` writes it anew. -->

# Learning together

Two groups of five sites learn the output lengths that policies expect ([Learn together](../guides/learn-together.md)), from 300 rows each, by FedAvg in
20 rounds: unlike ones, and generated ones with the same task (summaries), at levels and lengths of their own. Each then serves its next
2,500 requests. *Nothing*: the gateway begins with nothing. *Local only*: with its own 300 rows. *Others only*: with
what the four others learned, as a new site would. *Federated*: with what all learned. *Federated, own*: with that, moved by its own rows
(`own.safetensors`). *Pooled*: with what all rows in one place give.

Four windows of each trace; ± half the width of the 95 % interval over them.
"""
ERRORS = """
## Prediction errors

Mean |expected − true output tokens|, over the mean output. *At first*: the first 200 requests. *All*: all 2,500, while the gateway learns on. *Not
learning on*: all, with what it began with.
"""
SERVED = """
## What it brings

Completion under `least-expected-completion` on 16 nodes of 8 slots and three speeds at load 0.95, over that of a gateway that begins with nothing; below
1 is better. The same requests and arrivals for all kinds, window by window.
"""
POISON = """
## Poison

One of five sites (ServeGen) sends lengths fifty times too long and says that it has a million times its rows. How far the common curve moves, over its own mean:
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, groups = results["machine"], results["groups"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    of_errors = markdown_table(["site", "begins with", "at first", "all", "not learning on"], _errors(groups))
    of_runs = markdown_table(["site", "begins with", "mean", "p99"], _served(groups))
    moved = markdown_table(["rule", "moved by"], _poison(results["poison"]))
    words = [_in_words(TITLES[name], sites) for name, sites in groups.items()]
    return "\n".join([HEAD, where, ERRORS, of_errors, SERVED, of_runs, "", *words, POISON, moved])


TITLES = {"unlike": "five unlike sites", "alike": "five sites alike"}


def _sites(groups: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for sites in groups.values():
        yield from sites.items()


def _errors(groups: Mapping[str, Any]) -> Iterator[list[str]]:
    for site, kinds in _sites(groups):
        for kind, found in kinds.items():
            yield [site, kind, *(_told(found[key], 2) for key in ("first", "online", "frozen"))]


def _served(groups: Mapping[str, Any]) -> Iterator[list[str]]:
    for site, kinds in _sites(groups):
        for kind in kinds:
            if kind != "nothing":
                yield [site, kind, *(_told(ratios(kinds, kind, key), 3) for key in _METRICS)]


_METRICS = ("completion_mean_s", "completion_p99_s")


def ratios(kinds: Mapping[str, Any], kind: str, metric: str) -> np.ndarray:
    """With what this kind of learning gives over with nothing, window by window."""
    return np.divide(kinds[kind][metric], kinds["nothing"][metric])


def _told(values: Any, digits: int) -> str:
    found = mean_ci95(np.asarray(values, np.float64))
    return f"{found.mean:.{digits}f} ± {found.ci95:.1g}"


def _in_words(title: str, sites: Mapping[str, Any]) -> str:
    """Which cells gain and which lose beyond their interval."""
    counts = {}
    for kind in next(iter(sites.values())):
        if kind == "nothing":
            continue
        for metric, word in zip(_METRICS, ("mean", "p99"), strict=True):
            found = [mean_ci95(ratios(kinds, kind, metric)) for kinds in sites.values()]
            better = sum(each.mean + each.ci95 < 1.0 for each in found)
            worse = sum(each.mean - each.ci95 > 1.0 for each in found)
            counts[kind, word] = f"{better} better, {worse} worse"
    lines = [f"Beyond its interval, of {title}:", ""]
    kinds = list(dict.fromkeys(kind for kind, _ in counts))
    lines += [f"- {kind}: mean {counts[kind, 'mean']}; p99 {counts[kind, 'p99']}." for kind in kinds]
    return "\n".join([*lines, ""])


def _poison(found: Mapping[str, float]) -> Iterator[list[str]]:
    for rule, off in found.items():
        yield [rule, f"{100 * off:,.0f} %"]
