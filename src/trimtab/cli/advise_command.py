"""`trimtab advise`: what to do about a trace on a cluster, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.help_texts import examples
from trimtab.cli.option_groups import grouped
from trimtab.cli.output import note, print_json, spinner
from trimtab.cli.shared_options import (
    Json,
    Quiet,
    Simulations,
    TraceRows,
    policies_option,
    read_ahead,
    with_rows,
)
from trimtab.cli.table_options import TableOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "advise",
        epilog=examples(
            "trimtab advise trace.csv cluster.yaml",
            "trimtab advise recordings/",
            "trimtab advise trace.csv cluster.yaml --load 0.8 --policy late-binding --policy round-robin",
        ),
    )(grouped(advise))


def advise(
    trace: Annotated[Path, typer.Argument(help="The requests.", metavar="TRACE")],
    rows: TraceRows,
    table: TableOptions,
    cluster: Annotated[
        Path | None, typer.Argument(help="Its nodes; a recording names its own.", metavar="CLUSTER")
    ] = None,
    load: Annotated[
        float | None, typer.Option("--load", help="Scale arrival times to this load.", metavar="X")
    ] = None,
    policy: Annotated[list[str] | None, policies_option("Compare", "six that cost little time")] = None,
    jobs: Simulations = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say in words which policy fits, what limits the fleet, and what one more node would bring."""
    from trimtab.experiments.scenario import resolve_scenario
    from trimtab.experiments.serving.advice import advice_figures
    from trimtab.report.advice_texts import advice

    scenario = with_rows(resolve_scenario(trace=trace, cluster=cluster, load=load), rows, table)
    read_ahead(scenario, quiet=quiet or json)
    with spinner(f"simulating {scenario.name}", quiet=quiet or json):
        figures = advice_figures(scenario, policy, jobs=jobs)
    said = advice(figures)
    if json:
        print_json({"advice": said, "comparison": figures.comparison.to_dict()})
        return
    for topic, sentences in said.items():
        print(f"{topic}")
        for sentence in sentences:
            print(f"  {sentence}")
    for text in figures.comparison.notes():
        note(f"note: {text}", quiet=quiet)
