"""`trimtab learn lengths`: output lengths of a trace as a file that may be given away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, show, where
from trimtab.cli.serve_command import refuse_missing
from trimtab.cli.shared_options import Json, Quiet, TraceRows
from trimtab.cli.table_options import TableOptions
from trimtab.cli.trace_share import LedgerOptions, balance_text, refuse_chosen_rows

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.learn.private_lengths import PrivateLengths

DEFAULT_OUT = Path("lengths.safetensors")
NEEDED = ("opacus", "opendp", "torch")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "lengths",
        epilog=examples(
            "trimtab learn lengths trace.csv --epsilon 1 --out lengths.safetensors",
            "trimtab learn lengths recordings/ --class chat --class '*' --epsilon 2 --delta 1e-7",
            "trimtab serve gateway.yaml --check   with `learned: lengths.safetensors` in it",
        ),
    )(grouped(lengths))


def lengths(
    trace: Annotated[Path, typer.Argument(help="Trace or recording.", metavar="TRACE")],
    rows: TraceRows,
    table: TableOptions,
    charged: LedgerOptions,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Most that one row may cost.")],
    delta: Annotated[
        float, typer.Option("--delta", help="Chance that it costs more; below one by the rows.")
    ] = 1e-6,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Class of requests; its name is public. May be repeated.  [dim]Default: '*', all[/dim]",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file of what was learned: .safetensors.", metavar="FILE"),
    ] = DEFAULT_OUT,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn output lengths by DP-SGD: (ε, δ)-private by row, entered in the ledger (extra private).

    Gateway and simulator begin with the file, as with those of `trimtab federate`. Noise comes from torch's
    generator, which is not made for secrets.
    """
    refuse_missing("learn lengths", NEEDED, "private")
    from trimtab.errors import UsageError
    from trimtab.learn.private_lengths import private_lengths
    from trimtab.learn.private_training import Descent, check_promise
    from trimtab.report.whole_files import check_writable, write_bytes
    from trimtab.traces import read_trace

    if out.suffix != ".safetensors":
        raise UsageError(
            "names no file of weights", field="--out", value=str(out), expected="FILE.safetensors"
        )
    charged.check()
    check_writable(out.parent, [out.name])
    refuse_chosen_rows(rows, table)
    known = tuple(dict.fromkeys(classes or ["*"]))
    mapping = table.over(None) if table.given() else None
    read = read_trace(trace, rows.format or "auto", mapping, rows.options())
    check_promise(epsilon, delta, read.table.height)
    balance = charged.charge(trace, "learn lengths", "row", epsilon, delta)
    found = private_lengths(read, known, epsilon=epsilon, delta=delta, descent=Descent())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, found.estimates.artifact(out.stem).content())
    if json:
        print_json({"file": str(out), "classes": found.fits, "ledger": vars(balance)})
        return
    show(_table(found))
    note(balance_text(balance), quiet=quiet)
    note(where(out, out.stat().st_size), quiet=quiet)


def _table(found: PrivateLengths) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for head in ("class", "rows, with noise", "ε of the fit", "noise"):
        made.add_column(head, justify="left" if head == "class" else "right")
    for name, fit in found.fits.items():
        made.add_row(name, f"{fit['rows']:,.0f}", f"{fit['epsilon']:.3g}", f"{fit['noise_multiplier']:.3g}")
    return made
