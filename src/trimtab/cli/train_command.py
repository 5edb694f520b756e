"""`trimtab train`: run training jobs on slots that an allocator shares out, and look at such runs.

`add`, `cancel`, `priority`, `drain` and `undrain` are commands to a run that goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import FAILED, examples
from trimtab.cli.output import note
from trimtab.cli.shared_options import Json, Quiet, check_resume, resumable

if TYPE_CHECKING:
    from trimtab.training.runner.run_commands import Command
    from trimtab.training.runner.train_jobs import RunChoice, RunOutcome

DEFAULT_POLICY = "srtf"
Runs = Annotated[
    Path | None,
    typer.Option(
        "--journal", help="Folder of journal, checkpoints and logs. Default: in the user's data folder."
    ),
]
app = typer.Typer(
    no_args_is_help=True,
    help="Run training jobs as real processes that share slots.",
    epilog=examples("trimtab train run jobs.yaml --policy tiresias --slots 4", "trimtab train list"),
)
RunFolder = Annotated[
    Path | None,
    typer.Option("--journal", help="Folder of the run. Default: in the user's data folder."),
]
Run = Annotated[str, typer.Argument(help="A run of `train list`.", metavar="RUN")]
Jobs = Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="JOB...")]
Nodes = Annotated[list[str], typer.Argument(help="Names of nodes.", metavar="NODE...")]


def add_jobs(
    run: Run,
    file: Annotated[Path, typer.Argument(help="File of jobs.", metavar="JOBS.yaml")],
    journal: RunFolder = None,
) -> None:
    """Add the jobs of a file to a run. Their times count from now; nodes and rules of the file do not."""
    from trimtab.training.runner.job_list import read_job_list
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="add", jobs=read_job_list(file).jobs), journal)


def cancel_jobs(run: Run, jobs: Jobs, journal: RunFolder = None) -> None:
    """Cancel jobs. One that runs is stopped at a checkpoint, which stays."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="cancel", names=tuple(jobs)), journal)


def prioritise_jobs(
    run: Run,
    priority: Annotated[int, typer.Argument(help="Higher is more urgent.", metavar="PRIORITY")],
    jobs: Jobs,
    journal: RunFolder = None,
) -> None:
    """Give jobs another priority."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="priority", names=tuple(jobs), priority=priority), journal)


def drain_nodes(run: Run, nodes: Nodes, journal: RunFolder = None) -> None:
    """Take jobs off nodes, at a checkpoint, and give these nodes no more."""
    from trimtab.training.runner.run_commands import Command

    _send(run, Command(do="drain", names=tuple(nodes)), journal)


def undrain_nodes(run: Run, nodes: Nodes, journal: RunFolder = None) -> None:
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


for name, function, example in (
    ("add", add_jobs, "trimtab train add train_0123456789abcdef more.yaml"),
    ("cancel", cancel_jobs, "trimtab train cancel train_0123456789abcdef large small"),
    ("priority", prioritise_jobs, "trimtab train priority train_0123456789abcdef 10 small"),
    ("drain", drain_nodes, "trimtab train drain train_0123456789abcdef node-b"),
    ("undrain", undrain_nodes, "trimtab train undrain train_0123456789abcdef node-b"),
):
    app.command(name, epilog=examples(example))(function)


@app.command(
    "run",
    epilog=examples(
        "trimtab train run jobs.yaml --policy tiresias --slots 4",
        "trimtab train run jobs.yaml --policy srtf --clock 'events(slot_s=10)'",
        "trimtab train run jobs.yaml --on ray://auto",
        "trimtab train run jobs.yaml --on kube://gpu-pool.yaml",
        "trimtab train run --resume train_0123456789abcdef --retry-failed",
    ),
)
def run_jobs(
    file: Annotated[Path | None, typer.Argument(help="File of jobs.", metavar="JOBS.yaml")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help=f"Decide with this policy.  [dim]Default: {DEFAULT_POLICY}[/dim]",
            autocompletion=completion.allocators,
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option(min=0, help="Slots of this machine; 0 = the nodes of the file.", show_default=False)
    ] = 0,
    on: Annotated[
        str,
        typer.Option(
            help="Where slots are: processes (this machine), ray, ray://HOST:PORT, kube, kube://FILE, slurm, "
            "slurm://FILE."
            "  [dim]Default: processes, or where the run that goes on was[/dim]",
            metavar="NAME|ADDRESS",
            show_default=False,
        ),
    ] = "",
    clock: Annotated[
        str | None, typer.Option(help="When to decide. Default: as the file, else the policy's source says.")
    ] = None,
    resume: Annotated[str, typer.Option(help="Go on with this run.", metavar="RUN")] = "",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: also jobs that failed.")
    ] = False,
    journal: Runs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run jobs. Ctrl-C stops them at a checkpoint; `--resume RUN` goes on from there."""
    from trimtab.cli.output import print_json, show
    from trimtab.cli.train_tables import models_note, outcome_table, queues_table
    from trimtab.errors import TrimtabError
    from trimtab.training.runner.run_ledger import DONE, STOPPED

    chosen = replace(_choice(file, policy, slots, clock, resume, retry_failed), on=on)
    again = f" --journal {journal}" if journal is not None else ""
    with resumable((KeyboardInterrupt, TrimtabError, OSError), "trimtab train run", again) as begun:
        outcome = _run(chosen, journal, begun.append, quiet=quiet or json)
        if outcome.state == STOPPED:
            raise KeyboardInterrupt
    if json:
        print_json({"run": outcome.run_id, "state": outcome.state, **outcome.recording.to_dict()})
    else:
        show(outcome_table(outcome))
        if outcome.recording.queues:
            show(queues_table(outcome.recording.queues))
        if where := models_note(outcome):
            note(where, quiet=quiet)
        note(f"recorded: trimtab compare {outcome.recording.folder / 'scenario.yaml'}", quiet=quiet)
    if outcome.state != DONE:
        raise typer.Exit(FAILED)


