"""Interactive figures (plotly), each a function of results; every policy keeps its colour.

Each figure is complete by itself, for a notebook; the page changes the theme, and shows one legend
and one choice of policy for all. Plotly is imported on first use. Values are float32 or whole percent in
bytes, which keeps the page small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from trimtab.metrics import Estimate, Metric
from trimtab.report.number_formats import style_of, time_unit, title_of
from trimtab.report.palette import NEUTRAL, Ink, faint, inks

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.curves import Curves

Floats = npt.NDArray[np.float64]

BAR_PX, BARS_BASE_PX = 32, 70  # height of a bar with its room, and of what surrounds the bars
BAND_OPACITY_FRAC: Final = 0.1
LEAST_BAND_FRAC: Final = 0.01  # of the mean, where an interval is cut that reaches zero
AXIS_MARGIN: Final = 1.6  # factor that a log axis leaves above and below
GANTT_ROWS: Final = 2000  # stages that a Gantt chart shows
MOST_GROUPS: Final = 12  # of nodes that get a name on the axis of the heat map


def metric_bars(comparison: Comparison, metric: str) -> Figure:
    """One metric of every policy with 95 % intervals, best on top, and its lower bound if there is one."""
    ranked = comparison.ranked(metric)[::-1]
    own = inks([result.policy for result in comparison.results])
    estimates = [result.metrics[metric] for result in ranked]
    described = comparison.kind.metrics[metric]
    style = style_of(estimates, described.unit)
    colours = [own[result.policy].colour for result in ranked]
    figure = _figure(
        height_px=BARS_BASE_PX + BAR_PX * len(ranked), x_title=_axis_title(described, style.unit)
    )
    figure.add_bar(
        x=_scaled([e.mean for e in estimates], style.factor),
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


def completion_cdf(curves: Mapping[str, Curves]) -> Figure:
    """Share of finished items that were complete within each time, one line per policy, log time."""
    figure = _figure(x_title="completion time (s)", y_title="finished within")
    times_s = [curve.completion_s[curve.completion_s > 0.0] for curve in curves.values()]
    for (policy, curve), ink in zip(curves.items(), inks(list(curves)).values(), strict=True):
        completion_s = np.where(curve.completion_s > 0.0, curve.completion_s, np.nan)
        _add_line(figure, policy, ink, completion_s, curve.quantile_frac, "%{y:.1%} within %{x:.4~g} s")
    figure.update_xaxes(type="log", **_log_ticks(np.concatenate([*times_s, np.ones(0)])))
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.01])


def queue_length(curves: Mapping[str, Curves], items: str = "requests") -> Figure:
    """Items waiting over time, mean of each bin, one line per policy."""
    unit, unit_s = _time_unit(curves)
    figure = _figure(x_title=f"time ({unit})", y_title=f"{items} waiting")
    for (policy, curve), ink in zip(curves.items(), inks(list(curves)).values(), strict=True):
        middle_s = (curve.edges_s[:-1] + curve.edges_s[1:]) / 2
        hover = f"%{{y:.4~g}} waiting at %{{x:.4~g}} {unit}"
        _add_line(figure, policy, ink, middle_s / unit_s, curve.queue_length, hover)
    return figure.update_yaxes(rangemode="tozero")


def utilisation_heatmap(curves: Mapping[str, Curves]) -> Figure:
    """Share of each node's slots in use over time; a menu chooses the policy. Rows are nodes by type."""
    unit, unit_s = _time_unit(curves)
    figure = _figure(height_px=440, x_title=f"time ({unit})")
    for i, (policy, curve) in enumerate(curves.items()):
        figure.add_heatmap(
            name=policy,
            visible=i == 0,
            z=np.rint(100.0 * curve.utilisation_frac).astype(np.uint8),
            x=_float32(curve.edges_s / unit_s),
            zmin=0,
            zmax=100,
            colorscale="Cividis",
            colorbar={"title": {"text": "in use"}, "ticksuffix": " %", "thickness": 12, "outlinewidth": 0},
            hovertemplate=f"row %{{y}} at %{{x:.4~g}} {unit}: %{{z}} %<extra></extra>",
        )
    if len(curves) > 1:
        figure.update_layout(updatemenus=[_policy_menu(list(curves))])
    _name_nodes(figure, next(iter(curves.values())).row_names)
    return figure.update_layout(showlegend=False).update_xaxes(showgrid=False).update_yaxes(showgrid=False)


