"""Results in a notebook: the headline table, with its own styles and no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from trimtab.report.comparison_columns import (
    MARKS,
    Column,
    comparison_bound_text,
    distance_column,
    legend,
    metric_column,
    shown_name,
)
from trimtab.report.number_formats import headline_metrics, with_unit
from trimtab.report.paired import Verdict
from trimtab.report.text_tables import run_groups

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.serving.run import Run

_STYLES = {
    Verdict.BEST: ' style="font-weight:bold;color:#0a8f4f"',
    Verdict.SAME: ' style="color:#0a8f4f"',
}


def comparison_html(comparison: Comparison) -> str:
    """Headline metrics of all policies, best first, above the bound."""
    results = comparison.ranked()
    shown = headline_metrics(comparison.kind.metrics, results)
    columns = [metric_column(results, metric) for metric in shown]
    distance = distance_column(results)
    if distance is not None:
        columns.insert(1, distance)
    heads = "".join(f"<th>{escape(with_unit(column.title, column.unit))}</th>" for column in columns)
    rows = "".join(_row(shown_name(result), i, columns) for i, result in enumerate(results))
    return (
        f"<table><thead><tr><th>policy</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{escape(legend(comparison))}. {escape(comparison_bound_text(comparison))}</p>"
    )


def run_html(run: Run) -> str:
    """All metrics of one run by group."""
    rows = "".join(
        f'<tr><th colspan="3" style="text-align:left">{escape(group)}</th></tr>'
        + "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
        for group, rows in run_groups(run.metrics).items()
    )
    title = f"{run.policy} on {run.scenario.name}, seed {run.seed}"
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def _row(policy: str, i: int, columns: Sequence[Column]) -> str:
    cells = "".join(_cell(column, i) for column in columns)
    return f'<tr><th style="text-align:left">{escape(policy)}</th>{cells}</tr>'


def _cell(column: Column, i: int) -> str:
    cell = column.cells[i]
    return f"<td{_STYLES.get(cell.verdict, '')}>{escape(cell.text)}{MARKS[cell.verdict].strip()}</td>"
