"""`trimtab trace`: import, show, audit, generate, convert, share and download traces."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, progress_bar, show, where
from trimtab.cli.shared_options import Json, Quiet, TraceRows, usage_error
from trimtab.cli.table_options import TableOptions
from trimtab.cli.trace_audit import audit_trace
from trimtab.cli.trace_import import import_trace
from trimtab.cli.trace_share import share_trace
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.traces import Trace, TraceSummary

RATE_BINS = 100

InFile = Annotated[Path, typer.Argument(help="CSV, JSONL (also as .gz) or Parquet.", metavar="FILE")]
OutFile = Annotated[
    Path,
    typer.Argument(
        help=".csv, .jsonl (also with .gz) or .parquet; .json for one run of a chain.", metavar="OUT"
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    help="Import, show, audit, generate, convert, share and download traces.",
    epilog=examples(
        "trimtab trace download azure-llm-2023-conv",
        "trimtab trace import log.csv --out trace.parquet",
        "trimtab trace show trace.csv --html trace.html",
    ),
)
app.command(
    "import",
    epilog=examples(
        "trimtab trace import log.csv --out trace.parquet",
        "trimtab trace import jan.csv feb.csv --out trace.parquet --where 'status == 200' --on-bad-row drop",
        "trimtab trace import log.csv --out t.parquet --map arrival_s=when --map output_tokens=out_tok",
        "trimtab trace import log.csv --out t.parquet --time-format '%d/%m/%Y %H:%M:%S' --encoding latin-1",
    ),
)(grouped(import_trace))
app.command(
    "audit",
    epilog=examples(
        "trimtab trace audit recordings/",
        "trimtab trace audit access.log --json",
    ),
)(grouped(audit_trace))
app.command(
    "share",
    epilog=examples(
        "trimtab trace share log.csv --out shared.csv --epsilon 1",
        "trimtab trace share log.csv --out shared.csv --epsilon 2 --public class=chat,batch --budget 4",
        "trimtab trace share log.csv --out shared.csv --epsilon 4 --unit tenant --bound 10",
        "trimtab trace share log.csv --out shared.csv --epsilon 1 --check llm-chat",
    ),
)(grouped(share_trace))


def _read(file: Path, rows: TraceRows, table: TableOptions, *, quiet: bool) -> Trace:
    from trimtab.traces import read_trace

    mapping = table.over(None) if table.given() else None
    with progress_bar(f"reading {file.name}", quiet=quiet) as progress:
        return read_trace(file, rows.format or "auto", mapping, rows.options(), progress)


@app.command(
    "show",
    epilog=examples(
        "trimtab trace show trace.csv",
        "trimtab trace show trace.csv --stop 600 --json",
        "trimtab trace show access.log --where 'status == 200' --on-bad-row drop",
    ),
)
@grouped
def show_trace(
    file: InFile,
    rows: TraceRows,
    table: TableOptions,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots.", metavar="FILE")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a summary of a trace: rate, burstiness, sizes, shares."""
    from trimtab.traces import summarise

    trace = _read(file, rows, table, quiet=quiet or json)
    summary = summarise(trace.table)
    if html is not None:
        _write_page(trace, summary, html, quiet=quiet or json)
    if json:
        origin = {"file": trace.file, "format": trace.format, "known_by": trace.known_by}
        repairs = [asdict(repair) for repair in trace.repairs]
        counts = {"rows_in_file": trace.rows_in_file, "dropped": dict(trace.dropped), "repairs": repairs}
        counts |= {"doubts": list(trace.doubts)}
        columns = {"size_rule": trace.size_rule, "unused_columns": list(trace.unused_columns)}
        print_json({**origin, **counts, **columns, **summary.to_dict()})
    else:
        _print_trace(trace, summary)


