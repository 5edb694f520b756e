"""Tables of a comparison for papers and notes: LaTeX and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.report.comparison_columns import (
    Column,
    interval_text,
    legend,
    metric_column,
    named_metrics,
    shown_name,
)
from trimtab.report.metric_groups import headline_metrics
from trimtab.report.paired import Verdict

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison, PolicyResult

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
    chosen = headline_metrics(known) if metrics is None else named_metrics(metrics, known)
    return results, [metric_column(results, metric) for metric in chosen]


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _same(verdict: Verdict) -> str:
    return " =" if verdict is Verdict.SAME else ""


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text).replace("†", r"$\dagger$")


def _number(text: str) -> str:
    return _escaped(text).replace(" ± ", r" $\pm$ ").replace("–", "--")
