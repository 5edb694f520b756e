"""Tables for the terminal (rich). They fit into 80 columns without cutting text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table
from rich.text import Text

from trimtab.metrics import METRICS, Metric
from trimtab.report.case_tables import TextTable
from trimtab.report.comparison_columns import (
    Column,
    assumptions_text,
    comparison_bound_text,
    distance_column,
    interval_text,
    legend,
    metric_column,
    named_metrics,
    shown_name,
)
from trimtab.report.number_formats import headline_metrics, load_text
from trimtab.report.paired import Verdict
from trimtab.report.text_tables import metric_row, run_groups, trace_groups
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.compare.kind import PolicyTiming
    from trimtab.metrics.queue_metrics import QueueSummary
    from trimtab.policies import Description
    from trimtab.traces import TraceSummary

GAP: Final = 3  # columns that box and padding put between two cells
VERY_NARROW: Final = 60  # columns below which a policy and its idea share a column
NARROW: Final = 130  # columns below which long policy names take two lines
STYLES: Final = {
    Verdict.BEST: "bold green",
    Verdict.SAME: "green",
    Verdict.BEHIND: "",
    Verdict.NONE: "",
}


def comparison_table(
    comparison: Comparison,
    sort: str | None = None,
    metrics: Sequence[str] | None = None,
    width: int = 120,
) -> Table:
    """Policies by metrics: mean ± 95 % half-width over the seeds, best first by `sort`.

    Without `sort`, by the objective. Without `metrics`, the headline metrics that fit on `width` columns;
    with them, exactly those.
    Raises UsageError for an unknown metric.
    """
    kind, results = comparison.kind, comparison.ranked(sort)
    first = kind.metrics[sort or kind.objective]
    chosen = (
        named_metrics(metrics, kind.metrics)
        if metrics
        else _sorted_first(headline_metrics(kind.metrics, results), first)
    )
    columns = [metric_column(results, metric) for metric in chosen]
    if not metrics:
        columns = _with_distance(columns, distance_column(results), kind.objective)
    names = [_policy_text(shown_name(result), width) for result in results]
    shown = columns if metrics else _fitting(columns, names, width)
    table = _table("policy", caption=_comparison_caption(comparison, len(columns) - len(shown)))
    for column in shown:
        table.add_column(_heading(column), justify="right", no_wrap=True, vertical="top")
    for i, name in enumerate(names):
        table.add_row(name, *(_marked(column, i) for column in shown))
    return table


def queue_table(queues: Sequence[QueueSummary]) -> Table:
    """One row per hierarchical queue; queues below another follow it."""
    table = _table(
        "queue", caption="Shares are of what all nodes have, of the resource that a queue takes most."
    )
    for heading in ("finished", "wait (s)", "p99 (s)", "share", "guaranteed", "short (s)", "taken back"):
        table.add_column(heading, justify="right", no_wrap=True, vertical="top")
    for queue in queues:
        table.add_row(
            queue.queue,
            f"{queue.finished:,}",
            f"{queue.queueing_mean_s:.4g}",
            f"{queue.queueing_p99_s:.4g}",
            f"{100 * queue.share_mean_frac:.3g} %",
            f"{100 * queue.guarantee_frac:.3g} %",
            f"{queue.short_s:.4g}",
            f"{queue.preempted:,}",
        )
    return table


def _with_distance(columns: Sequence[Column], distance: Column | None, objective: str) -> list[Column]:
    """The columns, with the distance to the bound after the objective."""
    names = [column.metric.name for column in columns]
    place = 1 + names.index(objective) if objective in names else 0
    return [*columns[:place], *([] if distance is None else [distance]), *columns[place:]]


def _sorted_first(metrics: Sequence[Metric], first: Metric) -> list[Metric]:
    return [first, *(metric for metric in metrics if metric is not first)]


def _policy_text(name: str, width: int) -> Text:
    return Text(name.replace("+", "\n  +", 1) if width < NARROW else name)


def _heading(column: Column) -> str:
    words = column.title.replace(" ", "\n", 1)
    return f"{words}\n({column.unit})" if column.unit else words


def _marked(column: Column, i: int) -> Text:
    cell = column.cells[i]
    return Text(cell.marked, style=STYLES[cell.verdict])


def _fitting(columns: Sequence[Column], names: Sequence[Text], width: int) -> list[Column]:
    """As many columns as fit, in their order; at least the first."""
    left = width - max(len(line) for name in names for line in name.plain.split("\n"))
    fitting: list[Column] = []
    for column in columns:
        left -= GAP + _column_width(column)
        if left < 0 and fitting:
            break
        fitting.append(column)
    return fitting


def _column_width(column: Column) -> int:
    lines = [*_heading(column).split("\n"), *(cell.marked for cell in column.cells)]
    return max(map(len, lines))


def _load_line(offered_load: float) -> str:
    if not math.isfinite(offered_load):
        return "All arrive at once."
    return f"Offered load: {load_text(offered_load)} of what the cluster can sustain."


def _comparison_caption(comparison: Comparison, hidden: int) -> str:
    lines = [
        _load_line(comparison.offered_load),
        f"{interval_text(comparison)}; {legend(comparison)}.",
        comparison_bound_text(comparison),
        assumptions_text(comparison.bound),
        comparison.kind.limits(comparison.scenario),
        _hidden_text(hidden),
    ]
    return "\n".join(line for line in lines if line)


def _hidden_text(columns: int) -> str:
    if not columns:
        return ""
    return f"{columns} more {'column does' if columns == 1 else 'columns do'} not fit here; see the report."


def run_table(title: str, metrics: Mapping[str, float], bound_mean_s: float | None = None) -> Table:
    """All metrics of one run by group; undefined ones are left out, and so is the bound if there is none."""
    table = _table("metric", title=title)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for group, rows in run_groups(metrics).items():
        _add_section(table, group, rows)
    if bound_mean_s is not None:
        _add_section(table, "Lower bound", [metric_row(METRICS["completion_mean_s"], bound_mean_s)])
    return table


def _add_section(table: Table, title: str, rows: Iterable[tuple[str, ...]]) -> None:
    table.add_row(Text(title, style="bold"))
    for first, *others in rows:
        table.add_row(Text(f"  {first}"), *map(Text, others))
    table.add_section()


def timing_table(timings: Sequence[PolicyTiming]) -> Table:
    """Time of each policy's decisions and plans, in the given order."""
    caption = (
        f"{counted(timings[0].n_nodes, 'node')}; decisions: processor time, compiled; plans: by the clock."
    )
    table = _table("policy", caption=caption)
    for heading in ("decision\n(µs)", "plans", "plan, mean\n(ms)", "plan, longest\n(ms)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for timing in timings:
        plan_ms = [1e3 * timing.plan_mean_s, 1e3 * timing.plan_max_s]
        cells = [f"{value:.2f}" if timing.plans else "–" for value in plan_ms]
        table.add_row(Text(timing.policy), f"{1e6 * timing.decision_s:.3f}", str(timing.plans), *cells)
    return table


def policies_table(descriptions: Iterable[Description], width: int = 160, title: str | None = None) -> Table:
    """A catalogue: name, kind and idea of each policy; its first source too if the width allows."""
    table = _table("policy", title=title)
    if width < VERY_NARROW:
        table.columns[0].no_wrap = False
        for policy in descriptions:
            table.add_row(Text(f"{policy.name} ({policy.kind})\n").append(policy.idea, style="dim"))
        return table
    headings = ("kind", "idea", "source") if width >= NARROW else ("kind", "idea")
    for heading in headings:
        table.add_column(heading, overflow="fold", ratio=None if heading == "kind" else 1)
    for policy in descriptions:
        cells = [Text(policy.name), Text(policy.kind), Text(policy.idea)]
        source = Text(policy.source.partition(";")[0], style="dim")
        table.add_row(*cells, *([source] if "source" in headings else []))
    return table


def metrics_table(metrics: Iterable[Metric]) -> Table:
    """Unit, better direction, definition and formula of each metric."""
    table = _table("metric")
    for heading in ("unit", "better", "definition, formula"):
        table.add_column(heading, overflow="fold")
    for metric in metrics:
        unit = {"1": "", "frac": "0..1"}.get(metric.unit, metric.unit)
        says = Text.assemble(metric.definition, (f"\n{metric.formula}" if metric.formula else "", "dim"))
        table.add_row(metric.name, unit, metric.better or "", says)
    return table


def text_table(given: TextTable) -> Table:
    """A table of texts, its explanation below."""
    first, *rest = given.head
    table = _table(first, title=given.title, caption=given.how)
    for heading in rest:
        table.add_column(heading, overflow="fold")
    for cells in given.rows:
        table.add_row(*map(Text, cells))
    return table


def trace_table(summary: TraceSummary, title: str = "trace") -> Table:
    """A trace in numbers: rate, burstiness, sizes, most frequent values."""
    table = _table("", title=title)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for group, rows in trace_groups(summary).items():
        _add_section(table, group, rows)
    return table


def _table(first: str, *, title: str | None = None, caption: str | None = None) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        title=None if title is None else Text(title, style="table.title"),
        caption=None if caption is None else Text(caption),
        show_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column(first, no_wrap=True)
    return table