def _write_page(trace: Trace, summary: TraceSummary, html: Path, *, quiet: bool) -> None:
    from trimtab.report.short_pages import write_trace_report

    write_trace_report(summary, _rates(trace), html, size=_sizes(trace), title=Path(trace.file).name)
    note(where(html, html.stat().st_size), quiet=quiet)


def _print_trace(trace: Trace, summary: TraceSummary) -> None:
    from trimtab.report.terminal_plots import plot_rate, plot_sizes
    from trimtab.report.terminal_tables import trace_table

    print(f"{trace.file} ({counted(trace.rows_in_file, 'row')})\n{trace.format_in_words()}")
    for text in trace.notes():
        print(text)
    print(f"size, in work units: {trace.size_rule or 'missing, so runs need a column of it'}")
    if trace.unused_columns:
        print(f"unused columns: {', '.join(trace.unused_columns)}")
    show(trace_table(summary))
    if (rates := _rates(trace)) is not None:
        print(plot_rate(*rates))
    if (sizes := _sizes(trace)) is not None:
        print(plot_sizes(sizes))


def _sizes(trace: Trace) -> Any:
    """Sizes of the requests that have one; None if the trace has no sizes."""
    return trace.table["size"].drop_nulls().to_numpy() if "size" in trace.table.columns else None


def _rates(trace: Trace) -> Any:
    """Rate over time; None if all requests arrive at once."""
    from trimtab.traces import rate_series

    arrival_s = trace.table["arrival_s"]
    return rate_series(trace.table, RATE_BINS) if arrival_s[0] < arrival_s[-1] else None


@app.command(
    "convert",
    epilog=examples(
        "trimtab trace convert in.csv out.parquet --start 3600 --stop 7200 --sample 0.1",
        "trimtab trace convert workflow.json runs.jsonl      runs of chains",
        "trimtab trace convert runs.jsonl workflow.json      one run as WfFormat",
    ),
)
@grouped
def convert(
    file: InFile,
    out: OutFile,
    rows: TraceRows,
    table: TableOptions,
    quiet: Quiet = False,
) -> None:
    """Write a trace, or a slice or sample of it, in trimtab's columns; one run to .json as WfFormat."""
    from trimtab.traces import write_trace
    from trimtab.traces.write import write_runs

    trace = _read(file, rows, table, quiet=quiet)
    if trace.stages is None:
        write_trace(trace.table, out)
    else:
        write_runs(trace.table, trace.stages, out)
    for text in (trace.format_in_words(), *trace.notes()):
        note(text, quiet=quiet)
    note(f"{counted(trace.table.height, 'request')}\n{where(out, out.stat().st_size)}", quiet=quiet)


