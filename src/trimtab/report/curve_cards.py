"""Cards with figures of curves over time, for the pages of comparisons and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trimtab.report import time_figures
from trimtab.report.fragments import FigureCard, figure_card

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.experiments.compare import Curves

CDF: Final = FigureCard(
    "cdf", "Completion times", "Further left is faster; read off which share had finished within a time."
)
HEAT: Final = FigureCard(
    "heat",
    "Utilisation of nodes over time",
    "One row per node, grouped by type: dark is idle, bright is fully used; even rows mean balanced work.",
)


LATENCY: Final = FigureCard(
    "latency",
    "Completion over time",
    "Mean completion of the requests that arrived then; shaded: nodes that were down or slow; "
    "triangles: the policy took another of its candidates.",
)


LINKS: Final = FigureCard(
    "links",
    "Utilisation of links",
    "What each link carried, of what it could have carried in the window. The fullest ones.",
)


GANTT: Final = FigureCard(
    "gantt",
    "Stages on nodes",
    "Each bar is a stage of a run on its node; gaps are idle slots. The first ones.",
)


def queue_card(items: str) -> FigureCard:
    """Card of the queue length; `items` is their plural."""
    how = f"{items.capitalize()} waiting anywhere; peaks are bursts that took time to drain."
    return FigureCard("queue", "Queue over time", how)


def curve_figures(curves: Mapping[str, Curves], items: str) -> dict[str, Figure]:
    """Figures of the curves of each policy."""
    drawn = {"cdf": time_figures.completion_cdf(curves), "queue": time_figures.queue_length(curves, items)}
    return drawn | ({"latency": time_figures.latency_over_time(curves)} if _has_latency(curves) else {})


def time_cards(curves: Mapping[str, Curves], items: str) -> list[FigureCard]:
    """Cards of the curves over time."""
    return [queue_card(items), *([LATENCY] if _has_latency(curves) else [])]


def _has_latency(curves: Mapping[str, Curves]) -> bool:
    return any(len(curve.latency_s) for curve in curves.values())


def wide(card: FigureCard) -> str:
    """The card over the whole width."""
    return f'<div class="grid" style="--least:100%">{figure_card(card)}</div>'
