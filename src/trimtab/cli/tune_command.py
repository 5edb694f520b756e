"""`trimtab tune`: better values for the numbers of a policy, on a workload of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note_written, print_json, show
from trimtab.cli.runs_progress import runs_progress
from trimtab.cli.shared_options import (
    Json,
    Quiet,
    Report,
    Simulations,
    SimulationsOn,
    TraceRows,
    out_option,
    policy_option,
    read_ahead,
    with_rows,
)
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.experiments.tuning import Trial

DEFAULT_OUT = Path("trimtab-tuned")
DEFAULT_OBJECTIVE = "mean s.t. p99<=+0%"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "tune",
        epilog=examples(
            "trimtab tune trace.csv --cluster cluster.yaml",
            "trimtab tune llm-chat --objective 'p99 s.t. mean<=+1%'",
            "trimtab tune trace.csv --cluster cluster.yaml --policy my_policy.py:MyPolicy --candidates 192",
            "trimtab compare trace.yaml --policy late-binding --policy trimtab-tuned/tuned.yaml",
        ),
    )(grouped(tune))


def tune(
    workload: Annotated[
        str,
        typer.Argument(
            help="Trace, built-in scenario or YAML file.",
            metavar="TRACE|SCENARIO",
            autocompletion=completion.scenarios,
        ),
    ],
    rows: TraceRows,
    table: TableOptions,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Take the cluster from this YAML file.", metavar="FILE")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option("--load", help="Scale arrival times to this load (offered work over capacity)."),
    ] = None,
    policy: Annotated[
        str, policy_option("Tune this policy, from the values that it is given with.", has_default=True)
    ] = "late-binding",
    objective: Annotated[
        str,
        typer.Option(
            "--objective", help="Metric to improve, and what others may change by.", metavar="OBJECTIVE"
        ),
    ] = DEFAULT_OBJECTIVE,
    candidates: Annotated[
        int, typer.Option("--candidates", help="Candidates of the first of four rounds, 6 or more.")
    ] = 96,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search and of all runs.")] = 0,
    jobs: Simulations = None,
    on: SimulationsOn = "processes",
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on from the finished runs of an interrupted tuning."),
    ] = True,
    out: Annotated[Path, out_option()] = DEFAULT_OUT,
    report: Report = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search better values for the numbers of a policy, and test them on requests it never saw."""
    from trimtab.experiments.tuning import Goal, tune_policy
    from trimtab.experiments.tuning.named_workload import workload_of
    from trimtab.report.results_folder import write_tuning
    from trimtab.report.whole_files import check_writable

    goal, silent = Goal.parsed(objective), quiet or json
    check_writable(out)
    scenario = with_rows(workload_of(workload, cluster, load), rows, table)
    read_ahead(scenario, quiet=silent)
    with runs_progress(f"tuning {policy} on {scenario.name}", quiet=silent) as progress:
        done = tune_policy(
            scenario,
            policy,
            goal,
            candidates=candidates,
            seed=seed,
            out=out,
            resume=resume,
            jobs=jobs,
            on=on,
            progress=progress,
            notice=progress.say,
        )
    written = write_tuning(done, out, with_report=report)
    if json:
        print_json(done.to_dict())
        return
    for what, trial, part in (("chosen on", done.best, "validation"), ("tested on", done.test, "test")):
        requests, seeds = done.requests[part], len(done.seeds[part])
        print(f"{trial.policy}, {what} {counted(requests, 'request')}, {counted(seeds, 'seed')}")
        show(_changes(trial))
    print(done.in_words())
    note_written(written, quiet=quiet)


def _changes(trial: Trial) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for k, column in enumerate(("metric", "before", "now", "change %", "95 % interval")):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    for name, c in trial.changes.items():
        interval = f"{100 * c.low_frac:+.1f} to {100 * c.high_frac:+.1f}"
        table.add_row(name, f"{c.before:.4g}", f"{c.now:.4g}", f"{100 * c.frac:+.1f}", interval)
    return table
