"""Short pages: of a trace, of service times fitted to recorded ones, and of a sizing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trimtab.report import data_figures
from trimtab.report.fragments import FigureCard, grid, grouped_rows, notes, section
from trimtab.report.page import Page, html_of
from trimtab.report.text_tables import trace_groups
from trimtab.report.whole_files import write_text
from trimtab.words import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.experiments.service_fit import FittedCluster, ServiceFit
    from trimtab.experiments.serving.sizing import Fleet, FleetSizing
    from trimtab.traces import TraceSummary

Floats = npt.NDArray[np.float64]


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
        "The cheapest fleet that meets the objectives" if done.best else "The nearest fleet": _fleet_rows(
            chosen
        ),
        "Less and more money": [(f.in_words(), f"{f.usd_per_hour:.4g}", "USD/h") for f in done.frontier()],
    }
    lead = f"{counted(len(done.fleets), 'fleet')} simulated on the same {counted(done.requests, 'request')}."
    body = notes(told) + section("fleet", "Fleet", "", grouped_rows(rows, {}))
    body += section("curves", "Cost against objectives", "", grid(cards, "30rem"))
    return write_text(path, html_of(Page(title, lead, {}, body, figures)))


def _fleet_rows(fleet: Fleet) -> list[tuple[str, str, str]]:
    metrics = [(name.replace("_", " "), f"{value:.4g}", "") for name, value in fleet.metrics.items()]
    return [
        ("nodes", fleet.in_words(), ""),
        ("policy", fleet.policy, ""),
        ("price", f"{fleet.usd_per_hour:.4g}", "USD/h"),
        ("price of the run", f"{fleet.usd:.4g}", "USD"),
        ("offered load", f"{100 * fleet.offered_load:.3g}", "%"),
        *metrics,
    ]


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
    rows = {f"{fit.class_name} on {fit.node_type}": _fit_rows(fit) for fit in fitted.fits}
    body = notes(told) + section("fits", "Fits", "", grouped_rows(rows, {}))
    body += section(
        "residuals", "Residuals", "Recorded ÷ fitted − 1, of a sample of the rows.", grid(cards, "30rem")
    )
    return write_text(path, html_of(Page(title, "Service times fitted to recorded ones.", {}, body, drawn)))


def _fit_rows(fit: ServiceFit) -> list[tuple[str, str, str]]:
    held = "–" if fit.held_back_error is None else f"{100 * fit.held_back_error:.1f}"
    return [
        ("fixed", f"{fit.fixed_s:.4g} ± {fit.fixed_ci95_s:.2g}", "s"),
        ("per unit", f"{fit.unit_s:.4g} ± {fit.unit_ci95_s:.2g}", "s"),
        ("rows", f"{fit.rows:,}", ""),
        ("R²", f"{fit.r2:.3f}", ""),
        ("held-back error, median", held, "%"),
        ("growth with each further request in flight", f"{100 * fit.per_in_flight_frac:+.2g}", "%"),
    ]


def write_trace_report(
    summary: TraceSummary,
    rates: tuple[Floats, Floats] | None,
    path: Path,
    *,
    size: Floats | None = None,
    title: str = "Trace",
) -> Path:
    """Write the page of a trace: its summary, its rate over time, and its sizes if given.

    `rates`, from `traces.rate_series`: start of each bin in seconds and requests per second in it;
    None if all requests arrive at once. `size` [requests], in work units. Raises UsageError if the file
    cannot be written.
    """
    return write_text(path, html_of(_trace_page(summary, rates, size, title)))


def _trace_page(
    summary: TraceSummary, rates: tuple[Floats, Floats] | None, size: Floats | None, title: str
) -> Page:
    drawn: dict[str, Figure] = {}
    cards = []
    if rates is not None:
        drawn["rate"] = data_figures.arrival_rate(*rates)
        cards.append(FigureCard("rate", "Arrival rate", "Requests per second over time; peaks are bursts."))
    if size is not None and len(size):
        drawn["size"] = data_figures.size_histogram(size)
        cards.append(FigureCard("size", "Sizes", "How many requests have which size, on a log axis."))
    body = section("figures", "Figures", "", grid(cards, "30rem")) if cards else ""
    body += section("summary", "Summary", "", grouped_rows(trace_groups(summary), {}))
    return Page(title, f"{counted(summary.rows, 'request')}.", {}, body, drawn)
