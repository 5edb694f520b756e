"""`trimtab slurm`: trimtab beside Slurm: as the scheduler of a partition, or only looking."""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.cluster_options import (
    DEFAULT_POLICY,
    KEPT,
    DryRun,
    Duration,
    Policy,
    Record,
    Seed,
    decider,
    note_degraded,
    note_findings,
    note_times,
    show_findings,
)
from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.clusters.slurm.cluster_view import ClusterView

app = typer.Typer(
    no_args_is_help=True,
    help="Decide in Slurm: on which nodes of a partition jobs run that users submit with --hold.",
    epilog=examples(
        "trimtab slurm check --partition gpu",
        "trimtab slurm scheduler --partition gpu",
        "sbatch --hold --partition gpu --gres gpu:2 job.sh",
    ),
)
Partition = Annotated[str, typer.Option("--partition", help="Partition of Slurm.", metavar="NAME")]
Period = Annotated[
    float, typer.Option("--period", help="Seconds between two looks at the cluster.", min=0.05, max=60)
]


@app.command("scheduler", epilog=examples(
    "trimtab slurm scheduler --partition gpu",
    "trimtab slurm scheduler --partition gpu --policy best-fit+priority-ageing --comment trimtab",
    "trimtab slurm scheduler --partition gpu --record trace/  &&  trimtab compare --trace trace/",
))  # fmt: skip
def scheduler(
    partition: Partition,
    policy: Policy = DEFAULT_POLICY,
    comment: Annotated[
        str,
        typer.Option(
            help="Only jobs with this word in their --comment.  [dim]Default: all held by their users[/dim]",
            metavar="WORD",
            show_default=False,
        ),
    ] = "",
    period_s: Period = 1.0,
    record: Record = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Choose nodes for jobs that were submitted with --hold, and release them to these."""
    from trimtab.clusters.slurm.claim import Claim
    from trimtab.clusters.slurm.partition_scheduler import Scheduler
    from trimtab.clusters.slurm.slurm_checks import check

    found = check(partition, schedules=True)
    note_findings(
        [each for each in found if each.is_fatal or not each.is_problem], "trimtab slurm check", quiet=quiet
    )
    took_s: deque[float] = deque(maxlen=KEPT)
    view, claim = _view(partition), Claim(partition)
    made = Scheduler(
        view, claim, decider(policy), comment=comment, period_s=period_s, seed=seed, tell=took_s.append
    )
    note_degraded(made.degraded, quiet=quiet)
    _log_decisions(quiet=quiet)
    with _stoppable() as stopped, _recorded(record, view, policy):
        claim.take()
        note(f"scheduling partition {partition} by {policy}", quiet=quiet)
        try:
            made.run(stopped)
        finally:
            claim.release()
    note_times(took_s, "placed", "job", "a placement", quiet=quiet)


@app.command("record", epilog=examples(
    "trimtab slurm record trace/ --partition gpu && trimtab compare --trace trace/",
    "trimtab slurm record trace/ --partition gpu --dry-run --policy best-fit",
    "trimtab slurm record trace/ --partition gpu --since 2026-01-01",
))  # fmt: skip
def record_partition(
    folder: Annotated[Path, typer.Argument(help="Where the trace goes.", metavar="FOLDER")],
    partition: Partition,
    dry_run: DryRun = False,
    policy: Policy = DEFAULT_POLICY,
    duration_s: Duration = 0.0,
    since: Annotated[
        str,
        typer.Option(
            help="Take jobs that ended since this time from `sacct`; do not watch.",
            metavar="TIME",
            show_default=False,
        ),
    ] = "",
    period_s: Period = 1.0,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make traces of a partition, for requests and for training jobs; decides nothing."""
    from trimtab.clusters.slurm.job_table import FILE, JobTable
    from trimtab.clusters.slurm.slurm_checks import check

    note_findings(check(partition, schedules=False), "trimtab slurm check", quiet=quiet)
    view = _view(partition)
    table = JobTable(view)
    counts: dict[str, Any] = {"trace": str(folder)}
    if not since:
        counts |= _watched(
            view, table, folder, policy if dry_run else "", duration_s, period_s, seed, quiet=quiet
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    counts["jobs"] = table.write(folder, since)
    if json:
        print_json(counts)
    elif dry_run:
        print(
            f"{counts['placed']} parts of jobs began; {counts['same']} where {policy} would; "
            f"{counts['none']} where it would not; "
            f"regret {counts['regret_stranded_milli']:g} thousandths of GPUs stranded"
        )
    note(
        f"{counted(counts['jobs'], 'job')} that ended: trimtab compare --trace {folder / FILE}",
        quiet=quiet or json,
    )


@app.command("check", epilog=examples("trimtab slurm check --partition gpu"))
def check_partition(partition: Partition, json: Json = False) -> None:
    """Say what is missing before anything starts: munge, slurmctld, the clock, nodes, GPUs, rights."""
    from trimtab.clusters.slurm.slurm_checks import check

    show_findings(check(partition, schedules=True), json=json)


def _watched(
    view: ClusterView,
    table: Any,
    folder: Path,
    policy: str,
    duration_s: float,
    period_s: float,
    seed: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Watch until it is stopped; what is told of a dry run by a policy, "" = none."""
    from trimtab.clusters.slurm.job_listeners import DryRun as Choices

    choices = Choices(view, decider(policy), folder, seed=seed) if policy else None
    with _stoppable() as stopped, _recorded(folder, view, "slurm"):
        timer = threading.Timer(duration_s, stopped.set) if duration_s else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        note(f"recording into {folder}", quiet=quiet)
        view.follow(stopped, period_s, table.note)
    if choices is None:
        return {}
    choices.log.close()
    return {**choices.log.counts, "regret_stranded_milli": round(choices.log.regret_milli, 3)}


def _view(partition: str) -> ClusterView:
    """The partition, read once. Raises UsageError also where the cluster does not answer."""
    from trimtab.clusters.slurm.cluster_view import ClusterView
    from trimtab.errors import ClusterLost, UsageError

    try:
        return ClusterView(partition)
    except ClusterLost as error:
        raise UsageError(str(error), field="--partition", value=partition) from error


def _log_decisions(*, quiet: bool) -> None:
    """Each placement and each reason is a line on stderr."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trimtab.clusters.slurm").setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Set by SIGTERM or Ctrl-C, which is how a service ends."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _recorded(folder: Path | None, view: ClusterView, policy: str) -> Iterator[None]:
    from trimtab.clusters.slurm.job_listeners import JobRecording

    if folder is None:
        yield
        return
    recording = JobRecording(view, folder, policy)
    try:
        yield
    finally:
        recording.close()
