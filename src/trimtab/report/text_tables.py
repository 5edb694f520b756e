"""Tables of a comparison for papers and notes: LaTeX and Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from trimtab.metrics import METRICS, Estimate, Metric
from trimtab.report.comparison_columns import (
    Column,
    interval_text,
    legend,
    metric_column,
    named_metrics,
    shown_name,
)
from trimtab.report.number_formats import headline_metrics, metric_groups, style_of, title_of
from trimtab.report.paired import Verdict

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison, PolicyResult
    from trimtab.traces import TraceSummary
    from trimtab.traces.summary import SizeSummary

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}


def to_markdown(comparison: Comparison, metrics: Sequence[str] | None = None, sort: str | None = None) -> str:
    """A Markdown table: policies by metrics, best first, with 95 % intervals; the best value is bold.

    `metrics` are those of the headline by default. Raises UsageError for an unknown metric.
    """
    results, columns = _columns(comparison, metrics, sort)
    heads = ["policy", *(_heading(column) for column in columns)]
    lines = [heads, ["---", *["---:"] * len(columns)]]
    for i, result in enumerate(results):
        cells = (column.cells[i] for column in columns)
        marked = [f"**{c.text}**" if c.verdict is Verdict.BEST else c.text + _same(c.verdict) for c in cells]
        lines.append([shown_name(result), *marked])
    escaped = ([text.replace("|", r"\|") for text in line] for line in lines)
    table = "".join(f"| {' | '.join(line)} |\n" for line in escaped)
    return f"{table}\n{interval_text(comparison)}; {legend(comparison).replace('* marks', 'bold marks')}.\n"


def to_latex(comparison: Comparison, metrics: Sequence[str] | None = None, sort: str | None = None) -> str:
    """A LaTeX `tabular` (package booktabs): policies by metrics, best first, with 95 % intervals.

    `metrics` are those of the headline by default. Raises UsageError for an unknown metric.
    """
    results, columns = _columns(comparison, metrics, sort)
    heads = " & ".join(["policy", *(_escaped(_heading(column)) for column in columns)])
    rows = []
    for i, result in enumerate(results):
        cells = [(column.cells[i].text, column.cells[i].verdict) for column in columns]
        texts = (rf"\textbf{{{_number(text)}}}" if v is Verdict.BEST else _number(text) for text, v in cells)
        rows.append(" & ".join([_escaped(shown_name(result)), *texts]) + r" \\")
    body = "\n".join(rows)
    note = _escaped(f"{interval_text(comparison)}; {comparison.n_items:,} {comparison.kind.items} a seed.")
    return (
        f"% {note}\n\\begin{{tabular}}{{l{'r' * len(columns)}}}\n\\toprule\n{heads} \\\\\n\\midrule\n{body}\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def _columns(
    comparison: Comparison, metrics: Sequence[str] | None, sort: str | None
) -> tuple[list[PolicyResult], list[Column]]:
    results = comparison.ranked(sort)
    known = comparison.kind.metrics
    chosen = headline_metrics(known, results) if metrics is None else named_metrics(metrics, known)
    return results, [metric_column(results, metric) for metric in chosen]


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _same(verdict: Verdict) -> str:
    return " =" if verdict is Verdict.SAME else ""


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text).replace("†", r"$\dagger$")


def _number(text: str) -> str:
    return _escaped(text).replace(" ± ", r" $\pm$ ").replace("–", "--")


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
