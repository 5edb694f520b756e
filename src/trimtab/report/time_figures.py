"""Interactive figures of the curves of runs: completion times, and what happened over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trimtab.report.figure_parts import (
    BAR_PX,
    BARS_BASE_PX,
    NEUTRAL,
    Floats,
    Ink,
    add_line,
    float32,
    inks,
    log_ticks,
    new_figure,
)
from trimtab.report.number_formats import time_unit

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

    from trimtab.experiments.compare.kind import Curves

MOST_NAMED: Final = 8  # failures with their names; of more only the shade
AMOUNTS: Final = [  # Cividis, from a grey on that differs from its dark blue of nothing; √ of the amount
    [0.0, "#00224e"],
    [0.001, "#00224e"],
    [0.001, "#5b606e"],
    [0.04, "#787875"],
    [0.16, "#979176"],
    [0.36, "#b9ab6d"],
    [0.64, "#dcc858"],
    [1.0, "#fee838"],
]
MOST_GROUPS: Final = 12  # of nodes that get a name on the axis of the heat map


def completion_cdf(curves: Mapping[str, Curves]) -> Figure:
    """Share of finished items that were complete within each time, one line per policy, log time."""
    figure = new_figure(x_title="completion time (s)", y_title="finished within")
    times_s = [curve.completion_s[curve.completion_s > 0.0] for curve in curves.values()]
    for (policy, curve), ink in zip(curves.items(), inks(list(curves)).values(), strict=True):
        completion_s = np.where(curve.completion_s > 0.0, curve.completion_s, np.nan)
        add_line(figure, policy, ink, completion_s, curve.quantile_frac, "%{y:.1%} within %{x:.4~g} s")
    figure.update_xaxes(type="log", **log_ticks(np.concatenate([*times_s, np.ones(0)])))
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.01])


def queue_length(curves: Mapping[str, Curves], items: str = "requests") -> Figure:
    """Items waiting over time, mean of each bin, one line per policy."""
    of_policy = {policy: curve.queue_length for policy, curve in curves.items()}
    return _over_time(curves, of_policy, "time", f"{items} waiting", "%{y:.4~g} waiting")


def _over_time(
    curves: Mapping[str, Curves], of_policy: Mapping[str, Floats], when: str, axis: str, shown: str
) -> Figure:
    """Values of each bin over time, one line per policy that has some."""
    unit, unit_s = _time_unit(curves)
    figure = new_figure(x_title=f"{when} ({unit})", y_title=axis)
    for (policy, curve), ink in zip(curves.items(), inks(list(curves)).values(), strict=True):
        if len(of_policy[policy]):
            middle_s = (curve.edges_s[:-1] + curve.edges_s[1:]) / 2
            hover = f"{shown} at %{{x:.4~g}} {unit}"
            add_line(figure, policy, ink, middle_s / unit_s, of_policy[policy], hover)
    return figure.update_yaxes(rangemode="tozero")


def latency_over_time(curves: Mapping[str, Curves]) -> Figure:
    """Mean completion by time of arrival, one line per policy.

    What happened to nodes is shaded; marks on the line of a policy show where it took another candidate.
    """
    _, unit_s = _time_unit(curves)
    of_policy = {policy: curve.latency_s for policy, curve in curves.items()}
    figure = _over_time(curves, of_policy, "time of arrival", "mean completion (s)", "%{y:.4~g} s")
    marks = next((curve.marks for curve in curves.values() if curve.marks), ())
    for start_s, end_s, text in marks:
        named = {"annotation_text": text, "annotation_position": "top left"}
        figure.add_vrect(
            x0=start_s / unit_s,
            x1=end_s / unit_s,
            fillcolor=NEUTRAL,
            opacity=0.15,
            line_width=0,
            **(named if len(marks) <= MOST_NAMED else {}),
        )
    for (policy, curve), ink in zip(curves.items(), inks(list(curves)).values(), strict=True):
        if curve.switches and len(curve.latency_s):
            _mark_switches(figure, policy, curve, ink, unit_s)
    return figure


def _mark_switches(figure: Figure, policy: str, curve: Curves, ink: Ink, unit_s: float) -> None:
    at_s = np.array([at_s for at_s, _ in curve.switches])
    middle_s, known = (curve.edges_s[:-1] + curve.edges_s[1:]) / 2, np.isfinite(curve.latency_s)
    figure.add_scatter(
        x=float32(at_s / unit_s),
        y=float32(np.interp(at_s, middle_s[known], curve.latency_s[known])),
        text=[name for _, name in curve.switches],
        mode="markers",
        name=policy,
        legendgroup=policy,
        showlegend=False,
        marker={"symbol": "triangle-down", "size": 9, "color": ink.colour},
        hovertemplate=f"<b>{policy}</b><br>takes %{{text}} from %{{x:.4~g}} on<extra></extra>",
    )


def series_over_time(curves: Mapping[str, Curves], name: str, axis: str, *, is_frac: bool) -> Figure:
    """A series of the kind of work over time, mean of each bin, one line per policy."""
    of_policy = {policy: curve.series[name] for policy, curve in curves.items()}
    figure = _over_time(curves, of_policy, "time", axis, "%{y:.1%}" if is_frac else "%{y:.4~g}")
    return figure.update_yaxes(tickformat=".0%" if is_frac else "")


def utilisation_heatmap(curves: Mapping[str, Curves], rows: str = "nodes") -> Figure:
    """Share of each node's slots in use over time; a menu chooses the policy. Rows are nodes by type.

    Rows of a kind with a unit show amounts of it instead of shares. `rows`: what they are.
    """
    unit, unit_s = _time_unit(curves)
    first = next(iter(curves.values()))
    most = max(curve.rows_most for curve in curves.values())
    suffix = "" if first.rows_unit else " %"
    shown = suffix or f" {first.rows_unit}"
    top = most if first.rows_unit else 100.0
    figure = new_figure(height_px=440, x_title=f"time ({unit})")
    for i, (policy, curve) in enumerate(curves.items()):
        figure.add_heatmap(
            name=policy,
            visible=i == 0,
            z=_row_amounts(curve),
            x=float32(curve.edges_s / unit_s),
            zmin=0,
            zmax=top,
            colorscale=AMOUNTS if first.rows_unit else "Cividis",
            colorbar={
                "title": {"text": first.rows_unit or "in use"},
                "ticksuffix": suffix,
                "thickness": 12,
                "outlinewidth": 0,
            },
            hovertemplate=f"row %{{y}} at %{{x:.4~g}} {unit}: %{{z}}{shown}<extra></extra>",
        )
    if len(curves) > 1:
        figure.update_layout(updatemenus=[_policy_menu(list(curves))])
    _name_rows(figure, first.row_names, rows)
    return figure.update_layout(showlegend=False).update_xaxes(showgrid=False).update_yaxes(showgrid=False)


def _row_amounts(curve: Curves) -> Any:
    """Whole per cents, or amounts to a tenth."""
    if not curve.rows_unit:
        return np.rint(100.0 * curve.utilisation_frac).astype(np.uint8)
    return float32(np.rint(10.0 * curve.rows_most * curve.utilisation_frac) / 10.0)


def _policy_menu(policies: Sequence[str]) -> dict[str, Any]:
    def button(i: int) -> dict[str, Any]:
        return {"label": policies[i], "method": "restyle", "args": [{"visible": _only(i, len(policies))}]}

    return {
        "buttons": [button(i) for i in range(len(policies))],
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
    }


def _only(i: int, n: int) -> list[bool]:
    return [j == i for j in range(n)]


def _name_rows(figure: Figure, row_names: Sequence[str], rows: str) -> None:
    """One label and one line for each group of rows whose names differ only in their number."""
    stems = [name.rstrip("0123456789").rstrip("-_ .") for name in row_names]
    sizes = [(stem, len(list(rows))) for stem, rows in groupby(stems)]
    figure.update_yaxes(autorange="reversed")
    if len(sizes) > MOST_GROUPS:
        figure.update_yaxes(title={"text": rows}, showticklabels=False)
        return
    ends = np.cumsum([size for _, size in sizes])
    middles = [float(end - (size + 1) / 2) for end, (_, size) in zip(ends, sizes, strict=True)]
    figure.update_yaxes(tickvals=middles, ticktext=[stem for stem, _ in sizes])
    for end in ends[:-1]:
        figure.add_hline(y=float(end) - 0.5, line={"color": NEUTRAL, "width": 1.5})


def _time_unit(curves: Mapping[str, Curves]) -> tuple[str, float]:
    return time_unit(max(float(curve.edges_s[-1] - curve.edges_s[0]) for curve in curves.values()))


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
