"""`trimtab size`: the cheapest fleet that meets objectives on a trace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, progress_bar, show, where, write_yaml
from trimtab.cli.shared_options import Json, Quiet, TraceRows, policies_option, read_ahead, with_rows
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.experiments.serving.sizing import Fleet, FleetSizing

DEFAULT_OUT = Path("fleet.yaml")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "size",
        epilog=examples(
            "trimtab size trace.csv --node-types types.yaml --slo 'completion_p99<8s, wait_p99<1s'",
            "trimtab size trace.csv --node-types types.yaml --slo 'slo_attained>99%' --fail 1 --growth 1.5",
            "trimtab size t.csv --node-types types.yaml --slo 'queueing_mean<1s' --policy auto --html s.html",
        ),
    )(grouped(size))


def size(
    trace: Annotated[Path, typer.Argument(help="The requests.", metavar="TRACE")],
    rows: TraceRows,
    table: TableOptions,
    node_types: Annotated[
        Path,
        typer.Option(
            "--node-types", help="Node types with prices, and classes: a cluster file.", metavar="FILE"
        ),
    ],
    slo: Annotated[
        str, typer.Option("--slo", help="Objectives: 'completion_p99<8s, wait_p99<1s'.", metavar="OBJECTIVES")
    ],
    policy: Annotated[
        list[str] | None,
        policies_option("Serve with", "late-binding; auto: the best of three for each fleet"),
    ] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option("--max-usd-per-hour", min=0.0, help="Most that the nodes may cost.")
    ] = None,
    max_nodes: Annotated[int, typer.Option("--max-nodes", min=1, max=500, help="Most nodes.")] = 64,
    fail: Annotated[
        int,
        typer.Option(
            "--fail",
            min=0,
            help="Nodes that may be down: those of most capacity; paid as paid_while_down says.",
        ),
    ] = 0,
    growth: Annotated[
        float, typer.Option("--growth", min=0.01, help="Factor on the arrival rate of the trace.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    seconds: Annotated[
        float, typer.Option("--time-limit", min=1.0, help="Seconds after which the best so far is given.")
    ] = 100.0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write the fleet as a cluster file here.", metavar="FILE")
    ] = DEFAULT_OUT,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with cost against the objectives.", metavar="FILE"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest mix of nodes that meets objectives, with a margin for failures and growth."""
    from trimtab.experiments.scenario.loader import scenario_on
    from trimtab.experiments.serving.objectives import objectives_of
    from trimtab.experiments.serving.sizing import load_node_types, size_fleet
    from trimtab.report.whole_files import check_file

    objectives, silent = objectives_of(slo), quiet or json
    for path in filter(None, (out, html)):
        check_file(path)
    scenario = with_rows(scenario_on(trace, load_node_types(node_types)), rows, table)
    read_ahead(scenario, quiet=silent)
    with progress_bar("sizing", quiet=silent) as progress:

        def told(simulated: int, left: int) -> None:
            progress(simulated, simulated + left)

        done = size_fleet(
            scenario,
            objectives,
            policy or ("late-binding",),
            usd_per_hour_max=float("inf") if max_usd_per_hour is None else max_usd_per_hour,
            nodes_max=max_nodes,
            fail=fail,
            growth=growth,
            seed=seed,
            seconds_max=seconds,
            told=told,
        )
    _write(done, out, html, trace)
    if json:
        print_json(_as_json(done, out))
        return
    show(_table(done))
    for text in notes_of(done):
        note(f"note: {text}", quiet=quiet)
    for path in filter(None, (out, html)):
        note(where(path, path.stat().st_size), quiet=quiet)


def _write(done: FleetSizing, out: Path, html: Path | None, trace: Path) -> None:
    objectives = ", ".join(map(str, done.objectives))
    head = f"{'Cheapest' if done.best else 'Nearest'} fleet for {trace.name} and {objectives}."
    write_yaml(out, head, done.content())
    if html is not None:
        from trimtab.report.short_pages import write_sizing_report

        write_sizing_report(done, html, f"Fleets for {trace.name}", notes_of(done))


