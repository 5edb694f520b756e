"""`trimtab advise`: what to do about a trace of requests or training jobs on a cluster, in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, spinner
from trimtab.cli.shared_options import (
    Json,
    Quiet,
    ScenarioOptions,
    Simulations,
    Slo,
    TraceRows,
    policies_option,
    read_ahead,
)
from trimtab.cli.table_options import TableOptions

if TYPE_CHECKING:
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "advise",
        epilog=examples(
            "trimtab advise trace.csv cluster.yaml",
            "trimtab advise recordings/",
            "trimtab advise jobs.csv cluster.yaml --profiles speeds/",
            "trimtab advise trace.csv cluster.yaml --load 0.8 --policy late-binding --policy round-robin",
            "trimtab advise trace.csv cluster.yaml --slo 'ttft_p99<2s, tpot_p99<80ms, goodput>0.95'",
        ),
    )(grouped(advise))


def advise(
    trace: Annotated[Path, typer.Argument(help="The requests or training jobs.", metavar="TRACE")],
    rows: TraceRows,
    table: TableOptions,
    cluster: Annotated[
        Path | None, typer.Argument(help="Its nodes; a recording names its own.", metavar="CLUSTER")
    ] = None,
    load: Annotated[
        float | None, typer.Option("--load", help="Scale arrival times to this load.", metavar="X")
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option("--profiles", help="Take the speeds of training jobs from here.", metavar="PATH"),
    ] = None,
    policy: Annotated[list[str] | None, policies_option("Compare", "six that cost little time")] = None,
    slo: Slo = None,
    jobs: Simulations = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say in words which policy fits, what limits the cluster, and what one more node would bring."""
    from trimtab.experiments.serving.objectives import met_by, objectives_among
    from trimtab.report.advice_texts import objective_texts

    options = ScenarioOptions(trace=trace, cluster=cluster, load=load)
    kind, scenario = options.of_any_kind(rows, table, profiles=profiles)
    objectives = objectives_among(slo, kind.metrics, kind.title, scenario)
    read_ahead(scenario, quiet=quiet or json)
    with spinner(f"simulating {scenario.name}", quiet=quiet or json):
        said, comparison = _advised(scenario, policy, jobs)
    met = {"met_by": met_by(comparison, objectives)} if objectives else {}
    if objectives:
        said["Objectives"] = objective_texts(comparison, objectives)
    if json:
        print_json({"advice": said, "comparison": comparison.to_dict(), **met})
        return
    for topic, sentences in said.items():
        print(f"{topic}")
        for sentence in sentences:
            print(f"  {sentence}")
    for text in comparison.notes():
        note(f"note: {text}", quiet=quiet)


def _advised(
    scenario: ScenarioFile, policies: list[str] | None, jobs: int | None
) -> tuple[dict[str, list[str]], Comparison]:
    """The sentences by topic, and what they rest on."""
    from trimtab.experiments.serving.advice import advice_figures
    from trimtab.experiments.training.training_advice import training_advice
    from trimtab.experiments.training.training_scenario import TrainingScenario
    from trimtab.report.advice_texts import advice, advice_on_training

    if isinstance(scenario, TrainingScenario):
        found = training_advice(scenario, policies, jobs=jobs)
        return advice_on_training(found), found.comparison
    figures = advice_figures(cast("Scenario", scenario), policies, jobs=jobs)
    return advice(figures), figures.comparison