def _choice(
    file: Path | None, policy: str | None, slots: int, clock: str | None, resume: str, retry_failed: bool
) -> RunChoice:
    from trimtab.errors import UsageError
    from trimtab.training.runner.job_list import read_job_list
    from trimtab.training.runner.train_jobs import RunChoice

    check_resume("jobs", "JOBS.yaml", given=file is not None, resume=resume, retry_failed=retry_failed)
    if file is None:
        for name, value in (("--policy", policy), ("--slots", slots or None), ("--clock", clock)):
            if value is not None:
                expected = "no such option with --resume: the run goes on as it was begun"
                raise UsageError("cannot change", field=name, value=value, expected=expected)
        return RunChoice(resume=resume, retry_failed=retry_failed)
    given = {"local": slots} if slots else None
    return RunChoice(read_job_list(file), file.stem, str(file), policy or DEFAULT_POLICY, clock, given)


def _run(chosen: RunChoice, journal: Path | None, begun: Callable[[str], None], *, quiet: bool) -> RunOutcome:
    from trimtab.cli.train_tables import shown_jobs
    from trimtab.clusters.backends import host
    from trimtab.training.runner.run_ledger import default_runs
    from trimtab.training.runner.train_jobs import train_jobs

    with shown_jobs(quiet=quiet) as progress:
        runs = journal or default_runs()
        return train_jobs(chosen, runs, hosts=host, begun=begun, show=progress.rows, say=progress.say)


@app.command("list", epilog=examples("trimtab train list --limit 5"))
def list_runs(
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    journal: Runs = None,
    json: Json = False,
) -> None:
    """List runs."""
    from trimtab.cli.output import print_json, show
    from trimtab.cli.train_tables import runs_table
    from trimtab.training.runner.train_reports import listed_runs

    runs = listed_runs(journal, limit)
    if json:
        print_json({"runs": runs})
    else:
        show(runs_table(runs))


@app.command("show", epilog=examples("trimtab train show train_0123456789abcdef"))
def show_run(
    run: Annotated[str, typer.Argument(help="A run of `train list`.", metavar="RUN")],
    journal: Runs = None,
    json: Json = False,
) -> None:
    """Show the jobs of a run: how far each is, its checkpoint, its restarts, and what went wrong."""
    from trimtab.cli.output import print_json, show
    from trimtab.cli.train_tables import known_queues_table, run_table
    from trimtab.training.runner.train_reports import run_summary

    told = run_summary(journal, run)
    if json:
        print_json(told)
    else:
        show(run_table(told))
        if told["queues"]:
            show(known_queues_table(told["queues"]))
