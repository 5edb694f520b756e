"""docs/benchmarks/simulator.md from saved results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.catalogue import BENCHMARKS
from bench.figures import Benchmark, Figure
from bench.results import Result
from bench.table import number, spread

HEAD = """<!-- Made by `python -m bench --docs` from bench/results.json; measure anew with `make bench`. -->

# Speed of the simulator

Medians of repeated measurements, with minimum and maximum. Ratios come from runs that take turns. Speed is processor time
of the loop and its random numbers on one core; requests are made beforehand.
"""


def page(results: Mapping[str, Result]) -> str:
    """The whole page."""
    sections = (_section(BENCHMARKS[name], result) for name, result in results.items() if name in BENCHMARKS)
    return "\n".join([HEAD, measured_on(results), "", _targets(results), *sections])


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, its cells given."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def measured_on(results: Mapping[str, Result]) -> str:
    """On what it was measured: once where it is the same for all benchmarks."""
    lines: dict[str, list[str]] = {}
    for name, result in results.items():
        lines.setdefault(_machine(result), []).append(name)
    if len(lines) == 1:
        return f"Measured on {next(iter(lines))}."
    return "\n".join(f"- {', '.join(names)}: measured on {line}" for line, names in lines.items())


def _machine(result: Result) -> str:
    on = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    quick = "; **a quick run, whose figures mean nothing**" if result.is_quick else ""
    computer = f"{on['cpu']}, {on['cores']} cores, {on['memory_gb']} GB, {on['system']}"
    return f"{computer}, on {result.measured[:10]}; {versions}{quick}"


def _targets(results: Mapping[str, Result]) -> str:
    """Every target beside what was measured; where one is missed, where to read why."""
    with_target = [(name, f) for name, result in results.items() for f in result.figures if f.target]
    rows = [
        [*_figure_cells(name, f), str(f.target), "yes" if f.is_met else "**no**"] for name, f in with_target
    ]
    missed = dict.fromkeys(name for name, f in with_target if not f.is_met)
    head = ["benchmark", "figure", "median", "range", "unit", "target", "met"]
    why = "\n".join(
        f"- Missed in [{name}](#{_anchor(BENCHMARKS[name].title)}): see the profile there." for name in missed
    )
    table = f"## Targets\n\n{markdown_table(head, rows)}"
    return f"{table}\n{why}\n" if missed else table


def _figure_cells(name: str, f: Figure) -> list[str]:
    return [name, " · ".join(f.labels.values()), number(f.median), spread(f), f.unit]


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _section(benchmark: Benchmark, result: Result) -> str:
    table = _flat(result.figures) if benchmark.pivot is None else _pivot(benchmark.pivot, result.figures)
    skipped = "".join(
        f"- Not measured: {' · '.join(s.labels.values())} ({s.reason})\n" for s in result.skipped
    )
    profile = f"{benchmark.profile}\n" if benchmark.profile else ""
    parts = (f"## {benchmark.title}\n", f"{benchmark.about}\n", table, skipped, profile)
    return "\n".join(part for part in parts if part)


def _flat(figures: Sequence[Figure]) -> str:
    names = list(dict.fromkeys(name for f in figures for name in f.labels))
    rows = [[*(f.labels.get(n, "") for n in names), number(f.median), spread(f), f.unit] for f in figures]
    return markdown_table([*names, "median", "range", "unit"], rows)


def _pivot(pivot: tuple[str, str], figures: Sequence[Figure]) -> str:
    """Medians; one row and one column per label, the unit with the row where it is not the same for all."""
    row, column = pivot
    columns = list(dict.fromkeys(f.labels[column] for f in figures))
    units = {f.unit for f in figures}
    cells: dict[str, dict[str, str]] = {}
    for f in figures:
        label = f.labels[row] if len(units) == 1 else f"{f.labels[row]} ({f.unit})"
        cells.setdefault(label, {})[f.labels[column]] = number(f.median)
    rows = [[label, *(values.get(c, "") for c in columns)] for label, values in cells.items()]
    return markdown_table([row, *columns], rows)
