"""The page of fitted service times: the figures of each fit, and its residuals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.report import data_figures
from trimtab.report.fragments import FigureCard, grid, grouped_rows, notes, section
from trimtab.report.page import Page, html_of
from trimtab.report.whole_files import write_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.experiments.service_fit import FittedCluster, ServiceFit


def write_fit_report(fitted: FittedCluster, path: Path, title: str) -> Path:
    """Write the page. Raises UsageError if the file cannot be written."""
    drawn: dict[str, Figure] = {}
    cards: list[FigureCard] = []
    for k, fit in enumerate(fitted.fits):
        what = f"{fit.class_name} on {fit.node_type}"
        drawn[f"size-{k}"] = data_figures.residuals(fit.sizes, fit.residuals_frac, "size (work units)")
        drawn[f"load-{k}"] = data_figures.residuals(
            fit.in_flight, fit.residuals_frac, "requests in flight on the node"
        )
        cards += [
            FigureCard(
                f"size-{k}", f"{what}: errors by size", "A slope or a bend: no straight line in the size."
            ),
            FigureCard(
                f"load-{k}", f"{what}: errors by load", "A slope: waiting, or a server that slows down."
            ),
        ]
    told = [f"{fit.class_name} on {fit.node_type}: {hint}" for fit in fitted.fits for hint in fit.hints]
    rows = {f"{fit.class_name} on {fit.node_type}": _rows(fit) for fit in fitted.fits}
    body = notes(told) + section("fits", "Fits", "", grouped_rows(rows, {}))
    body += section(
        "residuals", "Residuals", "Recorded ÷ fitted − 1, of a sample of the rows.", grid(cards, "30rem")
    )
    return write_text(path, html_of(Page(title, "Service times fitted to recorded ones.", {}, body, drawn)))


def _rows(fit: ServiceFit) -> list[tuple[str, str, str]]:
    held = "–" if fit.held_back_error is None else f"{100 * fit.held_back_error:.1f}"
    return [
        ("fixed", f"{fit.fixed_s:.4g} ± {fit.fixed_ci95_s:.2g}", "s"),
        ("per unit", f"{fit.unit_s:.4g} ± {fit.unit_ci95_s:.2g}", "s"),
        ("rows", f"{fit.rows:,}", ""),
        ("R²", f"{fit.r2:.3f}", ""),
        ("held-back error, median", held, "%"),
        ("growth with each further request in flight", f"{100 * fit.per_in_flight_frac:+.2g}", "%"),
    ]
