"""The page of a recorded run of a chain: workers over time, the critical path, the bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from trimtab.chains.run_advice import ENTERING, REASONS, PathRow, bottleneck_text, found_bottleneck, path_rows
from trimtab.chains.run_reports import EXPLAINED, HEADINGS, model_rows, models_of_run
from trimtab.metrics.chain_metrics import StageSummary
from trimtab.report import time_figures
from trimtab.report.curve_cards import GANTT, wide
from trimtab.report.fragments import FigureCard, grouped_rows, notes, section, stat
from trimtab.report.page import Page, html_of
from trimtab.version import versions
from trimtab.words import counted

if TYPE_CHECKING:
    import polars as pl

    from trimtab.chains.run_timeline import RunTimeline

FAILURES = 20  # that are shown
PATH_ROWS = 200  # of the critical path
WAITS = FigureCard(
    "waits",
    "What stages waited for",
    "Seconds of all instances by what they were spent on; waiting begins when the inputs are there.",
)


def chain_run_page(timeline: RunTimeline, made_at: datetime | None = None) -> str:
    """The page of one run of a chain as HTML text."""
    record = timeline.record
    found = found_bottleneck(timeline)
    lead = "No stage has a result yet." if found is None else bottleneck_text(found)
    head = {
        "Run": record.id,
        "State": record.state,
        "Begun": f"{datetime.fromtimestamp(record.created_s, UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Inputs": ", ".join(f"{count:,} {state}" for state, count in timeline.inputs.items()),
        **({"Tenant": record.tenant} if record.tenant else {}),
        "Versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
        "Made": f"{made_at or datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }
    failures = [f"input {number}: {error}" for number, error in timeline.failures.items()]
    more = len(failures) - FAILURES
    shown = failures[:FAILURES] + ([f"{more} further inputs failed"] if more > 0 else [])
    body = notes(shown) + _stats(timeline)
    figures = {}
    if timeline.runs:
        body += section("workers", "Workers over time", "", wide(GANTT))
        body += section("path", "Critical path", _PATH_TEXT, _path_table(timeline))
        if models := models_of_run(record):
            rows = "".join(_row(*row) for row in model_rows(models))
            body += section(
                "models", "Optimised models", EXPLAINED, _table("models", ("stage", *HEADINGS), rows)
            )
        body += section("stages", "Stages", "", wide(WAITS), grouped_rows(_groups(timeline), {}))
        figures = {
            GANTT.id: time_figures.stage_gantt(timeline_table(timeline)),
            WAITS.id: time_figures.waits_by_stage(waits_by_stage(timeline)),
        }
    return html_of(Page(f"{record.chain}: {record.id}", lead, head, body, figures))


_PATH_TEXT = (
    "What decided when the run's last input ended: each row waited for the output of the one above. Seconds."
)


def timeline_table(timeline: RunTimeline) -> pl.DataFrame:
    """The columns of the simulator's table of stages, with a row of the chart for each worker."""
    import polars as pl

    runs = timeline.runs
    return pl.DataFrame(
        {
            "request_id": [run.number for run in runs],
            "stage": [timeline.stages[run.stage].name for run in runs],
            "ready_s": [run.ready_s for run in runs],
            "start_s": [run.start_s for run in runs],
            "service_start_s": [run.service_start_s for run in runs],
            "finish_s": [run.finish_s for run in runs],
            "node": [f"{run.node} {run.worker}" for run in runs],
        }
    )


def waits_by_stage(timeline: RunTimeline) -> dict[str, dict[str, float]]:
    """Seconds of each stage by reason, after those that inputs waited to enter."""
    seconds = {name: dict.fromkeys(REASONS, 0.0) for name in (ENTERING, *(s.name for s in timeline.stages))}
    for run in timeline.runs:
        waits_s = run.waits_s
        seconds[ENTERING]["queue"] += waits_s.pop("entering")
        own = seconds[timeline.stages[run.stage].name]
        for reason, spent_s in waits_s.items():
            own[reason] += spent_s
    return {name: {REASONS[r]: s for r, s in own.items()} for name, own in seconds.items()}


def _stats(timeline: RunTimeline) -> str:
    running = len(timeline.running)
    failed = len(timeline.open_attempts) - running
    cards = [
        stat("Time", f"{timeline.end_s:,.4g}", "s", "", "from its begin to its end, or until now"),
        stat("Results of stages", f"{len(timeline.runs):,}", "", "", f"{counted(running, 'attempt')} run"),
        stat("Attempts without a result", f"{failed:,}", "", "", "failed, lost or cancelled"),
    ]
    if timeline.runs:
        busy = f"{100 * timeline.busy_frac():.3g}"
        cards.append(stat("Workers busy", busy, "%", "", f"{counted(len(timeline.workers), 'worker')}"))
    return f'<div class="grid stats">{"".join(cards)}</div>'


def _path_table(timeline: RunTimeline) -> str:
    heads = ("stage", "input", "worker", *REASONS.values())
    rows = "".join(_path_row(row) for row in path_rows(timeline)[-PATH_ROWS:])
    return _table("Critical path", heads, rows)


def _table(label: str, heads: Sequence[str], rows: str) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    return (
        f'<div class="card scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _path_row(row: PathRow) -> str:
    waits = (f"{row.waits_s[reason]:.3f}" if reason in row.waits_s else "" for reason in REASONS)
    return _row(row.name, str(row.number), row.worker, *waits)


def _row(name: str, *texts: str) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def _groups(timeline: RunTimeline) -> Mapping[str, list[tuple[str, str, str]]]:
    return {summary.stage: _rows(timeline, k, summary) for k, summary in enumerate(timeline.summaries)}


def _rows(timeline: RunTimeline, k: int, summary: StageSummary) -> list[tuple[str, str, str]]:
    runs = [run for run in timeline.runs if run.stage == k]
    lost = sum(a.stage == summary.stage and a not in timeline.running for a in timeline.open_attempts)
    return [
        ("results", f"{summary.served:,}", ""),
        ("attempts without one", f"{lost:,}", ""),
        ("waiting and transfers, mean", f"{summary.queueing_s:.4g}", "s"),
        ("service, mean", f"{summary.service_s:.4g}", "s"),
        ("output, mean", f"{sum(run.bytes for run in runs) / max(1, len(runs)) / 1e6:.4g}", "MB"),
        ("share of the paths", f"{100 * summary.path_frac:.3g}", "%"),
    ]
