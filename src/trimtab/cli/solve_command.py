"""`trimtab solve`: optimisation problems from files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import print_json, show, spinner
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.solvers import AssignmentProblem, Solution

app = typer.Typer(
    no_args_is_help=True,
    help="Solve optimisation problems from files.",
    epilog=examples("trimtab solve gap d20100 --time-limit 5"),
)


@app.callback()
def _solve() -> None:
    """Solve optimisation problems from files."""


@app.command(
    "gap",
    epilog=examples(
        "trimtab solve gap d20100 --time-limit 5",
        "trimtab solve gap gap1-0.gz --maximise --json",
        "trimtab solve gap d20100 --method dual-smoothed",
    ),
)
def gap(
    file: Annotated[Path, typer.Argument(help="OR-Library format, plain or .gz.", metavar="FILE")],
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            help="Time limit in seconds, reading and compiling excluded.",
            metavar="S",
        ),
    ] = 10.0,
    maximise: Annotated[
        bool,
        typer.Option("--maximise", help="Maximise the value, each task on at most one node."),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto (by the problem's size), exact, matching, search, greedy, dual, dual-smoothed or "
            "dual-of-both.",
            metavar="NAME",
        ),
    ] = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Solve a generalised assignment problem: each task on one node, within capacities, at least cost."""
    from trimtab.errors import UsageError
    from trimtab.solvers import Method, parse_gap, solve
    from trimtab.solvers.compilation import are_solvers_compiled, compile_solvers

    if not time_limit > 0:
        raise UsageError("cannot be used", field="--time-limit", value=time_limit, expected="seconds above 0")
    if method not in set(Method):
        raise UsageError("no such method", field="--method", value=method, expected=", ".join(Method))
    problem = parse_gap(_text(file), str(file), maximise=maximise)
    if not are_solvers_compiled():  # else the limit would end while they are
        with spinner("compiling the solvers, this once …", quiet=quiet or json):
            compile_solvers()
    with spinner(
        f"solving {counted(problem.tasks, 'task')} on {counted(problem.nodes, 'node')} …", quiet=quiet or json
    ):
        solution = solve(problem, time_limit_s=time_limit, method=method)
    if json:
        print_json(_as_json(solution))
    else:
        _print(problem, solution)


def _text(path: Path) -> str:
    """The text of a file, unpacked if it is gzip. Raises ProblemError."""
    from trimtab.errors import ProblemError

    try:
        content = path.read_bytes()
        unpacked = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        return unpacked.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ProblemError(f"damaged gzip file ({error})", file=str(path)) from error
    except UnicodeDecodeError as error:
        expected = "numbers as text, OR-Library format"
        raise ProblemError("binary file", file=str(path), expected=expected) from error
    except OSError as error:
        raise ProblemError(f"cannot be read: {error.strerror or error}", file=str(path)) from error


def _as_json(solution: Solution) -> dict[str, Any]:
    return {
        "status": solution.status.value,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap_frac": solution.gap_frac,
        "time_s": solution.time_s,
        "method": solution.method,
        "reason": solution.reason,
        "assignment": solution.assignment.tolist(),
    }


def _print(problem: AssignmentProblem, solution: Solution) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("status", solution.status.value + (f": {solution.reason}" if solution.reason else ""))
    if solution.has_assignment:
        left_out = int((solution.assignment < 0).sum())
        table.add_row("value", f"{solution.objective:.10g}")
        table.add_row("gap", f"{100 * solution.gap_frac:.4f} %")
        table.add_row("tasks", f"{problem.tasks - left_out:,} placed, {left_out:,} left out")
    table.add_row("bound", f"{solution.bound:.10g}")
    table.add_row("method", solution.method)
    table.add_row("time", f"{solution.time_s:.3f} s")
    show(table)
