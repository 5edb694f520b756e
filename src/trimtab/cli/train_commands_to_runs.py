"""`trimtab train add`, `cancel`, `priority`, `drain`, `undrain`: commands to a run that goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note

if TYPE_CHECKING:
    from trimtab.training.runner.run_commands import Command

Runs = Annotated[
    Path | None,
    typer.Option("--journal", help="Folder of the run. Default: in the user's data folder."),
]
Run = Annotated[str, typer.Argument(help="A run of `train list`.", metavar="RUN")]
Jobs = Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="JOB...")]
Nodes = Annotated[list[str], typer.Argument(help="Names of nodes.", metavar="NODE...")]


def register(app: typer.Typer) -> None:
    """Add the commands to `trimtab train`."""
    for name, function, example in (
        ("add", add_jobs, "trimtab train add train_0123456789abcdef more.yaml"),
        ("cancel", cancel_jobs, "trimtab train cancel train_0123456789abcdef large small"),
        ("priority", prioritise_jobs, "trimtab train priority train_0123456789abcdef 10 small"),
        ("drain", drain_nodes, "trimtab train drain train_0123456789abcdef node-b"),
        ("undrain", undrain_nodes, "trimtab train undrain train_0123456789abcdef node-b"),
    ):
        app.command(name, epilog=examples(example))(function)


def add_jobs(
    run: Run,
    file: Annotated[Path, typer.Argument(help="File of jobs.", metavar="JOBS.yaml")],
    journal: Runs = None,
) -> None:
    """Add the jobs of a file to a run. Their times count from now; nodes and rules of the file do not."""
    from trimtab.training.runner.job_list import read_job_list
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="add", jobs=read_job_list(file).jobs), journal)


def cancel_jobs(run: Run, jobs: Jobs, journal: Runs = None) -> None:
    """Cancel jobs. One that runs is stopped at a checkpoint, which stays."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="cancel", names=tuple(jobs)), journal)


def prioritise_jobs(
    run: Run,
    priority: Annotated[int, typer.Argument(help="Higher is more urgent.", metavar="PRIORITY")],
    jobs: Jobs,
    journal: Runs = None,
) -> None:
    """Give jobs another priority."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="priority", names=tuple(jobs), priority=priority), journal)


def drain_nodes(run: Run, nodes: Nodes, journal: Runs = None) -> None:
    """Take jobs off nodes, at a checkpoint, and give these nodes no more."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="drain", names=tuple(nodes)), journal)


def undrain_nodes(run: Run, nodes: Nodes, journal: Runs = None) -> None:
    """Give jobs to nodes again that were drained."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="undrain", names=tuple(nodes)), journal)


def _send(run: str, command: Command, journal: Path | None) -> None:
    """Have the run obey; where no process works on it, it will when it goes on."""
    from trimtab.errors import UsageError
    from trimtab.training.runner.run_commands import sent

    answer = sent(journal, run, command)
    if answer is None:
        again = f" --journal {journal}" if journal is not None else ""
        note(f"no process works on this run now: it obeys with trimtab train run --resume {run}{again}")
        return
    for line in answer.done:
        note(line)
    if answer.refused:
        raise UsageError("; ".join(answer.refused))
