"""Interactive figures of traces, fits and fleets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from trimtab.report.figure_parts import (
    BAR_PX,
    BARS_BASE_PX,
    NEUTRAL,
    Floats,
    add_line,
    float32,
    inks,
    log_ticks,
    new_figure,
    scaled,
    use_log_axis,
)
from trimtab.report.number_formats import time_unit

if TYPE_CHECKING:
    import polars as pl
    from plotly.graph_objects import Figure

    from trimtab.experiments.serving.sizing import Fleet
    from trimtab.experiments.tuning import Trial, Tuning


def arrival_rate(start_s: Floats, rate_per_s: Floats) -> Figure:
    """Arrival rate over time: `start_s` [bins], `rate_per_s` [bins], as `traces.rate_series` gives them."""
    unit, unit_s = time_unit(float(start_s[-1] - start_s[0]))
    figure = new_figure(x_title=f"time ({unit})", y_title="requests per second")
    hover = f"%{{y:.4~g}} per second from %{{x:.4~g}} {unit}"
    add_line(figure, "rate", inks(["rate"])["rate"], start_s / unit_s, rate_per_s, hover)
    figure.update_traces(line={"shape": "hv", "width": 1.5}, fill="tozeroy", showlegend=False)
    return figure.update_yaxes(rangemode="tozero")


def size_histogram(size: Floats, bins: int = 60) -> Figure:
    """Histogram of sizes in bins of equal ratio (log axis); sizes of zero or less are left out."""
    figure = new_figure(x_title="size (work units)", y_title="requests")
    positive = size[size > 0.0]
    if len(positive):
        edges = np.geomspace(positive.min(), max(positive.max(), positive.min() * 1.01), bins + 1)
        counts, _ = np.histogram(positive, edges)
        middle = np.sqrt(edges[:-1] * edges[1:])
        figure.add_bar(
            x=middle, y=counts, width=np.diff(edges), marker={"color": inks(["size"])["size"].colour}
        )
        figure.update_traces(hovertemplate="%{y} requests near %{x:.4~g}<extra></extra>")
        figure.update_xaxes(type="log", **log_ticks(positive))
    return figure.update_layout(showlegend=False, bargap=0)


MOST_LINKS: Final = 30  # of a network that are drawn


def link_bars(links: pl.DataFrame) -> Figure:
    """Utilisation of the fullest links of a network, the fullest on top."""
    shown = links.sort("utilisation_frac", descending=True).head(MOST_LINKS).reverse()
    figure = new_figure(height_px=BARS_BASE_PX + BAR_PX // 2 * len(shown), x_title="utilisation (%)")
    figure.add_bar(
        x=float32(100.0 * shown["utilisation_frac"].to_numpy()),
        y=shown["link"].to_list(),
        orientation="h",
        marker={"color": NEUTRAL},
        customdata=np.stack([shown["carried_gib"].to_numpy(), shown["gib_per_s"].to_numpy()], axis=1),
        hovertemplate="%{y}<br>%{x:.3~g} %, %{customdata[0]:.4~g} GiB of %{customdata[1]:.4~g} GiB/s"
        "<extra></extra>",
    )
    return figure.update_layout(showlegend=False, bargap=0.35, yaxis={"automargin": True, "showgrid": False})


def residuals(x: Floats, frac: Floats, x_title: str) -> Figure:
    """Relative errors of a fit over a variable, as points."""
    figure = new_figure(x_title=x_title, y_title="recorded ÷ fitted − 1 (%)")
    figure.add_scatter(
        x=float32(x), y=float32(100.0 * frac), mode="markers", marker={"size": 4, "opacity": 0.4}
    )
    figure.add_hline(y=0.0, line={"color": NEUTRAL, "width": 1})
    return figure.update_layout(showlegend=False)


def cost_curve(fleets: Sequence[Fleet], metric: str, objective: float) -> Figure:
    """Price of fleets against one metric; those that miss an objective are pale."""
    figure = new_figure(x_title="price (USD per hour)", y_title=metric.replace("_", " "))
    for is_met, name in ((False, "misses an objective"), (True, "meets all")):
        shown = [fleet for fleet in fleets if fleet.is_met is is_met]
        figure.add_scatter(
            x=scaled([fleet.usd_per_hour for fleet in shown], 1.0),
            y=scaled([fleet.metrics[metric] for fleet in shown], 1.0),
            text=[fleet.in_words() for fleet in shown],
            mode="markers",
            name=name,
            marker={"size": 8 if is_met else 5, "opacity": 1.0 if is_met else 0.4},
            hovertemplate="%{text}<br>%{x:.4g} USD/h, %{y:.4g}<extra></extra>",
        )
    figure.add_hline(y=objective, line={"color": NEUTRAL, "width": 1, "dash": "dash"})
    use_log_axis(figure.update_yaxes, np.array([*(fleet.metrics[metric] for fleet in fleets), objective]))
    return figure


def mean_against_tail(tuning: Tuning) -> Figure:
    """Changes of mean and p99 completion: of all candidates where they were searched, then where judged."""
    figure = new_figure(x_title="mean completion (change, %)", y_title="p99 completion (change, %)")
    front, best = tuning.front(), tuning.best
    groups: dict[str, list[tuple[str, float, float]]] = {
        "searched": [(policy, mean, tail) for policy, (mean, tail) in tuning.trained.items()],
        "chosen from": [_point(trial) for trial in tuning.chosen_from if trial is not best],
        "best": [_point(best)],
        "the same, tested": [_point(tuning.test)],
    }
    for (name, points), size, opacity in zip(
        groups.items(), (5, 8, 12, 12), (0.4, 0.8, 1.0, 1.0), strict=True
    ):
        figure.add_scatter(
            x=scaled([mean for _, mean, _ in points], 0.01),
            y=scaled([tail for _, _, tail in points], 0.01),
            text=[policy for policy, _, _ in points],
            mode="markers",
            name=name,
            marker={"size": size, "opacity": opacity},
            hovertemplate="%{text}<br>mean %{x:+.2f} %, p99 %{y:+.2f} %<extra></extra>",
        )
    line = {"x": [_point(t)[1] for t in front], "y": [_point(t)[2] for t in front]}
    figure.add_scatter(
        x=scaled(line["x"], 0.01),
        y=scaled(line["y"], 0.01),
        mode="lines",
        name="front",
        line={"color": NEUTRAL, "width": 1},
        hoverinfo="skip",
    )
    figure.add_hline(y=0.0, line={"color": NEUTRAL, "width": 1, "dash": "dash"})
    figure.add_vline(x=0.0, line={"color": NEUTRAL, "width": 1, "dash": "dash"})
    return figure


def _point(trial: Trial) -> tuple[str, float, float]:
    return trial.policy, trial.changes["completion_mean_s"].frac, trial.changes["completion_p99_s"].frac
