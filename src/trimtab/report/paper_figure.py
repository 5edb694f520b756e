"""Figures for papers (matplotlib): bars with intervals, lines over load, one metric against another."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from trimtab.errors import MissingExtra, UsageError
from trimtab.report.comparison_columns import named_metrics
from trimtab.report.figure_parts import inks, interval_band
from trimtab.report.number_formats import style_of, title_of, with_unit
from trimtab.report.whole_files import write_bytes
from trimtab.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from trimtab.experiments.compare import Comparison
    from trimtab.metrics import Metric

LOAD: Final = "load"
SUFFIXES: Final = (".svg", ".pdf", ".png")
_WIDTH_IN: Final = 4.8  # a page of text in one column
_ROW_IN: Final = 0.22
_HEIGHT_IN: Final = 3.2
_DECADES_OF_TENS: Final = 2.5  # a log axis longer than this has labels at powers of ten only
_STYLE: Final = {
    "font.size": 9.0,
    "axes.edgecolor": "#777777",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: many journals refuse Type 3
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "trimtab",  # the same figure is the same file
    "savefig.dpi": 300.0,
}
_STROKES: Final = {  # line and marker, so that print without colour tells them apart
    "solid": ("-", "o"),
    "dash": ("--", "s"),
    "dot": (":", "^"),
    "dashdot": ("-.", "v"),
    "longdash": ((0, (8, 3)), "D"),
    "longdashdot": ((0, (8, 3, 1, 3)), "P"),
}


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure that shows itself in a notebook and saves as SVG, PDF or PNG.

    `figure` is matplotlib's, to change what a paper wants otherwise: `shown.figure.axes[0].set_xlim(0, 40)`.
    """

    figure: Figure
    title: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure; the kind follows from the suffix. Raises UsageError."""
        path = Path(path)
        if path.suffix not in SUFFIXES:
            expected = " or ".join(SUFFIXES)
            raise UsageError("unknown kind of file", file=str(path), value=path.suffix, expected=expected)
        return write_bytes(path, self._content(path.suffix.removeprefix(".")))

    def _content(self, kind: str) -> bytes:
        content = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        with _style():
            self.figure.savefig(content, format=kind, metadata=undated)
        return content.getvalue()

    def _repr_svg_(self) -> str:
        """As notebooks show it."""
        return self._content("svg").decode()

    def __repr__(self) -> str:
        """Describe the figure, and how to keep it."""
        return f"<Figure: {self.title}; .save('figure.pdf') writes it>"


def plot(comparison: Comparison, metric: str | None = None, over: str | None = None) -> PaperFigure:
    """A figure of one metric: of each policy, over load, or against another metric.

    Args:
        comparison: the results.
        metric: what is drawn; default: the objective.
        over: None for bars; "load" for lines over the loads of the sweep; another metric for points.

    Raises UsageError for an unknown metric, or a comparison without a sweep; MissingExtra without matplotlib.
    """
    (chosen,) = named_metrics([metric or comparison.kind.objective], comparison.kind.metrics)
    with _style():
        if over is None:
            return _bars(comparison, chosen)
        if over == LOAD:
            return _lines(comparison, chosen)
        (other,) = named_metrics([over], comparison.kind.metrics)
        return _points(comparison, chosen, other)


def _style() -> AbstractContextManager[None]:
    try:
        from matplotlib import rc_context
    except ImportError as missing:
        raise MissingExtra("figures need matplotlib", expected="pip install 'trimtab[figures]'") from missing
    return rc_context(_STYLE)


def _axes(height_in: float) -> tuple[Figure, Axes]:
    """A figure of its own: pyplot would keep it until it is closed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots()


