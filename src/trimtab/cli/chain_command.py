"""`trimtab chain`: predict runs of chains, and size a cluster for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli import chain_exchange_command, chain_look_command, chain_run_command
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, progress_bar, show, spinner
from trimtab.cli.shared_options import Json, Quiet, ScenarioOptions, TraceRows, policy_option, read_ahead
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.serving.chain_sizing import Sizing
    from trimtab.experiments.serving.run import Run

DEFAULT_POLICY = "least-expected-completion"

app = typer.Typer(
    no_args_is_help=True,
    help="Run chains, predict their runs, and size a cluster for them.",
    epilog=examples(
        "trimtab chain run film.yaml --input prompts.jsonl",
        "trimtab chain simulate multimodal",
        "trimtab chain size multimodal --slo 'completion_p99_s<45'",
    ),
)
chain_run_command.register(app)
chain_look_command.register(app)
app.add_typer(chain_exchange_command.importing, name="import")
app.add_typer(chain_exchange_command.exporting, name="export")


@app.command(
    "simulate",
    epilog=examples(
        "trimtab chain simulate multimodal",
        "trimtab chain simulate --trace workflow.json --cluster examples/clusters/workflows.yaml --json",
    ),
)
@grouped
def simulate_chains(
    options: ScenarioOptions,
    rows: TraceRows,
    policy: Annotated[str, policy_option("NAME or NAME+ORDER.", has_default=True)] = DEFAULT_POLICY,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict when runs end, where their time goes, and which stage is the bottleneck."""
    from trimtab.experiments.serving.run import simulate

    scenario = _chosen(options, rows, quiet=quiet or json)
    total = scenario.n_requests()
    with progress_bar(f"{policy} on {scenario.name}", quiet=quiet or json) as progress:
        done = simulate(
            scenario, policy, seed, progress=lambda count: progress(count, total), notice=progress.say
        )
    _require_chains(done)
    if json:
        print_json(done.to_dict())
    else:
        _print_stages(done)
        for text in done.notes():
            note(f"note: {text}", quiet=quiet)


@app.command("size", epilog=examples("trimtab chain size multimodal --slo 'completion_p99_s<45' --seeds 2"))
@grouped
def size_cluster(
    options: ScenarioOptions,
    rows: TraceRows,
    slo: Annotated[
        str,
        typer.Option("--slo", help="Metric and its largest value: completion_p99_s<45.", metavar="METRIC<S"),
    ],
    policy: Annotated[str, policy_option("NAME or NAME+ORDER.", has_default=True)] = DEFAULT_POLICY,
    seeds: Annotated[int, typer.Option(min=1, max=50, help="Seeds to average over.")] = 2,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add nodes one by one, the most useful for its price first, until the objective is met."""
    from trimtab.experiments.serving.chain_sizing import size_chains
    from trimtab.experiments.serving.objectives import Objective
    from trimtab.experiments.serving.run import simulate

    objective = Objective.parsed(slo)
    scenario = _chosen(options, rows, quiet=quiet or json)
    with spinner("simulating …", quiet=quiet or json):
        before = simulate(scenario, policy, 0)
        _require_chains(before)
        sizing = size_chains(scenario, policy, objective, seeds)
    if json:
        print_json(_as_json(sizing, before))
    else:
        _print_sizing(sizing, before)


def _chosen(options: ScenarioOptions, rows: TraceRows, *, quiet: bool) -> Scenario:
    scenario = options.chosen(rows)
    read_ahead(scenario, quiet=quiet)
    return scenario


def _require_chains(done: Run) -> None:
    if not done.stage_summaries:
        from trimtab.errors import UsageError

        expected = "`chains` in the scenario and its mix, as in `multimodal`, or a trace of runs"
        raise UsageError("has no runs of chains", file=done.scenario.name, expected=expected)


def _print_stages(done: Run) -> None:
    from rich.table import Table

    from trimtab.metrics.chain_metrics import bottleneck_text, entering_frac
    from trimtab.report.number_formats import load_text

    runs = done.metrics
    title = (
        f"{done.policy} on {done.scenario.name}, seed {done.seed}, load {load_text(done.inputs.offered_load)}"
    )
    caption = (
        f"completion: mean {runs['completion_mean_s']:.4g} s, median {runs['completion_p50_s']:.4g} s, "
        f"p99 {runs['completion_p99_s']:.4g} s; {runs['stretch_mean']:.3g} x the critical path; "
        f"makespan {runs['makespan_s']:.4g} s; moved {runs['moved_gib']:.4g} GiB\n"
        f"{bottleneck_text(done.stage_summaries)}.{_store_text(done)}"
    )
    table = Table(title=title, caption=caption, caption_justify="left", title_justify="left")
    table.add_column("stage", overflow="fold")
    for heading in (
        "served",
        "waiting (s)",
        "service (s)",
        "moved (GiB)",
        "of the paths: waiting",
        "loading",
        "service",
    ):
        table.add_column(heading, justify="right")
    table.add_row("(waiting to enter)", *("",) * 4, f"{100 * entering_frac(done.stage_summaries):.1f} %")
    for stage in done.stage_summaries:
        table.add_row(
            stage.stage,
            f"{stage.served:,}",
            f"{stage.queueing_s:.4g}",
            f"{stage.service_s:.4g}",
            f"{stage.moved_gib:.4g}",
            f"{100 * stage.path_queueing_frac:.1f} %",
            f"{100 * stage.path_loading_frac:.1f} %",
            f"{100 * stage.path_service_frac:.1f} %",
        )
    show(table)


def _store_text(done: Run) -> str:
    """The hit rate of the store of stage results beside the best possible; empty without a store."""
    best_frac = done.to_dict()["best_store_hit_frac"]
    if best_frac != best_frac:
        return ""
    hit_frac = done.metrics["result_hit_frac"]
    most = f"no store of its size more than {100 * best_frac:.1f} %"
    return f" The store answers {100 * hit_frac:.1f} % of the repeatable stages; {most}."


def _print_sizing(sizing: Sizing, before: Run) -> None:
    from rich.table import Table

    from trimtab.metrics.chain_metrics import bottleneck_text

    objective = sizing.objective
    wanted = f"{objective.metric} at most {objective.value:g}"
    verdict = "met" if sizing.is_met else f"not met after {counted(len(sizing.steps) - 1, 'node')}"
    caption = f"{wanted}: {verdict}. As it is, {bottleneck_text(before.stage_summaries)}."
    table = Table(caption=caption, caption_justify="left")
    table.add_column("one node more of")
    table.add_column(objective.metric, justify="right")
    table.add_column("USD per hour", justify="right")
    for step in sizing.steps:
        table.add_row(step.added or "(as it is)", f"{step.metric:.4g}", f"{step.usd_per_hour:.4g}")
    show(table)


def _as_json(sizing: Sizing, before: Run) -> dict[str, Any]:
    from trimtab.metrics.chain_metrics import bottleneck_text

    return {
        "objective": asdict(sizing.objective),
        "is_met": sizing.is_met,
        "steps": [asdict(step) for step in sizing.steps],
        "bottleneck": bottleneck_text(before.stage_summaries),
    }
