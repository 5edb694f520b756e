"""The page of a sizing: cost against each objective, over all fleets that were simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.report import data_figures
from trimtab.report.fragments import FigureCard, grid, grouped_rows, notes, section
from trimtab.report.page import Page, html_of
from trimtab.report.whole_files import write_text
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.experiments.serving.sizing import Fleet, FleetSizing


def write_sizing_report(done: FleetSizing, path: Path, title: str, told: Sequence[str]) -> Path:
    """Write the page. Raises UsageError if the file cannot be written."""
    names = {objective.metric: objective for objective in done.objectives}
    figures = {
        name: data_figures.cost_curve(done.fleets, name, objective.value) for name, objective in names.items()
    }
    how = "Each point is a fleet that was simulated; the line is the objective. Left and good is better."
    cards = [FigureCard(name, f"Cost against {name.replace('_', ' ')}", how) for name in names]
    chosen = done.best or done.nearest
    rows = {
        "The cheapest fleet that meets the objectives" if done.best else "The nearest fleet": _rows(chosen),
        "Less and more money": [(f.in_words(), f"{f.usd_per_hour:.4g}", "USD/h") for f in done.frontier()],
    }
    lead = f"{counted(len(done.fleets), 'fleet')} simulated on the same {counted(done.requests, 'request')}."
    body = notes(told) + section("fleet", "Fleet", "", grouped_rows(rows, {}))
    body += section("curves", "Cost against objectives", "", grid(cards, "30rem"))
    return write_text(path, html_of(Page(title, lead, {}, body, figures)))


def _rows(fleet: Fleet) -> list[tuple[str, str, str]]:
    metrics = [(name.replace("_", " "), f"{value:.4g}", "") for name, value in fleet.metrics.items()]
    return [
        ("nodes", fleet.in_words(), ""),
        ("policy", fleet.policy, ""),
        ("price", f"{fleet.usd_per_hour:.4g}", "USD/h"),
        ("price of the run", f"{fleet.usd:.4g}", "USD"),
        ("offered load", f"{100 * fleet.offered_load:.3g}", "%"),
        *metrics,
    ]