def stage_gantt(stages: pl.DataFrame, most: int = GANTT_ROWS) -> Figure:
    """Stages on their nodes over time, by stage: the first ones that were served, at most so many."""
    import polars as pl

    shown = stages.filter(pl.col("start_s").is_not_null() & pl.col("finish_s").is_not_null())
    shown = shown.sort("start_s").head(most)
    figure = _figure(height_px=440, x_title="time (s)")
    names = shown["stage"].unique(maintain_order=True).to_list()
    for name, ink in inks(names).items():
        rows = shown.filter(pl.col("stage") == name)
        figure.add_bar(
            name=name,
            orientation="h",
            base=_float32(rows["start_s"].to_numpy()),
            x=_float32((rows["finish_s"] - rows["start_s"]).to_numpy()),
            y=rows["node"].to_list(),
            marker={"color": ink.colour, "line": {"width": 0}},
            customdata=rows["request_id"].to_list(),
            hovertemplate=f"{name}, run %{{customdata}}: %{{x:.4~g}} s from %{{base:.4~g}} s<extra></extra>",
        )
    return figure.update_layout(barmode="overlay").update_yaxes(autorange="reversed", type="category")


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


def _name_nodes(figure: Figure, row_names: Sequence[str]) -> None:
    """One label and one line for each group of rows whose names differ only in their number."""
    stems = [name.rstrip("0123456789").rstrip("-_ .") for name in row_names]
    sizes = [(stem, len(list(rows))) for stem, rows in groupby(stems)]
    figure.update_yaxes(autorange="reversed")
    if len(sizes) > MOST_GROUPS:
        figure.update_yaxes(title={"text": "nodes"}, showticklabels=False)
        return
    ends = np.cumsum([size for _, size in sizes])
    middles = [float(end - (size + 1) / 2) for end, (_, size) in zip(ends, sizes, strict=True)]
    figure.update_yaxes(tickvals=middles, ticktext=[stem for stem, _ in sizes])
    for end in ends[:-1]:
        figure.add_hline(y=float(end) - 0.5, line={"color": NEUTRAL, "width": 1.5})


def load_lines(comparison: Comparison, metric: str) -> Figure:
    """One metric against the offered load, a band for the 95 % interval; times on a log axis.

    The lower bound is known at the comparison's own load only: one mark.
    """
    described = comparison.kind.metrics[metric]
    unit = described.unit
    figure = _figure(
        x_title="offered load (%)", y_title=_axis_title(described, "%" if unit == "frac" else unit)
    )
    for policy, ink in inks([result.policy for result in comparison.results]).items():
        points = sorted((p for p in comparison.sweep if p.policy == policy), key=lambda point: point.load)
        load = np.array([100.0 * point.load for point in points])
        _add_estimates(figure, policy, ink, load, [point.metrics[metric] for point in points], unit)
    bound = _bound_on(comparison, metric)
    if bound is not None:
        _add_bound_point(figure, 100.0 * comparison.offered_load, bound)
    if unit == "s":
        means = [point.metrics[metric].mean for point in comparison.sweep]
        _use_log_axis(figure.update_yaxes, np.array([*means, *([] if bound is None else [bound])]))
    return figure


def trade_off(comparison: Comparison, x_metric: str, y_metric: str) -> Figure:
    """Two metrics of every policy, on log axes: down and to the left is better in both.

    Policies with a zero or undefined value in either are left out.
    """
    first, second = comparison.kind.metrics[x_metric], comparison.kind.metrics[y_metric]
    figure = _figure(x_title=_axis_title(first, first.unit), y_title=_axis_title(second, second.unit))
    own = inks([result.policy for result in comparison.results])
    placed = [r for r in comparison.results if min(r.metrics[x_metric].mean, r.metrics[y_metric].mean) > 0.0]
    for result in placed:
        x, y = (np.array([result.metrics[name].mean]) for name in (x_metric, y_metric))
        hover = "%{x:.3~g} and %{y:.4~g}"
        _add_line(figure, result.policy, own[result.policy], x, y, hover, mode="markers")
    figure.update_traces(marker={"size": 11})
    values = [np.array([r.metrics[name].mean for r in placed]) for name in (x_metric, y_metric)]
    for axis, means in zip((figure.update_xaxes, figure.update_yaxes), values, strict=True):
        _use_log_axis(axis, means)
    return figure


def _use_log_axis(update_axis: Callable[..., Any], values: Floats) -> None:
    """Log axis around the values, because an interval that reaches zero has no end there."""
    shown = values[values > 0.0]
    if len(shown):
        ends = [math.log10(shown.min() / AXIS_MARGIN), math.log10(shown.max() * AXIS_MARGIN)]
        update_axis(type="log", range=ends, **_log_ticks(shown))


