"""The runs of a comparison while they run: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimtab.cli.output import BarReporter, note, terminal_bar
from trimtab.words import counted, duration_text

if TYPE_CHECKING:
    from trimtab.experiments.compare import RunsDone

LINE_S = 10.0  # between two lines where there is no terminal


class RunsReporter:
    """Prints nothing."""

    def __call__(self, runs: RunsDone) -> None:
        """How far the comparison is."""

    def say(self, text: str) -> None:
        """What a user should know before or while it runs."""


class RunsBar(RunsReporter):
    """A bar, with what runs and the time left."""

    def __init__(self, bar: BarReporter) -> None:
        self._bar = bar

    def __call__(self, runs: RunsDone) -> None:
        """Move the bar."""
        self._bar(runs.done, runs.total)
        self._bar.say(runs_text(runs))

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._bar.print(text)


class RunsLines(RunsReporter):
    """A line every few seconds, also while nothing ends."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._runs: RunsDone | None = None

    def __call__(self, runs: RunsDone) -> None:
        """Keep it for the next line."""
        self._runs = runs

    def say(self, text: str) -> None:
        """A line."""
        note(text)

    def print(self) -> None:
        """How far it was told to be."""
        if self._runs is not None:
            note(f"{time.monotonic() - self._begun_s:.0f} s: {runs_text(self._runs)}")


@contextlib.contextmanager
def runs_progress(label: str, *, quiet: bool) -> Iterator[RunsReporter]:
    """Context that shows on stderr how far a comparison is."""
    if quiet:
        yield RunsReporter()
    elif sys.stderr.isatty():
        with terminal_bar(label) as bar:
            yield RunsBar(bar)
    else:
        lines, over = RunsLines(), threading.Event()
        thread = threading.Thread(target=_print_lines, args=(lines, over), daemon=True)
        thread.start()
        try:
            yield lines
        finally:
            over.set()
            thread.join()


def _print_lines(lines: RunsLines, over: threading.Event) -> None:
    while not over.wait(LINE_S):
        lines.print()


def runs_text(runs: RunsDone) -> str:
    """How many runs are done, the time left, and what runs."""
    parts = [f"{runs.done:,} of {counted(runs.total, 'run')}"]
    if runs.kept:
        parts.append(f"{runs.kept:,} of them from before")
    if runs.left_s is not None and runs.done < runs.total:
        parts.append(f"about {duration_text(runs.left_s)} left")
    running = f"; now {runs.running[0]}" if runs.running else ""
    more = f" and {len(runs.running) - 1} more" if len(runs.running) > 1 else ""
    return ", ".join(parts) + running + more
