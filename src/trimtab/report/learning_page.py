"""The page of a training: what was trained, and its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from trimtab.report.figure_parts import add_line, inks, new_figure
from trimtab.report.fragments import FigureCard, facts, grid, section
from trimtab.report.page import Page, html_of, origin
from trimtab.version import versions


def learning_page(
    what: str,
    told: Mapping[str, object],
    steps: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    step_title: str,
) -> str:
    """The page as HTML text: curves over steps, each in a figure of its own with its running mean."""
    figures, cards = {}, []
    for name, values in curves.items():
        figure = new_figure(x_title=step_title, y_title=name)
        ink = inks([name])[name]
        x, y = np.array(steps, np.float64), np.array(values, np.float64)
        hover = f"{step_title} %{{x}}: %{{y:.4~g}}"
        add_line(figure, name, ink, x, y, hover, mode="markers")
        add_line(figure, "running mean of ten", ink, x, _running_mean(y), hover)
        figures[name] = figure.update_layout(showlegend=True)
        cards.append(FigureCard(name, name, ""))
    rows = {key.replace("_", " "): str(value) for key, value in told.items() if value is not None}
    body = section("setting", "Setting", "", facts(rows))
    body += section("curves", "Curves", "", grid(cards, "40rem"))
    lead = f"{steps[-1] if steps else 0:,} of {step_title}s."
    return html_of(Page(what, lead, origin("", versions(), datetime.now(UTC)), body, figures))


def _running_mean(values: np.ndarray, width: int = 10) -> np.ndarray:
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(sums))
    begins = np.maximum(0, ends - width)
    means: np.ndarray = (sums[ends] - sums[begins]) / (ends - begins)
    return means
