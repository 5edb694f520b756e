"""The progress of a run of a chain, stage by stage, while it runs."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimtab.cli.output import note
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.chains.run_state import StageCounts
    from trimtab.chains.session import RunHandle

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
