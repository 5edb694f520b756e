"""The page of a fitted latency profile: its errors on rows that were held back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.report import data_figures
from trimtab.report.fragments import FigureCard, grid, grouped_rows, section
from trimtab.report.page import Page, html_of
from trimtab.report.whole_files import write_text

if TYPE_CHECKING:
    from trimtab.profiles.fit_profile import FittedProfile, HeldBackError


def write_profile_report(fitted: FittedProfile, path: Path, title: str) -> Path:
    """Write the page. Raises UsageError if the file cannot be written."""
    rows, frac = fitted.held_back, fitted.held_back.seconds / fitted.predicted_s - 1.0
    shown = (
        (
            "rows",
            rows.decoding,
            rows.decoding > 0,
            "rows that decode",
            "A bend: too few points of the table.",
        ),
        ("prompts", rows.prompt_tokens, rows.is_mixed, "prompt tokens read", "A step: tiles of the GPU."),
        (
            "context",
            rows.context,
            rows.context > 0,
            "tokens of context",
            "A slope: not linear in the context.",
        ),
    )
    drawn = {name: data_figures.residuals(x[of], frac[of], label) for name, x, of, label, _ in shown}
    cards = [FigureCard(name, f"Errors by {label}", hint) for name, _, _, label, hint in shown]
    told = {name: _rows(error) for name, error in fitted.errors().items()}
    body = section("errors", "Errors on rows held back", "", grouped_rows(told, {}))
    if fitted.parts:
        hint = "Of the profile that was scaled; ± one standard deviation."
        body += section("parts", "Multiples of parts", hint, grouped_rows({"": _parts(fitted)}, {}))
    body += section("residuals", "Residuals", "Measured ÷ predicted − 1.", grid(cards, "30rem"))
    return write_text(path, html_of(Page(title, "Seconds of iterations, fitted.", {}, body, drawn)))


def _rows(error: HeldBackError) -> list[tuple[str, str, str]]:
    return [
        ("rows", f"{error.rows:,}", ""),
        ("mean", f"{100 * error.mean:.2f}", "%"),
        ("median", f"{100 * error.median:.2f}", "%"),
        ("90th percentile", f"{100 * error.p90:.2f}", "%"),
    ]


def _parts(fitted: FittedProfile) -> list[tuple[str, str, str]]:
    return [
        (part.name, f"{part.multiple:.2f} ± {part.sd:.2f}", "" if part.is_measured else "hardly measured")
        for part in fitted.parts
    ]
