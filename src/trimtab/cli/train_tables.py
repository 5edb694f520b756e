"""Tables of runs of training jobs."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from trimtab.cli.output import begun_and_took, note

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from trimtab.training.runner.live_job import JobRow
    from trimtab.training.runner.train_jobs import RunOutcome

MODELS_SHOWN = 5  # one by one


def outcome_table(outcome: RunOutcome) -> Table:
    """The jobs of a run that ended: what they took, beside what the simulator says."""
    told = outcome.recording
    both = [(job.completion_s, job.simulated_s) for job in told.jobs]
    both = [pair for pair in both if not any(map(math.isnan, pair))]
    mean_s, simulated_s = told.metrics["completion_mean_s"], math.nan
    if both:  # of jobs that ended in both
        mean_s, simulated_s = (sum(times) / len(both) for times in zip(*both, strict=True))
    fit = "" if math.isnan(told.fit_error_frac) else f"; error of predicted speeds {told.fit_error_frac:.1%}"
    if not math.isnan(told.forecast_error_frac):
        fit += (
            f", of completion as predicted at admission {told.forecast_error_frac:.1%}, "
            f"as simulated with all that came {told.simulation_error_frac:.1%}"
        )
    off = "not compared: the run was stopped meanwhile" if told.was_stopped else _off(mean_s, simulated_s)
    caption = (
        f"mean completion {_seconds(mean_s)} s, simulated {_seconds(simulated_s)} s ({off}); "
        f"makespan {_seconds(told.metrics['makespan_s'])} s; a restart takes {told.restart_s:.3g} s{fit}"
    )
    table = Table(title=outcome.run_id, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("job")
    table.add_column("state")
    headings = "completion (s)", "predicted (s)", "simulated (s)", "measured ÷ simulated", "slot seconds"
    for heading in (*headings, "restarts"):
        table.add_column(heading, justify="right")
    for job in told.jobs:
        table.add_row(
            job.id,
            job.state,
            _seconds(job.completion_s),
            _seconds(job.predicted_s),
            _seconds(job.simulated_s),
            "–" if told.was_stopped else _off(job.completion_s, job.simulated_s),
            f"{job.gpu_s:.4g}",
            str(job.restarts),
        )
    return table


def queues_table(queues: Mapping[str, Mapping[str, float]]) -> Table:
    """What the queues of a run got."""
    table = Table(title="queues", title_justify="left")
    table.add_column("queue")
    headings = "jobs", "mean completion (s)", "mean wait (s)", "slots held", "guaranteed", "preempted"
    for heading in headings:
        table.add_column(heading, justify="right")
    for path, figures in queues.items():
        table.add_row(
            path,
            f"{figures['jobs']:.0f}",
            _seconds(figures["completion_mean_s"]),
            _seconds(figures["queueing_mean_s"]),
            f"{figures['held_gpus']:.3g}",
            f"{figures['guaranteed_gpus']:.3g}",
            f"{figures['preempted']:.0f}",
        )
    return table


def known_queues_table(queues: Sequence[Mapping[str, Any]]) -> Table:
    """The queues of a run in the journal."""
    table = Table(title="queues", title_justify="left")
    table.add_column("queue")
    for heading in ("jobs", "done", "slot seconds", "slots guaranteed"):
        table.add_column(heading, justify="right")
    for row in queues:
        counts = f"{row['jobs']}", f"{row['done']}"
        table.add_row(row["queue"], *counts, f"{row['gpu_s']:.1f}", f"{row['guaranteed_gpus']:.3g}")
    return table


def models_note(outcome: RunOutcome) -> str:
    """Where the models of a run are; empty if none was kept."""
    kept = [job.model for job in outcome.recording.jobs if job.model is not None]
    if len(kept) <= MODELS_SHOWN:
        return "\n".join(f"model: {model}" for model in kept)
    return f"models: {outcome.recording.folder.parent}/jobs/JOB/model"


def _seconds(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.2f}"


def _off(measured_s: float, simulated_s: float) -> str:
    ratio = measured_s / simulated_s if simulated_s > 0 else math.nan
    return "–" if math.isnan(ratio) else f"{ratio:.2f}"


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a journal."""
    table = Table(title=None if runs else "no runs")
    for heading in ("run", "jobs of", "policy", "state", "begun", "took (s)"):
        table.add_column(heading)
    for run in runs:
        table.add_row(run["run"], run["name"], run["policy"], run["state"], *begun_and_took(run))
    return table


def run_table(run: Mapping[str, Any]) -> Table:
    """The jobs of a run."""
    problems = "".join(f"\n{j['job_id']}: {text}" for j in run["jobs"] for text in j["problems"])
    error = run["recording"].get("forecast_error_frac")
    told = "" if error is None else f"\nerror of completion as predicted at admission: {error:.1%}"
    table = Table(
        title=f"{run['run']}: {run['name']}, {run['policy']}, {run['state']}",
        caption=f"files: {run['folder']}{told}{problems}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("job")
    table.add_column("state")
    headings = "samples", "done", "starts", "predicted (s)", "completion (s)", "running (s)", "restarts (s)"
    for heading in (*headings, "slot seconds"):
        table.add_column(heading, justify="right")
    for job in run["jobs"]:
        table.add_row(
            job["job_id"],
            job["state"],
            f"{job['samples']:,}",
            f"{job['samples'] / job['samples_total']:.0%}",
            str(job["generations"]),
            _seconds(job["predicted_s"]),
            _seconds(job["completion_s"]),
            f"{job['run_s']:.1f}",
            f"{job['restart_s']:.1f}",
            f"{job['gpu_s']:.1f}",
        )
    return table


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
    has_queues = any(row.queue for row in rows)
    if has_queues:
        table.add_column("queue")
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
            *([row.queue] if has_queues else []),
            row.problem,
        )
    return table
