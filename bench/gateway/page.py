"""docs/benchmarks/gateway.md from saved results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.figures import Figure
from bench.gateway.contests import contests
from bench.gateway.course import Course
from bench.gateway.proxies import PROXIES
from bench.page import markdown_table, measured_on
from bench.results import Result
from bench.table import number, spread

HEAD = """<!-- Made by `python -m bench.gateway --docs` from bench/gateway.json. -->

# Performance of the gateway

The gateway with all features on, beside other proxies. They take turns, and only one runs at a time. Values are medians with
minimum and maximum. Targets that compare with another proxy come from rounds of the two alone (31 for requests and
streams, 60 short ones for latency): the median of the pairs with its 95 % interval.
"""


def page(results: Mapping[str, Result]) -> str:
    """The whole page."""
    known = contests(Course(()))
    sections = (_section(known[name].title, known[name].about, result) for name, result in results.items())
    return "\n".join([HEAD, measured_on(results), "", _options(), _targets(results), *sections])


def _options() -> str:
    head = ["proxy", "how it was run"]
    return f"## The proxies\n\n{markdown_table(head, [[proxy.name, proxy.about] for proxy in PROXIES])}"


def _targets(results: Mapping[str, Result]) -> str:
    goals = [(name, f) for name, result in results.items() for f in result.figures if f.target]
    if not goals:
        return "## Targets\n\nNone of them was measured.\n"
    head = ["contest", "figure", "median", "range", "unit", "target", "met"]
    cells = [
        [name, _what(f), number(f.median), spread(f), f.unit, str(f.target), "yes" if f.is_met else "**no**"]
        for name, f in goals
    ]
    return f"## Targets\n\n{markdown_table(head, cells)}"


def _what(f: Figure) -> str:
    return " · ".join(label for name, label in f.labels.items() if name != "proxy")


def _section(title: str, about: str, result: Result) -> str:
    skipped = "".join(
        f"- Not measured: {' · '.join(s.labels.values())} ({s.reason})\n" for s in result.skipped
    )
    parts = (f"## {title}\n", f"{about}\n", *_tables(result), skipped)
    return "\n".join(part for part in parts if part)


def _tables(result: Result) -> Iterator[str]:
    """A row per proxy and a column per figure, for each value of other labels; no ratios: they are above."""
    groups: dict[str, dict[str, dict[str, Figure]]] = {}
    for f in result.figures:
        if ", over " not in f.labels["figure"]:
            group = " ".join(label for name, label in f.labels.items() if name not in ("proxy", "figure"))
            groups.setdefault(group, {}).setdefault(f.labels["proxy"], {})[
                f"{f.labels['figure']} ({f.unit})"
            ] = f
    for group, by_proxy in groups.items():
        columns = list(dict.fromkeys(column for cells in by_proxy.values() for column in cells))
        cells = [
            [name, *(_cell(cells_of.get(column)) for column in columns)]
            for name, cells_of in by_proxy.items()
        ]
        heading = f"### {group}\n\n" if group else ""
        yield heading + markdown_table(["proxy", *columns], cells)


def _cell(f: Figure | None) -> str:
    if f is None:
        return "–"
    return f"{number(f.median)} ({spread(f)})" if spread(f) else number(f.median)
