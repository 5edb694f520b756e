"""The page of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trimtab.report import data_figures
from trimtab.report.fragments import FigureCard, grid, grouped_rows, section
from trimtab.report.page import Page, html_of
from trimtab.report.text_tables import trace_groups
from trimtab.report.whole_files import write_text
from trimtab.words import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.traces import TraceSummary

Floats = npt.NDArray[np.float64]


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
