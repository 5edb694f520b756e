"""Interactive figures of a comparison: one metric of all policies, over load, or against another metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from trimtab.metrics import Estimate
from trimtab.report.figure_parts import (
    BAR_PX,
    BARS_BASE_PX,
    NEUTRAL,
    Floats,
    Ink,
    add_line,
    axis_title,
    faint,
    float32,
    inks,
    interval_band,
    new_figure,
    scaled,
    use_log_axis,
)
from trimtab.report.number_formats import style_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trimtab.experiments.compare import Comparison

BAND_OPACITY_FRAC: Final = 0.1


def metric_bars(comparison: Comparison, metric: str) -> Figure:
    """One metric of every policy with 95 % intervals, best on top, and its lower bound if there is one."""
    ranked = comparison.ranked(metric)[::-1]
    own = inks([result.policy for result in comparison.results])
    estimates = [result.metrics[metric] for result in ranked]
    described = comparison.kind.metrics[metric]
    style = style_of(estimates, described.unit)
    colours = [own[result.policy].colour for result in ranked]
    figure = new_figure(
        height_px=BARS_BASE_PX + BAR_PX * len(ranked), x_title=axis_title(described, style.unit)
    )
    figure.add_bar(
        x=scaled([e.mean for e in estimates], style.factor),
        y=[_two_lines(result.policy) for result in ranked],
        orientation="h",
        marker={"color": [faint(c, 0.55) for c in colours], "line": {"color": colours, "width": 1}},
        error_x={
            "array": _half_widths(estimates, style.factor),
            "color": NEUTRAL,
            "thickness": 1.6,
            "width": 4,
        },
        customdata=[f"{style.estimate(e)} {style.unit}" for e in estimates],
        hovertemplate="%{y}<br>%{customdata}<extra></extra>",
    )
    bound = _bound_on(comparison, metric)
    if bound is not None:
        _mark_bound(figure, bound * style.factor)
    figure.update_xaxes(range=_bar_range(figure.data[0]))
    return figure.update_layout(showlegend=False, bargap=0.35, yaxis={"automargin": True, "showgrid": False})


def _bound_on(comparison: Comparison, metric: str) -> float | None:
    """The lower bound, if there is one for this metric."""
    objective = comparison.kind.objective
    bound: float | None = comparison.bound[objective]
    return bound if metric == objective else None


def _bar_range(bars: Any) -> list[float]:
    """Range from zero to the end of the longest whisker; intervals are cut at zero."""
    longest = float(np.nanmax(bars.x + bars.error_x.array, initial=0.0))
    return [0.0, 1.05 * longest or 1.0]


def _mark_bound(figure: Figure, x: float) -> None:
    line = {"color": NEUTRAL, "width": 2, "dash": "dash"}
    figure.add_vline(x=x, line=line, annotation={"text": "lower bound", "yanchor": "bottom", "y": 1.0})


def load_lines(comparison: Comparison, metric: str) -> Figure:
    """One metric against the offered load, a band for the 95 % interval; times on a log axis.

    The lower bound is known at the comparison's own load only: one mark.
    """
    described = comparison.kind.metrics[metric]
    unit = described.unit
    figure = new_figure(
        x_title="offered load (%)", y_title=axis_title(described, "%" if unit == "frac" else unit)
    )
    for policy, ink in inks([result.policy for result in comparison.results]).items():
        points = sorted((p for p in comparison.sweep if p.policy == policy), key=lambda point: point.load)
        load = np.array([100.0 * point.load for point in points])
        _add_estimates(figure, policy, ink, load, [point.metrics[metric] for point in points], unit)
    bound = _bound_on(comparison, metric)
    if bound is not None:
        loads = [point.load for point in comparison.sweep]
        is_left = comparison.offered_load <= min(loads, default=math.inf)
        is_right = comparison.offered_load >= max(loads, default=-math.inf)
        side = "middle right" if is_left else "middle left" if is_right else "bottom center"
        _add_bound_point(figure, 100.0 * comparison.offered_load, bound, side)
    if unit == "s":
        means = [point.metrics[metric].mean for point in comparison.sweep]
        use_log_axis(figure.update_yaxes, np.array([*means, *([] if bound is None else [bound])]))
    return figure


def _add_estimates(
    figure: Figure, policy: str, ink: Ink, x: Floats, estimates: Sequence[Estimate], unit: str
) -> None:
    mean, low, high = interval_band(estimates, unit, 100.0 if unit == "frac" else 1.0)
    figure.add_scatter(
        x=float32(np.concatenate([x, x[::-1]])),
        y=float32(np.concatenate([low, high[::-1]])),
        fill="toself",
        fillcolor=faint(ink.colour, BAND_OPACITY_FRAC),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=policy,
        showlegend=False,
    )
    add_line(figure, policy, ink, x, mean, "%{y:.4~g} at load %{x:.4~g} %", mode="lines+markers")


def _add_bound_point(figure: Figure, load: float, bound: float, side: str) -> None:
    figure.add_scatter(
        x=[load],
        y=[bound],
        mode="markers+text",
        name="lower bound",
        text=["lower bound"],
        textposition=side,
        marker={"symbol": "line-ew-open", "size": 26, "color": NEUTRAL, "line": {"width": 3}},
        hovertemplate="lower bound: %{y:.4~g} s<extra></extra>",
    )


def trade_off(comparison: Comparison, x_metric: str, y_metric: str) -> Figure:
    """Two metrics of every policy, on log axes: down and to the left is better in both.

    Policies with a zero or undefined value in either are left out.
    """
    first, second = comparison.kind.metrics[x_metric], comparison.kind.metrics[y_metric]
    figure = new_figure(x_title=axis_title(first, first.unit), y_title=axis_title(second, second.unit))
    own = inks([result.policy for result in comparison.results])
    placed = [r for r in comparison.results if min(r.metrics[x_metric].mean, r.metrics[y_metric].mean) > 0.0]
    for result in placed:
        x, y = (np.array([result.metrics[name].mean]) for name in (x_metric, y_metric))
        hover = "%{x:.3~g} and %{y:.4~g}"
        add_line(figure, result.policy, own[result.policy], x, y, hover, mode="markers")
    figure.for_each_trace(
        lambda trace: trace.update(
            mode="markers+text", text=[trace.name], textposition="top center", textfont={"size": 9}
        )
    )
    figure.update_traces(marker={"size": 11})
    values = [np.array([r.metrics[name].mean for r in placed]) for name in (x_metric, y_metric)]
    for axis, means in zip((figure.update_xaxes, figure.update_yaxes), values, strict=True):
        use_log_axis(axis, means)
    return figure


def _two_lines(policy: str) -> str:
    return policy.replace("+", "<br>+", 1)


def _half_widths(estimates: Sequence[Estimate], factor: float) -> npt.NDArray[np.float32]:
    return scaled([e.ci95 or 0.0 for e in estimates], factor)
