"""Rows (name, value, unit) of a run's metrics and of a trace's summary by group, for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from trimtab.metrics import METRICS, Estimate, Metric
from trimtab.report.metric_groups import metric_groups
from trimtab.report.number_formats import style_of, title_of

if TYPE_CHECKING:
    from trimtab.traces import TraceSummary
    from trimtab.traces.summary import SizeSummary

Row: TypeAlias = tuple[str, str, str]


def run_groups(metrics: Mapping[str, float]) -> dict[str, list[Row]]:
    """Metrics of one run, without undefined ones."""
    groups = {
        group: [
            metric_row(m, metrics[m.name]) for m in members if math.isfinite(metrics.get(m.name, math.nan))
        ]
        for group, members in metric_groups(METRICS).items()
    }
    return {group: rows for group, rows in groups.items() if rows}


def metric_row(metric: Metric, value: float) -> Row:
    """One metric: its name in words, its value and its unit."""
    style = style_of([Estimate(value, None)], metric.unit)
    return title_of(metric), style.number(value), style.unit


def trace_groups(summary: TraceSummary) -> dict[str, list[Row]]:
    """Arrivals, sizes, most frequent values, and missing columns."""
    groups = {"Arrivals": _arrival_rows(summary)}
    if summary.size is not None:
        groups["Sizes"] = _size_rows(summary.size)
    for column, tokens in summary.tokens.items():
        groups[column.replace("_", " ").capitalize()] = _size_rows(tokens)
    for column, shares in summary.shares.items():
        groups[f"Most frequent: {column}"] = [
            (share.value or "(none)", plain(100.0 * share.share_frac), "%") for share in shares
        ]
    if summary.missing_columns:
        groups["Not recorded"] = [("columns", "", ", ".join(summary.missing_columns))]
    return groups


def _size_rows(size: SizeSummary) -> list[Row]:
    names = ("mean", "cv", "p50", "p90", "p99", "max")
    return [(name, plain(getattr(size, name)), "") for name in names]


def _arrival_rows(summary: TraceSummary) -> list[Row]:
    rows = [
        ("requests", f"{summary.rows:,}", ""),
        ("span", plain(summary.span_s), "s"),
        ("rate", plain(summary.rate_per_s), "1/s"),
        ("CV of interarrival times", plain(summary.interarrival_cv), "1 if Poisson"),
    ]
    for count in summary.counts:
        window = f"{count.window_s:g} s windows"
        rows.append((f"peak rate, {window}", plain(count.peak_rate_per_s), "1/s"))
        rows.append((f"dispersion, {window}", plain(count.dispersion), "1 if Poisson, more if bursty"))
    return rows


def plain(value: float | None) -> str:
    """The number with four significant digits; a dash if undefined."""
    if value is None:
        return "–"
    style = style_of([Estimate(value, None)], "1")
    return f"{style.number(value)} {style.unit}".strip()