@app.command(
    "make",
    epilog=examples(
        "trimtab trace make out.csv --arrivals poisson --rate 20 --sizes lognormal --mean 200 --size-cv 0.8",
        "trimtab trace make out.csv --arrivals mmpp --rates 5,50 --sojourns 60,10 --mean 30 --size-cv 2",
        "trimtab trace make out.csv --arrivals gamma --rate 5 --cv 3 --sizes empirical --from trace.csv",
    ),
)
def make(
    out: OutFile,
    arrivals: Annotated[str, typer.Option(help="poisson, gamma, mmpp or diurnal.")] = "poisson",
    sizes: Annotated[
        str, typer.Option(help="lognormal, pareto, exponential, constant or empirical.")
    ] = "lognormal",
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="Number of requests.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    rate: Annotated[float | None, typer.Option(help="Requests per second (poisson, gamma, diurnal).")] = None,
    cv: Annotated[
        float | None, typer.Option(help="Coefficient of variation of inter-arrival times (gamma).")
    ] = None,
    rates: Annotated[str | None, typer.Option(help="Requests per second in each state (mmpp): 5,50")] = None,
    sojourns: Annotated[str | None, typer.Option(help="Mean seconds in each state (mmpp): 60,10")] = None,
    peak_to_trough: Annotated[
        float | None, typer.Option(help="Ratio of highest to lowest rate (diurnal).")
    ] = None,
    period: Annotated[
        float | None, typer.Option(help="Period in seconds (diurnal).  [dim]Default: 86400[/dim]")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Mean size (lognormal, pareto, exponential).")] = None,
    size_cv: Annotated[
        float | None, typer.Option(help="Coefficient of variation of sizes (lognormal).")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Tail exponent (pareto).")] = None,
    value: Annotated[float | None, typer.Option(help="The size (constant).")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Trace to draw sizes from (empirical).")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the sizes (empirical).  [dim]Default: size[/dim]")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Generate a trace from an arrival process and a distribution of sizes."""
    from trimtab.traces import ArrivalSpec, SizeSpec, make_trace, write_trace

    arrival = _spec(
        ArrivalSpec,
        {
            "process": ("--arrivals", arrivals),
            "rate_per_s": ("--rate", rate),
            "cv": ("--cv", cv),
            "rates_per_s": ("--rates", _numbers(rates, "--rates")),
            "sojourns_s": ("--sojourns", _numbers(sojourns, "--sojourns")),
            "peak_to_trough": ("--peak-to-trough", peak_to_trough),
            "period_s": ("--period", period),
        },
    )
    size = _spec(
        SizeSpec,
        {
            "distribution": ("--sizes", sizes),
            "mean": ("--mean", mean),
            "cv": ("--size-cv", size_cv),
            "alpha": ("--alpha", alpha),
            "value": ("--value", value),
            "file": ("--from", source),
            "column": ("--column", column),
        },
    )
    write_trace(make_trace(arrival, size, requests, seed), out)
    note(f"{counted(requests, 'request')}\n{where(out, out.stat().st_size)}", quiet=quiet)


def _numbers(text: str | None, option: str) -> list[float] | None:
    from trimtab.errors import UsageError

    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        expected = "numbers with commas between them, such as 5,50"
        raise UsageError("cannot be used", field=option, value=text, expected=expected) from None


def _spec(kind: Any, given: dict[str, tuple[str, Any]]) -> Any:
    """A checked specification from field → (option, value); None = not given. Raises UsageError."""
    from pydantic import TypeAdapter, ValidationError

    try:
        values = {field: value for field, (_, value) in given.items() if value is not None}
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise usage_error(error, {field: option for field, (option, _) in given.items()}) from None


@app.command("list", epilog=examples("trimtab trace list --json"))
def list_traces(json: Json = False) -> None:
    """List the public traces that can be downloaded."""
    from trimtab.traces.public_traces import CATALOGUE

    if json:
        print_json({"traces": [asdict(trace) for trace in CATALOGUE]})
        return
    from rich.table import Table

    table = Table("trace", "format", "licence", "source", box=None, pad_edge=False)
    for trace in CATALOGUE:
        table.add_row(trace.name, trace.format, trace.licence, trace.citation)
    show(table)


@app.command("download", epilog=examples("trimtab trace download azure-llm-2023-conv --folder data"))
def download_trace(
    name: Annotated[
        str, typer.Argument(help="See `trimtab trace list`.", autocompletion=completion.public_traces)
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Folder of the download.  [dim]Default: the user's cache folder[/dim]"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download a public trace from its publisher; an interrupted download resumes."""
    from trimtab.traces.download import download
    from trimtab.traces.public_traces import public_trace

    trace = public_trace(name)
    note(f"{trace.citation}; licence: {trace.licence}", quiet=quiet or json)
    with progress_bar(f"downloading {trace.file_name}", quiet=quiet or json) as progress:
        done = download(name, folder, progress)
    if json:
        print_json({"path": str(done.path), "sha256": done.sha256, "is_verified": done.is_verified})
    else:
        checked = "as published" if done.is_verified else "recorded for the next time"
        print(f"{done.path}\nSHA-256 {done.sha256} ({checked})")
