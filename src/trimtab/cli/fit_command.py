"""`trimtab fit`: service times from recorded ones, as a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, progress_bar, show, where, write_yaml
from trimtab.cli.shared_options import Json, Quiet, TraceRows
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.experiments.service_fit import FittedCluster

DEFAULT_OUT = Path("fitted-cluster.yaml")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "fit",
        epilog=examples(
            "trimtab fit recordings/",
            "trimtab fit log.csv --cluster cluster.yaml --map node=host --map recorded_s=latency_ms*0.001",
            "trimtab fit log.parquet --cluster cluster.yaml --max-in-flight 2 --html fit.html",
        ),
    )(grouped(fit))


def fit(
    trace: Annotated[
        Path, typer.Argument(help="Trace with recorded_s, or a recording of the gateway.", metavar="TRACE")
    ],
    rows: TraceRows,
    table: TableOptions,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Nodes that served it; a recording names its own.", metavar="FILE"),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight", min=1, help="Take only rows that met at most so many requests on their node."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Write the cluster with its service times here.", metavar="FILE"),
    ] = DEFAULT_OUT,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the residuals.", metavar="FILE")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit service times, fixed and per unit, to recorded ones: for each class and node type."""
    from trimtab.experiments.service_fit import fit_service
    from trimtab.report.whole_files import check_file
    from trimtab.traces import read_trace

    mapping = table.over(None) if table.given() else None
    for path in filter(None, (out, html)):
        check_file(path)
    with progress_bar(f"reading {trace.name}", quiet=quiet or json) as progress:
        read = read_trace(trace, rows.format or "auto", mapping, rows.options(), progress)
    fitted = fit_service(read, cluster, max_in_flight=max_in_flight)
    write_yaml(out, f"Service times fitted to {read.file}; see `trimtab fit`.", fitted.content())
    if html is not None:
        from trimtab.report.short_pages import write_fit_report

        write_fit_report(fitted, html, f"Service times of {trace.name}")
    if json:
        too_few = [{"class": c, "node_type": t, "rows": n} for (c, t), n in fitted.too_few.items()]
        print_json({"out": str(out), "fits": [each.to_dict() for each in fitted.fits], "too_few": too_few})
        return
    show(_table(fitted))
    for text in (*read.notes(), *_notes(fitted)):
        note(f"note: {text}", quiet=quiet)
    for path in filter(None, (out, html)):
        note(where(path, path.stat().st_size), quiet=quiet)


def _table(fitted: FittedCluster) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_justify="left")
    table.caption = "± 95 %; error: median of the last fifth of the rows, by a fit of the rows before."
    for title in ("class", "node type"):
        table.add_column(title)
    for title in ("rows", "fixed s", "per unit s", "R²", "error %", "per in flight %"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in fitted.fits:
        held = "–" if each.held_back_error is None else f"{100 * each.held_back_error:.1f}"
        table.add_row(
            each.class_name,
            each.node_type,
            f"{each.rows:,}",
            f"{each.fixed_s:.3g} ± {each.fixed_ci95_s:.1g}",
            f"{each.unit_s:.3g} ± {each.unit_ci95_s:.1g}",
            f"{each.r2:.3f}",
            held,
            f"{100 * each.per_in_flight_frac:+.2g}",
        )
    return table


def _notes(fitted: FittedCluster) -> list[str]:
    found = [f"{each.class_name} on {each.node_type}: {hint}" for each in fitted.fits for hint in each.hints]
    for (name, kind), rows in fitted.too_few.items():
        few = f"{counted(rows, 'row')}, which is too little, or all of one size"
        found.append(f"{name} on {kind}: {few}; scaled by speed instead")
    return found
