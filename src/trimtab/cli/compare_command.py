"""`trimtab compare`: policies on the same requests."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.help_texts import FLAG, examples
from trimtab.cli.option_groups import grouped
from trimtab.cli.output import note, note_written, print_json, progress_bar, stdout_console
from trimtab.cli.shared_options import (
    OUTPUT_PANEL,
    Json,
    Quiet,
    ScenarioOptions,
    TraceRows,
    out_option,
    policies_option,
    read_ahead,
)

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.serving.policy_timing import PolicyTiming

DEFAULT_OUT = Path("trimtab-out")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "compare",
        epilog=examples(
            "trimtab compare",
            "trimtab compare tiny --policy random --policy least-expected-wait+edf --seeds 10",
            "trimtab compare --trace trace.csv --cluster cluster.yaml --load 0.8",
            "trimtab compare my.yaml --policy my_policy.py:MyPolicy --sort completion_p99_s --json",
        ),
    )(grouped(compare))


def compare(
    options: ScenarioOptions,
    rows: TraceRows,
    policy: Annotated[list[str] | None, policies_option("Compare", "the scenario's")] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", "-n", min=1, help="Number of seeds.  [dim]Default: the scenario's[/dim]"),
    ] = None,
    sweep: Annotated[bool, typer.Option(help="Also compare at other loads.", metavar=FLAG)] = True,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Number of processes.  [dim]Default: one per core[/dim]"),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort by this metric.  [dim]Default: the scenario's[/dim]",
            autocompletion=completion.metrics,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            help="Show this metric; may be repeated.",
            autocompletion=completion.metrics,
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    out: Annotated[Path, out_option()] = DEFAULT_OUT,
    report: Annotated[
        bool, typer.Option(help="Write report.html.", rich_help_panel=OUTPUT_PANEL, metavar=FLAG)
    ] = True,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing",
            help="Also measure the time of a decision and of a plan.",
            rich_help_panel=OUTPUT_PANEL,
            metavar=FLAG,
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare policies on the same requests over several seeds, beside a lower bound."""
    from trimtab.metrics import METRICS
    from trimtab.report.comparison_columns import named_metrics
    from trimtab.report.results_folder import write_results

    chosen = options.chosen(rows, policies=policy, seeds=seeds)
    read_ahead(chosen, quiet=quiet or json)
    named_metrics([sort or chosen.sort_by, *(metric or ())], METRICS)
    comparison = _compare(chosen, out, sweep=sweep, jobs=jobs, quiet=quiet or json)
    written = write_results(comparison, out, with_report=report)
    timings = _timings(chosen) if timing else []
    if json:
        timed = {"timing": [asdict(t) for t in timings]} if timing else {}
        print_json({**comparison.to_dict(), **timed})
        return
    _print(comparison, sort or chosen.sort_by, metric, timings)
    for text in comparison.notes():
        note(f"note: {text}", quiet=quiet)
    note_written(written, quiet=quiet)


def _compare(scenario: Scenario, out: Path, *, sweep: bool, jobs: int | None, quiet: bool) -> Comparison:
    from trimtab.experiments.serving.compare_policies import compare

    loads = None if sweep else ()
    with progress_bar(f"comparing on {scenario.name}", quiet=quiet) as progress:
        try:
            return compare(scenario, sweep=loads, out=out, jobs=jobs, progress=progress, notice=progress.say)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"finished runs are in {out}; the same command continues from there")
            raise


def _timings(scenario: Scenario) -> list[PolicyTiming]:
    from trimtab.experiments.serving.policy_timing import time_policies
    from trimtab.policies import DEFAULT_COMPARISON

    return time_policies(scenario, scenario.policies or DEFAULT_COMPARISON, scenario.seed_list()[0])


def _print(comparison: Comparison, sort: str, metrics: list[str] | None, timings: list[PolicyTiming]) -> None:
    from trimtab.report.terminal_tables import comparison_table, timing_table

    console = stdout_console()
    console.print(comparison_table(comparison, sort, metrics, console.width))
    if timings:
        console.print(timing_table(timings))
