"""Output of commands: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as Bar

    from trimtab.report.results_folder import Written

_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
MOST_NOTES = 2  # below a table; more are folded
STEP_PERCENT = 25  # between two lines of progress where there is no terminal


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object to stdout, and nothing else."""
    from trimtab.report.packed_text import json_text

    print(json_text(value), end="")


def write_yaml(path: Path, head: str, content: Mapping[str, Any]) -> None:
    """Write a file with a comment of one line above its content. Raises UsageError."""
    import yaml

    from trimtab.report.whole_files import write_text

    write_text(path, f"# {head}\n{yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)}")


def begun_and_took(run: Mapping[str, Any]) -> tuple[str, str]:
    """When a run of a journal began, and its seconds, empty while it goes on."""
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["created_s"]))
    return begun, "" if run["ended_s"] is None else f"{run['ended_s'] - run['created_s']:.1f}"


def note_written(written: Written, *, quiet: bool = False) -> None:
    """Print the path of the written results."""
    for file in written.files:
        note(where(file.path, file.size_bytes), quiet=quiet)


def stdout_console() -> Console:
    """Console for tables. A pipe gets 120 columns, unless COLUMNS sets another width."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(width=width, highlight=False)


def show(*renderables: RenderableType) -> None:
    """Print tables and text to stdout."""
    console = stdout_console()
    for renderable in renderables:
        console.print(renderable)


def note(text: str, *, quiet: bool = False) -> None:
    """Print a note on stderr."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)


def note_folded(notes: Sequence[str], file: Path, *, quiet: bool = False) -> None:
    """A few notes in full; of more, what each is about in one line, and the file that has them all."""
    if len(notes) <= MOST_NOTES:
        for text in notes:
            note(f"note: {text}", quiet=quiet)
        return
    heads = "; ".join(text.partition(":")[0] for text in notes)
    note(f"{len(notes)} notes, in full in {file}: {heads}", quiet=quiet)


class Reporter:
    """Shows the progress of a task. This base class prints nothing."""

    def __call__(self, done: int, total: int) -> None:
        """Set how much of the task is done; a total of 0 means unknown."""

    def say(self, what: str) -> None:
        """Name the step that runs before the task."""


class LineReporter(Reporter):
    """Progress without a terminal: an occasional line."""

    def __init__(self, label: str) -> None:
        self._label, self._shown_percent = label, 0

    def __call__(self, done: int, total: int) -> None:
        """Print a line for every quarter, unless the task is done at once."""
        percent = 100 * done // total if total else 0
        if self._shown_percent + STEP_PERCENT <= percent < 100:
            self._shown_percent = percent - percent % STEP_PERCENT
            note(f"{self._label}: {percent} %")

    def say(self, what: str) -> None:
        """Print the step."""
        note(what)


class BarReporter(Reporter):
    """A progress bar on a terminal."""

    def __init__(self, bar: Bar, label: str) -> None:
        self._bar, self._label = bar, label
        self._task = bar.add_task(label, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, description=self._label, completed=done, total=total or None)

    def say(self, what: str) -> None:
        """Show the step in front of the bar."""
        self._bar.update(self._task, description=what)

    def print(self, text: str) -> None:
        """A line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Reporter]:
    """Context that shows the progress of a task: a bar on a terminal, occasional lines elsewhere."""
    if quiet:
        yield Reporter()
    elif not sys.stderr.isatty():
        yield LineReporter(label)
    else:
        with terminal_bar(label) as bar:
            yield bar


@contextmanager
def terminal_bar(label: str) -> Iterator[BarReporter]:
    """Context with a bar on the terminal, which goes away at its end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # it names files
        BarColumn(),
        TaskProgressColumn(),
        Elapsed(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield BarReporter(bar, label)


@contextmanager
def spinner(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Context that shows a spinner on a terminal; elsewhere it prints the text once."""
    if quiet or not sys.stderr.isatty():
        note(text, quiet=quiet)
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def where(path: Path, size_bytes: int) -> str:
    """A line with the path and the size of a written file."""
    unit, scale = next(((u, s) for u, s in _UNITS if size_bytes >= s), ("B", 1))
    return f"  {path} ({size_bytes / scale:.3g} {unit})"