def notes_of(done: FleetSizing) -> list[str]:
    """Notes for readers of the figures."""
    from trimtab.experiments.serving.warnings import serving_model

    notes = []
    if done.best is None:
        worst = max(done.objectives, key=lambda o: o.overshoot(done.nearest.metrics))
        found = done.nearest.metrics[worst.metric]
        notes.append(
            f"no fleet meets the objectives; the nearest is {done.nearest.in_words()}: {worst.metric} is "
            f"{found:.3g}, the objective {worst}"
        )
    if not done.is_proven:
        left = f"{done.untested:,} cheaper fleets not simulated"
        notes.append(f"the time was over with {left}: none of them is ruled out")
    else:
        which = f"{'cheaper ' if done.best else ''}fleet of at most {counted(done.nodes_max, 'node')}"
        notes.append(f"no {which} meets the objectives, if one more node never harms")
    if done.fail:
        notes.append(
            f"figures are those with the {done.fail} strongest nodes down all the time, "
            f"{'and still paid' if done.pays_all else 'and paid where paid_while_down is true'}"
        )
    if done.growth != 1.0:
        notes.append(f"arrivals are {done.growth:g} times as fast as in the trace")
    notes.append(serving_model(done.part.cluster))
    return notes


def _shown(done: FleetSizing) -> list[Fleet]:
    """The best fleet and those around it on the curve of cost against the first objective."""
    chosen = done.best or done.nearest
    front = done.frontier()
    below = [fleet for fleet in front if fleet.usd_per_hour < chosen.usd_per_hour][-3:]
    above = [fleet for fleet in front if fleet.usd_per_hour > chosen.usd_per_hour][:3]
    return [*below, chosen, *above]


def _table(done: FleetSizing) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, caption_justify="left")
    kept = sum(fleet.is_met for fleet in done.fleets)
    table.caption = (
        f"{counted(done.requests, 'request')} in {done.span_s / 3600.0:.3g} h; "
        f"{counted(len(done.fleets), 'fleet')} simulated, "
        f"{kept:,} meet {', '.join(map(str, done.objectives))}. "
        f"{'→ is the cheapest' if done.best else '~ misses least'}; around it what less and more money gives."
    )
    table.add_column("")
    table.add_column("fleet", overflow="fold")
    for title in ("USD/h", "USD", "USD/1,000", "load %", *(o.metric for o in done.objectives)):
        table.add_column(title.replace("_", " "), justify="right")
    table.add_column("policy", overflow="fold")
    for fleet in _shown(done):
        mark = "→" if fleet is done.best else "~" if fleet is done.nearest and done.best is None else ""
        found = (f"{fleet.metrics[o.metric]:.4g}" for o in done.objectives)
        usd = (f"{fleet.usd_per_hour:.4g}", f"{fleet.usd:.4g}", f"{1e3 * fleet.usd / done.requests:.3g}")
        cells = (mark, fleet.in_words(), *usd, f"{100 * fleet.offered_load:.3g}", *found, fleet.policy)
        table.add_row(*map(Text, cells), style="bold" if mark == "→" else None)
    return table


def _as_json(done: FleetSizing, out: Path) -> dict[str, object]:
    return {
        "objectives": [str(objective) for objective in done.objectives],
        "is_met": done.best is not None,
        "best": None if done.best is None else asdict(done.best),
        "nearest": asdict(done.nearest),
        "frontier": [asdict(fleet) for fleet in done.frontier()],
        "simulated": len(done.fleets),
        "is_proven": done.is_proven,
        "untested": done.untested,
        "fail": done.fail,
        "growth": done.growth,
        "cluster_file": str(out),
        "notes": notes_of(done),
    }
