"""Character plots for the terminal (plotext), returned as text, with or without colour."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trimtab.report.number_formats import time_unit

Floats = npt.NDArray[np.float64]

MOST_COLUMNS, ROWS = 100, 14
FRAME_COLUMNS: Final = 10  # that axis labels and frame take


def plot_rate(
    start_s: Floats, rate_per_s: Floats, *, width: int | None = None, colour: bool | None = None
) -> str:
    """Arrival rate over time: `start_s` [bins] and `rate_per_s` [bins], as `traces.rate_series` gives them.

    `width` in columns, default the terminal's; `colour` default: on a terminal, unless NO_COLOR is set.
    """
    columns = width or _columns()
    rate = _resampled(rate_per_s, columns - FRAME_COLUMNS)
    unit, unit_s = time_unit(float(start_s[-1] - start_s[0]))
    time = np.linspace(start_s[0], start_s[-1], len(rate)) / unit_s
    figure = _figure(columns, "requests per second", f"time ({unit})")
    figure.draw(figure.bar(time.tolist(), rate.tolist(), width=1.0))
    return _text(figure, colour)


def plot_sizes(size: Floats, *, width: int | None = None, colour: bool | None = None) -> str:
    """Histogram of sizes: requests per bin, in bins of equal ratio; sizes of zero or less are left out."""
    columns = width or _columns()
    positive = size[size > 0.0]
    if not len(positive):
        return "no sizes above zero"
    magnitude = np.log10(positive)
    counts, edges = np.histogram(magnitude, bins=max(8, (columns - FRAME_COLUMNS) // 2))
    middle = (edges[:-1] + edges[1:]) / 2
    figure = _figure(columns, "requests by size (log scale)", "size (work units)")
    figure.draw(figure.bar(middle.tolist(), counts.tolist(), width=1.0))
    at = np.linspace(edges[0], edges[-1], 6)
    figure.ruler("x").ticks(at.tolist(), [f"{10**power:.3g}" for power in at])
    return _text(figure, colour)


def plot_forecast(
    history: Floats,
    mean: Floats,
    low: Floats,
    high: Floats,
    *,
    width: int | None = None,
    colour: bool | None = None,
) -> str:
    """The end of a history [steps] and the forecast after it with an interval (each [horizon])."""
    columns = width or _columns()
    shown = history[-max(len(mean), columns - FRAME_COLUMNS - len(mean)) :]
    figure = _figure(columns, "forecast, and the interval of 90 %", "steps from now")
    ahead = np.arange(1, len(mean) + 1)
    lines = {"history": (np.arange(1 - len(shown), 1), shown)}
    lines |= {name: (ahead, row) for name, row in (("5 %", low), ("95 %", high), ("mean", mean))}
    for name, (steps, values) in lines.items():
        if np.isfinite(values).all():
            signal = figure.signal(steps.tolist(), values.tolist())
            signal.label(name)
            signal.lines()
            figure.draw(signal)
    return _text(figure, colour)


def _figure(columns: int, title: str, x_label: str) -> Any:
    import plotext  # 0.1 s to import, and most commands plot nothing

    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(columns, ROWS)
    figure.title(title)
    return figure.label(x_label, "x")


def _text(figure: Any, colour: bool | None) -> str:
    import plotext

    text = str(figure.build())
    figure.clear()
    return text if (_has_colour() if colour is None else colour) else str(plotext.uncolorize(text))


def _has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _columns() -> int:
    return min(MOST_COLUMNS, shutil.get_terminal_size((MOST_COLUMNS, ROWS)).columns)


def _resampled(values: Floats, at_most: int) -> Floats:
    """Means of adjacent values, at most `at_most` of them."""
    parts = np.array_split(values, min(len(values), max(1, at_most)))
    return np.array([part.mean() for part in parts])
