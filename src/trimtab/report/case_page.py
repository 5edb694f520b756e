"""The page of the case study: claims, strategies, causes, switches, and evenness against speed."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from trimtab.experiments.case import CaseStudy
from trimtab.metrics import mean_ci95
from trimtab.report.case_tables import TextTable, case_tables
from trimtab.report.figure_parts import NEUTRAL, float32, new_figure, use_log_axis
from trimtab.report.fragments import FigureCard, grid, section
from trimtab.report.page import Page, html_of
from trimtab.version import versions

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FRONT_HOW = (
    "Left is fast, down is even. The line joins strategies that none beats in both: where it is not a point, "
    "the most even way is not the fastest."
)


def case_page(study: CaseStudy) -> str:
    """The page as HTML text."""
    card = FigureCard("front", "Evenness against speed", FRONT_HOW)
    claims, *tables = case_tables(study)
    body = (
        _section(claims)
        + section("curves", "Front", "", grid([card], "40rem"))
        + "".join(map(_section, tables))
    )
    size = f"100 GPU nodes, {study.scale.requests:,} images, {study.scale.seeds} seeds"
    lead = f"{size}: each strategy alone, and all together."
    facts = {
        "Versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        "Made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }
    return html_of(Page("The case of 100 nodes", lead, facts, body, {"front": front_figure(study)}))


def front(study: CaseStudy) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Mean completion and Var(U) of each strategy at the highest load, and those that none beats in both."""
    rows = study.strategies[list(study.strategies)[-1]]
    points = {
        name: (mean_ci95(row["completion_mean_s"]).mean, mean_ci95(row["utilisation_var"]).mean)
        for name, row in rows.items()
    }
    best, least = [], np.inf
    for name in sorted(points, key=lambda one: points[one]):
        if points[name][1] < least:
            best.append(name)
            least = points[name][1]
    return points, best


def front_figure(study: CaseStudy) -> Figure:
    """Each strategy by mean completion and Var(U)."""
    points, best = front(study)
    x, y = (np.array([point[k] for point in points.values()]) for k in (0, 1))
    figure = new_figure(x_title="mean completion (s)", y_title="Var(U)", height_px=520)
    figure.add_scatter(
        x=float32(x),
        y=float32(y),
        text=list(points),
        mode="markers+text",
        textposition="top center",
        name="strategies",
        hovertemplate="%{text}<br>%{x:.3g} s, Var(U) %{y:.3g}<extra></extra>",
    )
    figure.add_scatter(
        x=float32(np.array([points[name][0] for name in best])),
        y=float32(np.array([points[name][1] for name in best])),
        mode="lines",
        name="front",
        line={"color": NEUTRAL, "width": 1},
        hoverinfo="skip",
    )
    use_log_axis(figure.update_xaxes, x)
    use_log_axis(figure.update_yaxes, y)
    return figure


def _section(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(of)}</th>' for of in table.head)
    rows = ""
    for first, *cells in table.rows:
        shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows += f'<tr><th scope="row">{escape(first)}</th>{shown}</tr>'
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return section(table.name, table.title, table.how, f'<div class="card scroll">{content}</div>')
