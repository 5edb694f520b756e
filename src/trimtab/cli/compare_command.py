"""`trimtab compare`: policies on the same requests or training jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, note_folded, note_written, print_json, stdout_console
from trimtab.cli.runs_progress import RunsReporter, runs_progress
from trimtab.cli.shared_options import (
    OUTPUT_PANEL,
    TRACE_PANEL,
    Json,
    Quiet,
    Report,
    ScenarioOptions,
    Simulations,
    SimulationsOn,
    Slo,
    TraceRows,
    out_option,
    policies_option,
    read_ahead,
)
from trimtab.cli.table_options import TableOptions

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison, Interrupted, PlannedRuns
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
            "trimtab compare llm-chat --slo 'ttft_p99<2s, tpot_p99<80ms, goodput>0.95'",
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
    sweep: Annotated[
        bool | None,
        typer.Option(
            "--sweep/--no-sweep",
            help="Also compare at other loads.  "
            "[dim]Default: up to 100,000 requests or 1,000 training jobs[/dim]",
        ),
    ] = None,
    jobs: Simulations = None,
    on: SimulationsOn = "processes",
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
    slo: Slo = None,
    out: Annotated[Path, out_option()] = DEFAULT_OUT,
    report: Report = True,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing",
            help="Also measure the time of a decision and of a plan.",
            rich_help_panel=OUTPUT_PANEL,
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
    from trimtab.experiments.compare import Interrupted
    from trimtab.experiments.serving.objectives import met_by, objectives_among
    from trimtab.report.results_folder import write_results

    kind, scenario = options.of_any_kind(rows, table, profiles=profiles, policies=policy, seeds=seeds)
    objectives = objectives_among(slo, kind.metrics, kind.title, scenario)
    read_ahead(scenario, quiet=quiet or json)
    wanted = (sort, *(metric or ()))
    of_trace = {"--limit": "limit", "--sample": "rows"} if options.trace is not None else {}
    shorter = [option for option, part in of_trace.items() if part not in kind.untaken]
    try:
        comparison = _compare(
            kind, scenario, out, wanted, shorter, sweep=sweep, jobs=jobs, on=on, quiet=quiet or json
        )
    except Interrupted as interrupt:
        if interrupt.finished is not None and not json:
            _print_finished(interrupt, sort or scenario.sort_by, metric, quiet=quiet)
        raise
    timings = kind.times(scenario) if timing else []
    written = write_results(comparison, out, with_report=report)
    if json:
        timed = {"timing": [asdict(t) for t in timings]} if timing else {}
        met = {"met_by": met_by(comparison, objectives)} if objectives else {}
        print_json({**comparison.to_dict(), **timed, **met})
        return
    _print(comparison, sort or comparison.scenario.sort_by, metric, timings)
    for objective, policies in met_by(comparison, objectives).items():
        stdout_console().print(f"{objective}: met by {', '.join(policies) or 'no policy'}", markup=False)
    note_folded(comparison.notes(), out / "results.json", quiet=quiet)
    note_written(written, quiet=quiet)


def _compare(
    kind: AnyScenarioKind,
    scenario: ScenarioFile,
    out: Path,
    wanted: Sequence[str | None],
    shorter: Sequence[str],
    *,
    sweep: bool | None,
    jobs: int | None,
    on: str,
    quiet: bool,
) -> Comparison:
    from trimtab.experiments.compare import run_comparison
    from trimtab.report.comparison_columns import named_metrics

    named_metrics([scenario.sort_by, *filter(None, wanted)], kind.metrics)
    loads = {None: None, False: (), True: kind.sweep_loads(scenario, None)}[sweep]
    with runs_progress(f"comparing on {scenario.name}", quiet=quiet) as progress:
        return run_comparison(
            kind,
            scenario,
            sweep=loads,
            out=out,
            jobs=jobs,
            on=on,
            progress=progress,
            notice=progress.say,
            planned=None if quiet else lambda plan: _tell_plan(plan, progress, shorter),
        )


def _tell_plan(plan: PlannedRuns, progress: RunsReporter, of_trace: Sequence[str]) -> None:
    """A line of what takes long, and one of what is left out because of it."""
    if plan.is_long:
        counts = {"--no-sweep": plan.loads, "--seeds": plan.seeds, "--policy": plan.policies}
        options = [*(option for option, count in counts.items() if count > 1), *of_trace]
        shorter = f"; {', '.join(options)} make it shorter" if options else ""
        progress.say(f"{plan}{shorter}")
    if plan.left_out:
        loads = ", ".join(f"{load:g}" for load in plan.left_out)
        progress.say(f"loads {loads} are left out above {plan.sweep_up_to:,} {plan.items}; --sweep adds them")


def _print_finished(interrupt: Interrupted, sort: str, metrics: list[str] | None, *, quiet: bool) -> None:
    """The table of the finished runs that can be compared."""
    assert interrupt.finished is not None
    _print(interrupt.finished, sort, metrics, [])
    seeds = ", ".join(map(str, interrupt.finished.seeds))
    which = f"seed {seeds}" if len(interrupt.finished.seeds) == 1 else f"seeds {seeds}"
    note(f"{interrupt.done:,} of {interrupt.total:,} runs are finished; the table has {which}", quiet=quiet)


def _print(comparison: Comparison, sort: str, metrics: list[str] | None, timings: list[PolicyTiming]) -> None:
    from trimtab.report.terminal_tables import comparison_table, timing_table

    console = stdout_console()
    console.print(comparison_table(comparison, sort, metrics, console.width))
    if timings:
        console.print(timing_table(timings))