def _add_estimates(
    figure: Figure, policy: str, ink: Ink, x: Floats, estimates: Sequence[Estimate], unit: str
) -> None:
    factor, most = (100.0, 100.0) if unit == "frac" else (1.0, np.inf)
    mean = factor * np.array([e.mean for e in estimates])
    half = factor * np.array([e.ci95 or 0.0 for e in estimates])
    low, high = np.maximum(mean - half, LEAST_BAND_FRAC * mean), np.minimum(mean + half, most)
    figure.add_scatter(
        x=_float32(np.concatenate([x, x[::-1]])),
        y=_float32(np.concatenate([low, high[::-1]])),
        fill="toself",
        fillcolor=faint(ink.colour, BAND_OPACITY_FRAC),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=policy,
        showlegend=False,
    )
    _add_line(figure, policy, ink, x, mean, "%{y:.4~g} at load %{x:.4~g} %", mode="lines+markers")


def _add_bound_point(figure: Figure, load: float, bound: float) -> None:
    figure.add_scatter(
        x=[load],
        y=[bound],
        mode="markers+text",
        name="lower bound",
        text=["lower bound"],
        textposition="bottom center",
        marker={"symbol": "line-ew-open", "size": 26, "color": NEUTRAL, "line": {"width": 3}},
        hovertemplate="lower bound: %{y:.4~g} s<extra></extra>",
    )


def arrival_rate(start_s: Floats, rate_per_s: Floats) -> Figure:
    """Arrival rate over time: `start_s` [bins], `rate_per_s` [bins], as `traces.rate_series` gives them."""
    unit, unit_s = time_unit(float(start_s[-1] - start_s[0]))
    figure = _figure(x_title=f"time ({unit})", y_title="requests per second")
    hover = f"%{{y:.4~g}} per second from %{{x:.4~g}} {unit}"
    _add_line(figure, "rate", inks(["rate"])["rate"], start_s / unit_s, rate_per_s, hover)
    figure.update_traces(line={"shape": "hv", "width": 1.5}, fill="tozeroy", showlegend=False)
    return figure.update_yaxes(rangemode="tozero")


def size_histogram(size: Floats, bins: int = 60) -> Figure:
    """Histogram of sizes in bins of equal ratio (log axis); sizes of zero or less are left out."""
    figure = _figure(x_title="size (work units)", y_title="requests")
    positive = size[size > 0.0]
    if len(positive):
        edges = np.geomspace(positive.min(), max(positive.max(), positive.min() * 1.01), bins + 1)
        counts, _ = np.histogram(positive, edges)
        middle = np.sqrt(edges[:-1] * edges[1:])
        figure.add_bar(
            x=middle, y=counts, width=np.diff(edges), marker={"color": inks(["size"])["size"].colour}
        )
        figure.update_traces(hovertemplate="%{y} requests near %{x:.4~g}<extra></extra>")
        figure.update_xaxes(type="log", **_log_ticks(positive))
    return figure.update_layout(showlegend=False, bargap=0)


def _add_line(
    figure: Figure, name: str, ink: Ink, x: Floats, y: Floats, hover: str, mode: str = "lines"
) -> None:
    figure.add_scatter(
        x=_float32(x),
        y=_float32(y),
        name=name,
        legendgroup=name,
        mode=mode,
        line={"color": ink.colour, "dash": ink.dash, "width": 2},
        hovertemplate=f"<b>{name}</b><br>{hover}<extra></extra>",
    )


def _figure(*, height_px: int = 400, x_title: str = "", y_title: str = "") -> Figure:
    from plotly.graph_objects import Figure  # 4 MB of modules: only where a figure is drawn

    axis = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
    return Figure(
        layout={
            "template": "none",
            "height": height_px,
            "margin": {"l": 8, "r": 12, "t": 24, "b": 8},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "closest",
            "xaxis": {**axis, "title": {"text": x_title, "standoff": 8}},
            "yaxis": {**axis, "title": {"text": y_title, "standoff": 8}},
        }
    )


def _axis_title(metric: Metric, unit: str) -> str:
    title = title_of(metric)
    return f"{title} ({unit})" if unit else title


def _two_lines(policy: str) -> str:
    return policy.replace("+", "<br>+", 1)


def _half_widths(estimates: Sequence[Estimate], factor: float) -> npt.NDArray[np.float32]:
    return _scaled([e.ci95 or 0.0 for e in estimates], factor)


def _scaled(values: Sequence[float], factor: float) -> npt.NDArray[np.float32]:
    return _float32(factor * np.array(values))


def _float32(values: Floats) -> npt.NDArray[np.float32]:
    return values.astype(np.float32)


def _time_unit(curves: Mapping[str, Curves]) -> tuple[str, float]:
    return time_unit(max(float(curve.edges_s[-1] - curve.edges_s[0]) for curve in curves.values()))


def _log_ticks(values: Floats) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 times the powers of ten around the values."""
    if not len(values):
        return {}
    low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in (1, 2, 5)]
    return {
        "tickvals": ticks,
        "ticktext": [f"{tick:,.6g}" if tick < 1e6 else f"{tick:.0e}" for tick in ticks],
    }
