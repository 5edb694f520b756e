"""Interactive figures of the stages of chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from trimtab.report.figure_parts import BAR_PX, BARS_BASE_PX, float32, new_figure
from trimtab.report.palette import inks

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

GANTT_ROWS: Final = 2000  # stages that a Gantt chart shows


def stage_gantt(stages: pl.DataFrame, most: int = GANTT_ROWS) -> Figure:
    """Stages on their nodes over time, by stage: the first ones that were served, at most so many."""
    import polars as pl

    shown = stages.filter(pl.col("start_s").is_not_null() & pl.col("finish_s").is_not_null())
    shown = shown.sort("start_s").head(most)
    figure = new_figure(height_px=440, x_title="time (s)")
    names = shown["stage"].unique(maintain_order=True).to_list()
    for name, ink in inks(names).items():
        rows = shown.filter(pl.col("stage") == name)
        figure.add_bar(
            name=name,
            orientation="h",
            base=float32(rows["start_s"].to_numpy()),
            x=float32((rows["finish_s"] - rows["start_s"]).to_numpy()),
            y=rows["node"].to_list(),
            marker={"color": ink.colour, "line": {"width": 0}},
            customdata=rows["request_id"].to_list(),
            hovertemplate=f"{name}, run %{{customdata}}: %{{x:.4~g}} s from %{{base:.4~g}} s<extra></extra>",
        )
    return figure.update_layout(barmode="overlay", showlegend=True).update_yaxes(
        autorange="reversed", type="category"
    )


def waits_by_stage(seconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """Seconds of each stage, stacked by what they were spent on."""
    figure = new_figure(height_px=BARS_BASE_PX + 2 * BAR_PX * len(seconds), x_title="time (s)")
    reasons = list(next(iter(seconds.values()), {}))
    for reason, ink in inks(reasons).items():
        figure.add_bar(
            name=reason,
            orientation="h",
            x=float32(np.array([own[reason] for own in seconds.values()])),
            y=list(seconds),
            marker={"color": ink.colour, "line": {"width": 0}},
            hovertemplate=f"%{{y}}: %{{x:.4~g}} s {reason}<extra></extra>",
        )
    return figure.update_layout(barmode="stack", showlegend=True).update_yaxes(
        autorange="reversed", type="category"
    )
