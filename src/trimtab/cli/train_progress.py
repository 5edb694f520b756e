"""The jobs of a run while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trimtab.cli.output import note

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from trimtab.training.runner.live_job import JobRow

LINE_S = 10.0  # between two lines where there is no terminal


class JobsProgress:
    """Prints nothing but what must be said."""

    def rows(self, rows: Sequence[JobRow], now_s: float) -> None:
        """The jobs, at this second of the run."""

    def say(self, text: str) -> None:
        """Notes for the user."""


class LinesOfJobs(JobsProgress):
    """A line now and then."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def rows(self, rows: Sequence[JobRow], now_s: float) -> None:
        """A line, unless there was one just before."""
        if time.monotonic() - self._last_s >= LINE_S:
            self._last_s = time.monotonic()
            note(f"{now_s:.0f} s: " + ", ".join(_in_words(row) for row in rows))

    def say(self, text: str) -> None:
        """A line."""
        note(text)


class LiveJobs(JobsProgress):
    """A table that is drawn anew."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def rows(self, rows: Sequence[JobRow], now_s: float) -> None:
        """The table."""
        self._live.update(jobs_table(rows, now_s), refresh=True)

    def say(self, text: str) -> None:
        """A line above the table."""
        self._live.console.print(text, markup=False, highlight=False)


@contextlib.contextmanager
def shown_jobs(*, quiet: bool) -> Iterator[JobsProgress]:
    """Context that shows jobs on stderr."""
    if quiet:
        yield JobsProgress()
    elif not sys.stderr.isatty():
        yield LinesOfJobs()
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
            yield LiveJobs(live)


def _in_words(row: JobRow) -> str:
    done = f"{row.samples / row.samples_total:.0%}"
    return f"{row.id} {row.state} {done}" + (f" on {row.gpus}" if row.gpus else "")


def jobs_table(rows: Sequence[JobRow], now_s: float) -> Table:
    """Jobs, their slots, their speed, and when each will end."""
    from rich.table import Table

    used = sum(row.gpus for row in rows)
    table = Table(caption=f"{now_s:.0f} s; {used} slots in use", caption_justify="left")
    table.add_column("job")
    table.add_column("state")
    for heading in ("slots", "asked", "samples", "done", "samples/s", "restarts", "ends in (s)"):
        table.add_column(heading, justify="right")
    table.add_column("problem", overflow="fold")
    for row in rows:
        ends = "" if math.isinf(row.expected_end_s) else f"{max(row.expected_end_s - now_s, 0):.0f}"
        rate = "" if math.isnan(row.samples_per_s) else f"{row.samples_per_s:,.4g}"
        table.add_row(
            row.id,
            row.state,
            str(row.gpus),
            str(row.gpus_requested),
            f"{row.samples:,}",
            f"{row.samples / row.samples_total:.0%}",
            rate,
            str(row.restarts),
            ends,
            row.problem,
        )
    return table
