"""Tables of runs of chains."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from trimtab.cli.output import begun_and_took, note
from trimtab.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from trimtab.chains.run_state import StageCounts
    from trimtab.chains.run_timeline import RunTimeline
    from trimtab.chains.session import RunHandle
    from trimtab.chains.stage_profiles import LineRow, StageProfiles
    from trimtab.live.model_scope import ModelRecord


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a journal."""
    table = Table(title=None if runs else "no runs")
    for heading in ("run", "chain", "state", "begun", "took (s)", "tags"):
        table.add_column(heading)
    for run in runs:
        tags = ", ".join(f"{name}={text}" for name, text in run["tags"].items())
        table.add_row(run["run"], run["chain"], run["state"], *begun_and_took(run), tags)
    return table


def run_table(run: Mapping[str, Any]) -> Table:
    """One run, stage by stage."""
    inputs = ", ".join(f"{count} {state}" for state, count in run["inputs"].items())
    failures = "".join(f"\ninput {number}: {error}" for number, error in run["failures"].items())
    table = Table(
        title=f"{run['run']}: {run['chain']}, {run['state']}",
        caption=f"inputs: {inputs}{failures}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("stage")
    for heading in ("done", "attempts", "service (s)", "loading (s)", "peak (GiB)", "output (MB)"):
        table.add_column(heading, justify="right")
    for name, stage in run["stages"].items():
        table.add_row(
            name,
            f"{stage['done']:,}",
            f"{stage['attempts']:,}",
            f"{stage['service_s'] / max(1, stage['done']):.4g}",
            f"{stage['load_s']:.3g}",
            f"{stage['peak_gib']:.3g}",
            f"{stage['bytes'] / 1e6:.4g}",
        )
    return table


def models_table(models: Mapping[str, Sequence[ModelRecord]]) -> Table:
    """The models that stages have optimised."""
    from trimtab.chains.run_reports import EXPLAINED, HEADINGS, model_rows

    table = Table(title="Optimised models", caption=EXPLAINED, title_justify="left", caption_justify="left")
    for heading in ("stage", *HEADINGS):
        table.add_column(heading, overflow="fold")
    for row in model_rows(models):
        table.add_row(*row)
    return table


def told_models(models: Mapping[str, Sequence[ModelRecord]]) -> None:
    """Show optimised models beside the results."""
    from rich.console import Console

    Console(stderr=True).print(models_table(models))


def path_table(timeline: RunTimeline) -> Table:
    """The critical path of a run: what each stage on it waited for."""
    from trimtab.chains.run_advice import REASONS, path_rows

    table = Table(
        title=f"{timeline.record.id}: critical path (s)",
        caption="\n".join(f"{name}: {text}" for name, text in REASONS.items()),
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("stage", "input", "worker"):
        table.add_column(heading)
    for heading in REASONS:
        table.add_column(heading, justify="right")
    for row in path_rows(timeline):
        waits = (f"{row.waits_s[reason]:.3f}" if reason in row.waits_s else "" for reason in REASONS)
        table.add_row(row.name, str(row.number), row.worker, *waits)
    return table


def _lines_table(title: str, lines: Sequence[LineRow], path: Path) -> Table:
    """The functions of a profile by line; the share of time is of their function's."""
    table = Table(title=title, caption=f"again: python -m line_profiler {path}", title_justify="left")
    for heading in ("line", "hits", "seconds", "%"):
        table.add_column(heading, justify="right")
    table.add_column("source", no_wrap=True)
    for (file, function), rows in groupby(lines, key=lambda row: (row.file, row.function)):
        listed = list(rows)
        all_s = sum(row.seconds for row in listed)
        table.add_row("", "", f"{all_s:.4g}", "", f"[bold]{escape(function)}[/bold] ({escape(file)})")
        for row in listed:
            share = f"{100 * row.seconds / all_s:.1f}" if all_s else ""
            table.add_row(str(row.line), f"{row.hits:,}", f"{row.seconds:.4g}", share, escape(row.source))
        table.add_section()
    return table


def told_profile(profiles: StageProfiles, stage: str, path: Path) -> None:
    """Write the profile of a stage, and show the functions that take longest."""
    from rich.console import Console

    from trimtab.cli.output import note
    from trimtab.report.whole_files import refusals_of

    with refusals_of(path, "profile-out"):
        if not profiles.write(stage, path):
            note(f"no attempt at {stage} ended well: there is no profile")
            return
    title = f"{stage}: {counted(profiles.attempts[stage], 'attempt')}"
    if lines := profiles.lines(stage):
        Console(stderr=True).print(_lines_table(title, lines, path))
        return
    table = Table(title=title, caption=f"all of it: python -m pstats {path}", title_justify="left")
    for heading in ("calls", "own (s)", "with calls (s)"):
        table.add_column(heading, justify="right")
    table.add_column("function")
    for row in profiles.top(stage):
        table.add_row(f"{row.calls:,}", f"{row.own_s:.4g}", f"{row.total_s:.4g}", row.function)
    Console(stderr=True).print(table)


SHOW_S = 0.5
LINE_S = 10.0  # between two lines where there is no terminal


@contextlib.contextmanager
def shown_progress(handle: RunHandle, *, quiet: bool) -> Iterator[None]:
    """Context that shows how far a run is, on stderr."""
    if quiet:
        yield
        return
    over = threading.Event()
    show = _on_terminal if sys.stderr.isatty() else _in_lines
    thread = threading.Thread(target=show, args=(handle, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _in_lines(handle: RunHandle, over: threading.Event) -> None:
    begun_s = time.monotonic()
    while not over.wait(LINE_S):
        stages = ", ".join(
            f"{name} {c.done} done {_running(c)} running {c.queued} queued"
            for name, c in handle.counts.items()
        )
        note(f"{time.monotonic() - begun_s:.0f} s: {stages}; {left_text(handle, time.monotonic() - begun_s)}")


def _on_terminal(handle: RunHandle, over: threading.Event) -> None:
    from rich.console import Console
    from rich.live import Live

    begun_s = time.monotonic()
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        while not over.wait(SHOW_S):
            live.update(progress_table(handle, time.monotonic() - begun_s), refresh=True)


def progress_table(handle: RunHandle, elapsed_s: float) -> Table:
    """The stages of a run, and the time that is left."""
    from rich.table import Table

    table = Table(caption=left_text(handle, elapsed_s), caption_justify="left")
    table.add_column("stage")
    for heading in ("queued", "running", "done", "failed", "skipped", "reused", "retries", "per s"):
        table.add_column(heading, justify="right")
    for name, c in handle.counts.items():
        numbers = (c.queued, _running(c), c.done, c.failed, c.skipped, c.reused, c.retries)
        served_per_s = (c.done - c.reused) / max(elapsed_s, 1e-9)
        shown = (n if isinstance(n, str) else f"{n:,}" for n in numbers)
        table.add_row(name, *shown, f"{served_per_s:.3g}")
    return table


def _running(counts: StageCounts) -> str:
    """How many run. Before the first result, workers load what they need."""
    loads = counts.running > 0 and counts.done == counts.reused
    return f"{counts.running:,} (first: loads code and models)" if loads else f"{counts.running:,}"


def left_text(handle: RunHandle, elapsed_s: float) -> str:
    """How many inputs are over, and how long the others will take at this rate."""
    over = sum(handle.endings.values())
    total = handle.n_inputs
    if total is None:
        return f"{counted(over, 'input')} over"
    if over == 0:
        return f"0 of {counted(total, 'input')}"
    if (done := over - handle.n_before) <= 0:  # of those that are over, none in this process
        return f"{over:,} of {counted(total, 'input')}"
    left_s = elapsed_s * (total - over) / done
    return f"{over:,} of {counted(total, 'input')}; {left_s:.0f} s left"
