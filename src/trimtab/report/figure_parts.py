"""Parts of the interactive figures (plotly): an empty figure, lines, axes.

Each figure is complete by itself, for a notebook; the page changes the theme, and shows one legend
and one choice of policy for all. Plotly is imported on first use. Values are float32 or whole percent in
bytes, which keeps the page small.

One colour and dash per policy, the same in every figure.

The colours keep the hues of Okabe & Ito ("Color universal design", 2008), moved until each has a contrast of
at least 3:1 on the light and on the dark page, and any two differ by at least .08 in OKLab with normal sight
and under simulated protanopia, deuteranopia and tritanopia (G. M. Machado et al., IEEE TVCG 15(6), 2009).
A colour stands for the policy that dispatches; a dash tells its orders apart, and a second round of colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trimtab.metrics import Estimate, Metric
from trimtab.report.number_formats import title_of, with_unit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Floats = npt.NDArray[np.float64]

BAR_PX, BARS_BASE_PX = 32, 70  # height of a bar with its room, and of what surrounds the bars
AXIS_MARGIN: Final = 1.6  # factor that a log axis leaves above and below
NEAR: Final = 4.0  # ratio of the most to the least on a log axis, below which its ticks have equal steps


def new_figure(*, height_px: int = 400, x_title: str = "", y_title: str = "") -> Figure:
    """A figure without data."""
    from plotly.graph_objects import Figure  # many modules: only where a figure is drawn

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


def add_line(
    figure: Figure, name: str, ink: Ink, x: Floats, y: Floats, hover: str, mode: str = "lines"
) -> None:
    """Draw a line, or what `mode` says, in the look of a policy."""
    figure.add_scatter(
        x=float32(x),
        y=float32(y),
        name=name,
        legendgroup=name,
        mode=mode,
        line={"color": ink.colour, "dash": ink.dash, "width": 2},
        hovertemplate=f"<b>{name}</b><br>{hover}<extra></extra>",
    )


def axis_title(metric: Metric, unit: str) -> str:
    """A metric with its unit."""
    return with_unit(title_of(metric), unit)


def scaled(values: Sequence[float], factor: float) -> npt.NDArray[np.float32]:
    """Values times a factor, for a page."""
    return float32(factor * np.array(values))


def float32(values: Floats) -> npt.NDArray[np.float32]:
    """Values for a page."""
    return values.astype(np.float32)


def use_log_axis(update_axis: Callable[..., Any], values: Floats) -> None:
    """Log axis around the values, because an interval that reaches zero has no end there."""
    shown = values[values > 0.0]
    if len(shown):
        ends = [math.log10(shown.min() / AXIS_MARGIN), math.log10(shown.max() * AXIS_MARGIN)]
        update_axis(type="log", range=ends, **log_ticks(shown))


def log_ticks(values: Floats) -> dict[str, Any]:
    """Ticks at 1, 2 and 5 times the powers of ten around the values; where they are near, at equal steps."""
    if not len(values):
        return {}
    least, most = float(values.min()), float(values.max())
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in (1, 2, 5)]
    if most < NEAR * least:
        power = 10.0 ** math.floor(math.log10(most / 4))
        step = max(k * power for k in (1, 2, 5) if k * power <= most / 4 or k == 1)
        ticks = [step * k for k in range(1, math.ceil(AXIS_MARGIN * most / step) + 1)]
    return {
        "tickvals": ticks,
        "ticktext": [f"{tick:,.6g}" if tick < 1e6 else f"{tick:.0e}" for tick in ticks],
    }


_LEAST_FRAC: Final = 0.01  # of the mean, where an interval is cut that reaches zero: a log axis has no zero


class Band(NamedTuple):
    """Means and the ends of their intervals, each [estimates]."""

    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def interval_band(estimates: Sequence[Estimate], unit: str, factor: float) -> Band:
    """The band of estimates times a factor, cut above zero, and at 100 % where the unit is a fraction."""
    mean = factor * np.array([e.mean for e in estimates])
    half = factor * np.array([e.ci95 or 0.0 for e in estimates])
    most = factor if unit == "frac" else np.inf
    return Band(mean, np.maximum(mean - half, _LEAST_FRAC * mean), np.minimum(mean + half, most))


COLOURS: Final = (
    "#1861D5",
    "#B14D23",
    "#009E61",
    "#E763AC",
    "#1798FF",
    "#BA7817",
    "#886062",
    "#6A5D9C",
)
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
NEUTRAL: Final = "#7A7F87"  # of what is no policy, such as the lower bound
PAGE_LIGHT, PAGE_DARK = "#ffffff", "#171a21"  # what figures lie on


@dataclass(frozen=True, slots=True)
class Ink:
    """Colour and dash of a policy."""

    colour: str
    dash: str


def inks(policies: Sequence[str]) -> dict[str, Ink]:
    """Ink of each policy, in the given order."""
    bases = list(dict.fromkeys(_base(policy) for policy in policies))
    used: dict[str, int] = {}
    result = {}
    for policy in policies:
        colour = COLOURS[bases.index(_base(policy)) % len(COLOURS)]
        result[policy] = Ink(colour, DASHES[used.get(colour, 0) % len(DASHES)])
        used[colour] = used.get(colour, 0) + 1
    return result


def _base(policy: str) -> str:
    return policy.partition("+")[0]


def faint(colour: str, opacity_frac: float) -> str:
    """The `#rrggbb` colour with transparency."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity_frac})"