def _bars(comparison: Comparison, metric: Metric) -> PaperFigure:
    ranked = comparison.ranked(metric.name)
    estimates = [result.metrics[metric.name] for result in ranked]
    style = style_of(estimates, metric.unit)
    figure, axes = _axes(_ROW_IN * len(ranked) + 0.6)
    own = inks([result.policy for result in comparison.results])
    axes.barh(
        np.arange(len(ranked)),
        [style.factor * e.mean for e in estimates],
        height=0.6,
        color=[own[result.policy].colour for result in ranked],
        alpha=0.6,
        xerr=[style.factor * e.ci95 if e.ci95 else math.nan for e in estimates],  # nan: no whisker
        error_kw={"ecolor": "#555555", "elinewidth": 1.0, "capsize": 2.5},
        tick_label=[result.policy for result in ranked],
    )
    axes.invert_yaxis()
    if all(e.mean >= 0.0 for e in estimates if math.isfinite(e.mean)):
        axes.set_xlim(left=0.0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(with_unit(title_of(metric), style.unit))
    return PaperFigure(
        figure,
        f"{title_of(metric)} of {counted(len(ranked), 'policy', 'policies')} on {comparison.scenario.name}",
    )


def _lines(comparison: Comparison, metric: Metric) -> PaperFigure:
    if not comparison.sweep:
        raise UsageError(
            "has no sweep", field="over", value=LOAD, expected="tt.compare(…, sweep=(0.5, 0.7, 0.9))"
        )
    style = style_of([point.metrics[metric.name] for point in comparison.sweep], metric.unit)
    own = inks([result.policy for result in comparison.results])
    figure, axes = _axes_above_legend(len(own))
    for policy, ink in own.items():
        points = sorted((p for p in comparison.sweep if p.policy == policy), key=lambda point: point.load)
        load = [100.0 * point.load for point in points]
        band = interval_band([point.metrics[metric.name] for point in points], metric.unit, style.factor)
        axes.fill_between(load, band.low, band.high, color=ink.colour, alpha=0.15, linewidth=0)
        line, marker = _STROKES[ink.dash]
        axes.plot(load, band.mean, label=policy, color=ink.colour, linestyle=line, marker=marker, ms=3.0)
    if metric.unit == "s":
        _use_log(axes.yaxis, axes.set_yscale)
    axes.set_xlabel("offered load (%)")
    axes.set_ylabel(with_unit(title_of(metric), style.unit))
    _add_legend(figure)
    return PaperFigure(figure, f"{title_of(metric)} over load on {comparison.scenario.name}")


def _points(comparison: Comparison, metric: Metric, other: Metric) -> PaperFigure:
    own = inks([result.policy for result in comparison.results])
    figure, axes = _axes_above_legend(len(own))
    styles = [style_of([r.metrics[m.name] for r in comparison.results], m.unit) for m in (other, metric)]
    x, y = (
        style.factor * np.array([r.metrics[m.name].mean for r in comparison.results])
        for style, m in zip(styles, (other, metric), strict=True)
    )
    for (policy, ink), *at in zip(own.items(), x, y, strict=True):
        marker = _STROKES[ink.dash][1]
        axes.plot(*at, label=policy, color=ink.colour, marker=marker, ms=5.0, linestyle="none")
    for axis, set_scale, values in ((axes.xaxis, axes.set_xscale, x), (axes.yaxis, axes.set_yscale, y)):
        if np.nanmin(values, initial=np.inf) > 0.0:
            _use_log(axis, set_scale)
    axes.set_xlabel(with_unit(title_of(other), styles[0].unit))
    axes.set_ylabel(with_unit(title_of(metric), styles[1].unit))
    _add_legend(figure)
    return PaperFigure(figure, f"{title_of(metric)} against {title_of(other)} on {comparison.scenario.name}")


def _axes_above_legend(entries: int) -> tuple[Figure, Axes]:
    return _axes(_HEIGHT_IN + 0.16 * math.ceil(entries / 2))


def _add_legend(figure: Figure) -> None:
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.0)


def _use_log(axis: Axis, set_scale: Callable[[str], None]) -> None:
    """A log axis with plain numbers at 1, 2 and 5 times powers of ten, or at these alone if it is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    set_scale("log")
    low, high = axis.get_view_interval()
    is_long = math.log10(high / low) > _DECADES_OF_TENS
    axis.set_major_locator(LogLocator(subs=(1.0,) if is_long else (1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
