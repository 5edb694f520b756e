"""Results in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from bench.figures import Figure
from bench.results import Result

VERDICT = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}" if value else "0"


def spread(f: Figure) -> str:
    """Least to most of the repetitions; empty for a single one."""
    return "" if f.repetitions == 1 else f"{number(f.least)} – {number(f.most)}"


def result_table(results: Mapping[str, Result]) -> Table:
    """One row per figure."""
    table = Table("benchmark", "figure", "median", "unit", "range", "target", "")
    for name, result in results.items():
        for f in result.figures:
            what, target = " · ".join(f.labels.values()), str(f.target or "")
            table.add_row(name, what, number(f.median), f.unit, spread(f), target, VERDICT[f.is_met])
        for s in result.skipped:
            table.add_row(name, " · ".join(s.labels.values()), "–", "", "", "", f"skipped: {s.reason}")
    return table
