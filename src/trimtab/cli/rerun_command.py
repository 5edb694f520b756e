"""`trimtab rerun`: repeats what a folder of results was made by, and says whether the figures are equal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import DIFFERS, examples
from trimtab.cli.output import note, note_written, print_json
from trimtab.cli.runs_progress import runs_progress
from trimtab.cli.shared_options import Json, Quiet, Simulations, out_option

if TYPE_CHECKING:
    from trimtab.experiments.rerun import Rerun

SHOWN = 10  # differences


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "rerun",
        epilog=examples(
            "trimtab rerun trimtab-out/",
            "trimtab rerun results-of-a-colleague/ --trace requests.csv --out again/",
        ),
    )(rerun)


def rerun(
    folder: Annotated[
        Path, typer.Argument(help="Folder of results, of `compare`, `tune` or `run --out`.", metavar="FOLDER")
    ],
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Where the trace is now, if it moved.", metavar="FILE")
    ] = None,
    jobs: Simulations = None,
    out: Annotated[Path | None, out_option()] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a comparison, run or tuning from its folder alone, and say whether the figures are equal."""
    from trimtab.experiments.rerun import rerun as run_again

    with runs_progress(f"repeating {folder}", quiet=quiet or json) as progress:
        done = run_again(folder, trace=trace, jobs=jobs, progress=progress)
    if out is not None:
        _write(done, out, quiet=quiet or json)
    if json:
        print_json(done.to_dict())
    else:
        _say(done, quiet=quiet)
    if not done.is_equal:
        raise typer.Exit(DIFFERS)


def _write(done: Rerun, out: Path, *, quiet: bool) -> None:
    from trimtab.experiments.serving.run import Run
    from trimtab.experiments.tuning import Tuning
    from trimtab.report.results_folder import write_results, write_run, write_tuning

    result = done.result
    if isinstance(result, Run):
        written = write_run(result, out)
    else:
        written = write_tuning(result, out) if isinstance(result, Tuning) else write_results(result, out)
    note_written(written, quiet=quiet)


def _say(done: Rerun, *, quiet: bool) -> None:
    if done.is_equal:
        print(f"equal: all {done.figures:,} figures of {done.folder}")
    else:
        print(f"different: {len(done.differences):,} of {done.figures:,} figures of {done.folder}")
        for difference in done.differences[:SHOWN]:
            print(f"  {difference.where}: {difference.before} before, {difference.now} now")
        if len(done.differences) > SHOWN:
            print(f"  and {len(done.differences) - SHOWN:,} more")
    for name in done.changed_files:
        note(f"note: {name} has another content than before", quiet=quiet)
    for name, (before, now) in done.changed_versions.items():
        note(f"note: {name} was {before}, is {now}", quiet=quiet)
