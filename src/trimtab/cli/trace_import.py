"""`trimtab trace import`: own logs as a trace, with a guess at each column and a mapping to use again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.output import note, print_json, progress_bar, show, where, write_yaml
from trimtab.cli.shared_options import Json, Quiet, TraceRows
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.traces import Trace, TraceMapping
    from trimtab.traces.guess import ColumnGuess
    from trimtab.traces.source import TraceSource


def import_trace(
    files: Annotated[
        list[Path], typer.Argument(help="CSV, JSONL (also as .gz), Parquet or a text log.", metavar="FILE…")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help=".csv, .jsonl (also with .gz) or .parquet.", metavar="FILE")
    ],
    rows: TraceRows,
    table: TableOptions,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import your own logs as a trace: show what each column seems to be, write a mapping to use again."""
    from trimtab.report.whole_files import check_file
    from trimtab.traces import apply_options, write_trace
    from trimtab.traces.read import import_files, look

    given, silent = table.over(None), quiet or json
    check_file(out)
    source = look(files[0], given)
    mapping, guesses = _chosen(source, given, rows.format)
    if not silent and guesses:
        show(_columns_table(source, guesses, mapping))
    _ask_arrival(source, mapping, guesses)
    with progress_bar(f"reading {files[0].name}", quiet=silent) as progress:
        trace = import_files(files, rows.format or "auto", mapping, rows.options(), progress)
    write_trace(apply_options(trace.table, rows.options()), out)
    mapping_file = _write_mapping(mapping, out)
    if json:
        print_json(_summary(trace, out, mapping_file, mapping))
        return
    _say(trace, out, mapping_file, quiet=quiet)


def _chosen(
    source: TraceSource, given: TraceMapping, format_name: str | None
) -> tuple[TraceMapping, list[ColumnGuess]]:
    """The mapping to read with: the format that is recognised, else a guess; and the guesses to show."""
    from trimtab.traces.guess import guess_columns, proposed
    from trimtab.traces.read import validated
    from trimtab.traces.recognition import recognised, refuse_wrapped

    guesses, is_whole = guess_columns(source, given), given.is_whole()
    if not is_whole:
        is_recognised = recognised(source) is not None
        if is_recognised or format_name is not None:
            return given.model_copy(update={"sort": True}), [] if is_recognised else guesses
        refuse_wrapped(source)
    data = proposed(guesses, given)
    if is_whole:
        data["columns"] = {name: column.model_dump() for name, column in given.columns.items()}
    return validated({**data, "sort": True}), guesses


def _ask_arrival(source: TraceSource, mapping: TraceMapping, guesses: Sequence[ColumnGuess]) -> None:
    """Refuse a table in which no column seems to be the arrival, naming those that could be."""
    from trimtab.errors import TraceError

    if not guesses or mapping.is_whole():
        return
    free = [guess for guess in guesses if guess.canonical is None]
    times = [guess.name for guess in free if "time" in guess.kind] or [
        guess.name for guess in free if "number" in guess.kind
    ]
    named = times[0] if times else "COLUMN"
    expected = f"--map arrival_s={named}" + (f" (or one of {times[1:]})" if len(times) > 1 else "")
    raise TraceError(
        "no column seems to be the time of arrival",
        file=str(source.path),
        value=list(source.columns),
        expected=expected,
    )


def _columns_table(source: TraceSource, guesses: Sequence[ColumnGuess], mapping: TraceMapping) -> Table:
    from rich.table import Table
    from rich.text import Text

    names = {column.column: name for name, column in mapping.columns.items()}
    table = Table(box=None, pad_edge=False, title=f"{source.path.name}: {source.kind}", title_justify="left")
    for heading in ("column", "seems to be", "blank", "taken as", "first values"):
        table.add_column(heading, overflow="fold")
    for guess in guesses:
        taken = names.get(guess.name, "kept" if guess.name in mapping.keep else "–")
        scale = next((c.scale for c in mapping.columns.values() if c.column == guess.name), 1.0)
        told = taken if scale == 1.0 else f"{taken} (× {scale:g})"
        blank = f"{100 * guess.blank_frac:.3g} %" if guess.blank_frac else ""
        row = (guess.name, guess.kind, blank, told, ", ".join(guess.examples))
        table.add_row(*(Text(text) for text in row))
    return table


def _write_mapping(mapping: TraceMapping, out: Path) -> Path:
    stem = out.name.removesuffix(".gz").rpartition(".")[0]
    path = out.with_name(f"{stem}.mapping.yaml")
    data = {"columns": {}, **mapping.kept_only()}
    data["columns"] = {
        name: column.column if column.scale == 1.0 else {"column": column.column, "scale": column.scale}
        for name, column in mapping.columns.items()
    }
    write_yaml(path, "How the columns of the log were read; use it again with --mapping.", data)
    return path


def _summary(trace: Trace, out: Path, mapping_file: Path, mapping: TraceMapping) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "out": str(out),
        "mapping_file": str(mapping_file),
        "mapping": mapping.kept_only(),
        "format": trace.format,
        "known_by": trace.known_by,
        "rows_in_file": trace.rows_in_file,
        "requests": trace.table.height,
        "dropped": dict(trace.dropped),
        "repairs": [asdict(repair) for repair in trace.repairs],
        "doubts": list(trace.doubts),
        "size_rule": trace.size_rule,
    }


def _say(trace: Trace, out: Path, mapping_file: Path, *, quiet: bool) -> None:
    for text in (trace.format_in_words(), *trace.notes()):
        note(text, quiet=quiet)
    if trace.size_rule is None:
        note(
            "no size: map one with --map size=COLUMN, or output_tokens, before it can be simulated",
            quiet=quiet,
        )
    else:
        note(f"size, in work units: {trace.size_rule}", quiet=quiet)
    print(
        f"{trace.table.height:,} of {counted(trace.rows_in_file, 'row')} as requests ({trace.format})",
        file=sys.stderr,
    )
    for path in (out, mapping_file):
        note(where(path, path.stat().st_size), quiet=quiet)
