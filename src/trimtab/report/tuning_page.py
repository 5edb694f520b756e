"""The page of a tuning: what was found, what the test says, and the front of mean against p99."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trimtab.report import data_figures
from trimtab.report.fragments import FigureCard, grid, grouped_rows, notes, section
from trimtab.report.page import Page, html_of, origin
from trimtab.version import versions

if TYPE_CHECKING:
    from trimtab.experiments.tuning import Trial, Tuning


def tuning_page(tuning: Tuning) -> str:
    """The page as HTML text."""
    figures = {"front": data_figures.mean_against_tail(tuning)}
    how = (
        "0 is the policy as it was given; left and down is better. The line joins candidates that none beats."
    )
    cards = [FigureCard("front", "Mean against p99", how)]
    given = [
        (name, f"{value:.4g}", f"{tuning.best.values[name]:.4g}") for name, value in tuning.given.items()
    ]
    rows = {
        "Parameters, before and of the best candidate": given,
        f"Chosen on {tuning.requests['validation']:,} requests": _rows(tuning.best),
        f"Tested on {tuning.requests['test']:,} requests": _rows(tuning.test),
    }
    body = notes([tuning.in_words()])
    body += section("found", "Found", "Changes with their 95 % intervals.", grouped_rows(rows, {}))
    body += section("curves", "Front", "", grid(cards, "40rem"))
    lead = f"{tuning.base} on {tuning.scenario.name}: {tuning.goal}; {tuning.runs:,} runs."
    facts = origin(tuning.scenario.hash(), versions(), datetime.now(UTC))
    return html_of(Page(f"Tuning {tuning.base}", lead, facts, body, figures))


def _rows(trial: Trial) -> list[tuple[str, str, str]]:
    return [
        (
            name.replace("_", " "),
            f"{100 * c.frac:+.2f} ({100 * c.low_frac:+.2f} to {100 * c.high_frac:+.2f})",
            "%",
        )
        for name, c in trial.changes.items()
    ]
