"""`trimtab compare`: policies on the same requests or training jobs."""

from __future__ import annotations

from collections.abc import Sequence
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
    TRACE_PANEL,
    Json,
    Quiet,
    ScenarioOptions,
    Simulations,
    TraceRows,
    out_option,
    policies_option,
    read_ahead,
)
from trimtab.cli.table_options import TableOptions

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.compare.kind import PolicyTiming
    from trimtab.experiments.kinds import AnyScenarioKind
    from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile

DEFAULT_OUT = Path("trimtab-out")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "compare",
        epilog=examples(
            "trimtab compare",
            "trimtab compare tiny --policy random --policy least-expected-wait+edf --seeds 10",
            "trimtab compare --trace trace.csv --cluster cluster.yaml --load 0.8",
            "trimtab compare tiny --fail node[3]@600+300 --burst 3x@1200+120 --nodes small=+2",
            "trimtab compare elastic-training --policy tiresias --policy elasticflow",
            "trimtab compare --trace jobs.csv --cluster cluster.yaml --profiles profiles/",
            "trimtab compare pollux-simulator --trace workload-1.csv --profiles profiles/",
            "trimtab compare my.yaml --policy my_policy.py:MyPolicy --sort completion_p99_s --json",
        ),
    )(grouped(compare))


def compare(
    options: ScenarioOptions,
    rows: TraceRows,
    table: TableOptions,
    policy: Annotated[list[str] | None, policies_option("Compare", "the scenario's")] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", "-n", min=1, help="Number of seeds.  [dim]Default: the scenario's[/dim]"),
    ] = None,
    sweep: Annotated[bool, typer.Option(help="Also compare at other loads.", metavar=FLAG)] = True,
    jobs: Simulations = None,
    on: Annotated[
        str,
        typer.Option(
            help="Where simulations run: processes of this machine, ray, or ray://HOST:PORT.",
            metavar="PLACE",
        ),
    ] = "processes",
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
    profiles: Annotated[
        Path | None,
        typer.Option(
            "--profiles",
            help="Take the speeds of training jobs from this folder or throughputs.json; "
            "files tell its kind.",
            metavar="PATH",
            rich_help_panel=TRACE_PANEL,
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare policies on the same requests or training jobs over several seeds, beside a lower bound.

    Ways of sharing nodes between both are compared on shared-cluster.
    """
    from trimtab.report.results_folder import write_results

    kind, scenario = options.of_any_kind(rows, table, profiles=profiles, policies=policy, seeds=seeds)
    read_ahead(scenario, quiet=quiet or json)
    wanted = (sort, *(metric or ()))
    comparison = _compare(kind, scenario, out, wanted, sweep=sweep, jobs=jobs, on=on, quiet=quiet or json)
    timings = kind.times(scenario) if timing else []
    written = write_results(comparison, out, with_report=report)
    if json:
        timed = {"timing": [asdict(t) for t in timings]} if timing else {}
        print_json({**comparison.to_dict(), **timed})
        return
    _print(comparison, sort or comparison.scenario.sort_by, metric, timings)
    for text in comparison.notes():
        note(f"note: {text}", quiet=quiet)
    note_written(written, quiet=quiet)


def _compare(
    kind: AnyScenarioKind,
    scenario: ScenarioFile,
    out: Path,
    wanted: Sequence[str | None],
    *,
    sweep: bool,
    jobs: int | None,
    on: str,
    quiet: bool,
) -> Comparison:
    from trimtab.experiments.compare import run_comparison
    from trimtab.report.comparison_columns import named_metrics

    named_metrics([scenario.sort_by, *filter(None, wanted)], kind.metrics)
    loads = None if sweep else ()
    with progress_bar(f"comparing on {scenario.name}", quiet=quiet) as progress:
        try:
            return run_comparison(
                kind, scenario, sweep=loads, out=out, jobs=jobs, on=on, progress=progress, notice=progress.say
            )
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"finished runs are in {out}; the same command continues from there")
            raise


def _print(comparison: Comparison, sort: str, metrics: list[str] | None, timings: list[PolicyTiming]) -> None:
    from trimtab.report.terminal_tables import comparison_table, timing_table

    console = stdout_console()
    console.print(comparison_table(comparison, sort, metrics, console.width))
    if timings:
        console.print(timing_table(timings))
