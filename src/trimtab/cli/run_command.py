"""`trimtab run`: one policy on one scenario, simulated or live."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, note_written, print_json, progress_bar, show
from trimtab.cli.shared_options import (
    Json,
    Quiet,
    ScenarioOptions,
    TraceRows,
    out_option,
    policy_option,
    read_ahead,
)
from trimtab.cli.table_options import TableOptions

if TYPE_CHECKING:
    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.serving.run import Run


class Host(StrEnum):
    """The program that runs the policy."""

    SIM = "sim"
    LIVE = "live"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "run",
        epilog=examples(
            "trimtab run tiny --policy power-of-d(d=3)+edf",
            "trimtab run tiny --slow all@100+60x0.5",
            "trimtab run tiny --policy my_policy.py:MyPolicy --json",
            "trimtab run tiny --policy least-connections --host live --speed 10",
        ),
    )(grouped(run))


def run(
    options: ScenarioOptions,
    rows: TraceRows,
    table: TableOptions,
    policy: Annotated[
        str,
        policy_option(
            "NAME, NAME+ORDER, file.py:Class or module:Class; (parameter=value) may follow.", has_default=True
        ),
    ] = "least-expected-wait",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    host: Annotated[
        Host, typer.Option(help="Virtual time, or in-process workers on the wall clock.")
    ] = Host.SIM,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Live: scenario seconds per second of the wall clock.")
    ] = 1.0,
    out: Annotated[Path | None, out_option()] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one policy on a scenario and print its metrics."""
    chosen = options.chosen(rows, table)
    if out is not None:
        _check_out(out)
    read_ahead(chosen, quiet=quiet or json)
    done = _run(chosen, policy, seed, host, speed, quiet=quiet or json)
    if json:
        print_json(done.to_dict())
    else:
        _print_run(done, quiet=quiet)
    if out is not None:
        _write(done, out, quiet=quiet or json)


def _run(scenario: Scenario, policy: str, seed: int, host: Host, speed: float, *, quiet: bool) -> Run:
    total = scenario.n_requests()
    with progress_bar(f"{policy} on {scenario.name}", quiet=quiet) as progress:

        def arrived(count: int) -> None:
            progress(count, total)

        from trimtab.experiments.serving.run import run_on_clock, simulate

        if host is Host.LIVE:
            return run_on_clock(scenario, policy, seed, speed=speed, progress=arrived, notice=progress.say)
        return simulate(scenario, policy, seed, progress=arrived, notice=progress.say)


def _print_run(done: Run, *, quiet: bool) -> None:
    from trimtab.report.terminal_tables import queue_table, run_table

    title = f"{done.policy} on {done.scenario.name}, seed {done.seed}, load {done.inputs.offered_load:.3g}"
    show(run_table(title, done.metrics, None if done.bound is None else done.bound.mean_s))
    if done.queue_summaries:
        show(queue_table(done.queue_summaries))
    for text in done.notes():
        note(f"note: {text}", quiet=quiet)


def _check_out(out: Path) -> None:
    from trimtab.report.whole_files import check_writable

    check_writable(out)


def _write(done: Run, out: Path, *, quiet: bool) -> None:
    from trimtab.report.results_folder import write_run

    note_written(write_run(done, out), quiet=quiet)
