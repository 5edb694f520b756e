"""`trimtab trace audit`: what a recording, a log or a trace reveals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import REVEALS
from trimtab.cli.output import print_json, progress_bar, show
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.traces.audit import Audit


def audit_trace(
    file: Annotated[
        Path,
        typer.Argument(
            help="A trace or log of any kind, training jobs and workflows too, or a folder of a recording.",
            metavar="FILE",
        ),
    ],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List what a trace reveals: names, addresses, keys, text, identities, exact times, unique requests.

    Exit code 6: names, addresses, keys or text can be read in it.
    """
    from trimtab.traces.audit import audit

    with progress_bar(f"reading {file.name}", quiet=quiet or json) as progress:
        done = audit(file, progress)
    if json:
        print_json(done.to_dict())
    else:
        _print_audit(done)
    if done.is_clear:
        raise typer.Exit(REVEALS)


def _print_audit(done: Audit) -> None:
    from rich.markup import escape
    from rich.table import Table

    print(f"{done.file}: {counted(done.rows, 'row')}{f', redact: {done.redact}' if done.redact else ''}")
    table = Table("column", "values", "what it holds", "verdict", "what removes it", box=None, pad_edge=False)
    worst_first = ("clear", "linkable", "exact", "fine")
    for found in sorted(done.columns, key=lambda found: worst_first.index(found.verdict)):
        table.add_row(
            *map(escape, (found.column, str(found.values), found.finding, found.verdict, found.remedy))
        )
    show(table)
    if (alone := done.alone) is not None:
        print(
            f"by {', '.join(alone.columns)}: {alone.alone_frac:.1%} of requests are alone, "
            f"{alone.few_frac:.1%} in groups below 5, the smallest of {alone.smallest}; "
            f"{alone.rounded_alone_frac:.1%} are alone with sizes of two digits (redact: coarse)"
        )
