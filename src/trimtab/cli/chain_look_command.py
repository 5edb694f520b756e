"""`trimtab chain list | show | report | trace | backup | restore | cancel`: runs of the journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note
from trimtab.cli.shared_options import Journal, Json, Quiet

if TYPE_CHECKING:
    from trimtab.chains.run_backup import Copied
    from trimtab.chains.run_timeline import RunTimeline

RunId = Annotated[str, typer.Argument(help="A run of `chain list`.", metavar="RUN")]


def list_runs(
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    journal: Journal = None,
    json: Json = False,
) -> None:
    """List runs."""
    from trimtab.chains.run_reports import listed
    from trimtab.cli.chain_tables import runs_table
    from trimtab.cli.output import print_json, show

    runs = listed(journal, limit)
    if json:
        print_json({"runs": runs})
    else:
        show(runs_table(runs))


def show_run(
    run: RunId,
    journal: Journal = None,
    json: Json = False,
) -> None:
    """Show how far a run is: its inputs, and for each stage what ran, how often, and for how long."""
    from trimtab.chains.run_reports import summary
    from trimtab.cli.chain_tables import run_table
    from trimtab.cli.output import print_json, show

    told = summary(journal, run)
    if json:
        print_json(told)
    else:
        show(run_table(told))


def cancel_run(
    run: RunId,
    journal: Journal = None,
) -> None:
    """Cancel a run, in whichever process it runs."""
    from trimtab.chains.run_reports import cancel

    cancel(journal, run)
    note(f"{run} is being cancelled")


def report_run(
    run: RunId,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write an HTML page that opens offline.", metavar="FILE.html"),
    ] = None,
    journal: Journal = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say where a run's time went: workers over time, critical path, bottleneck, and what to change."""
    from trimtab.chains.run_reports import timeline
    from trimtab.cli.output import print_json
    from trimtab.report.whole_files import write_text

    found = timeline(journal, run)
    if out is not None:
        from trimtab.report.chain_run_page import chain_run_page

        write_text(out, chain_run_page(found))
        note(f"report: {out}", quiet=quiet)
    if json:
        print_json(_as_json(found))
    elif out is None:
        _print_report(found)


def trace_run(
    run: RunId,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.", metavar="FILE.json")],
    journal: Journal = None,
    quiet: Quiet = False,
) -> None:
    """Write a run as trace events, for https://ui.perfetto.dev or chrome://tracing."""
    from json import dumps

    from trimtab.chains.run_reports import timeline
    from trimtab.report.chrome_trace import chrome_trace
    from trimtab.report.whole_files import write_text

    write_text(out, dumps(chrome_trace(timeline(journal, run)), separators=(",", ":")))
    note(f"trace: {out}", quiet=quiet)


Values = Annotated[
    str,
    typer.Option("--values", help="Folder or URL of large values. Default: in the journal's folder."),
]


def backup_runs(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE.zip")],
    runs: Annotated[list[str] | None, typer.Argument(help="Runs. Default: all.", metavar="RUN")] = None,
    journal: Journal = None,
    values: Values = "",
    quiet: Quiet = False,
) -> None:
    """Copy runs with their results into one file. A run that goes on is copied as far as it is."""
    from trimtab.chains.run_backup import backup
    from trimtab.report.whole_files import check_file, refusals_of

    check_file(file)
    with refusals_of(file):
        copied = backup(file, runs or (), place=journal, values=values)
    note(f"{file}: {_copied_text(copied)}", quiet=quiet)
    if copied.missing:
        note(f"{copied.missing} values are in the store no more: their stages would run again", quiet=quiet)


def restore_runs(
    file: Annotated[Path, typer.Argument(help="File of `chain backup`.", metavar="FILE.zip")],
    journal: Journal = None,
    values: Values = "",
    quiet: Quiet = False,
) -> None:
    """Add the runs of a file to a journal. Runs that were going on can be resumed there."""
    from trimtab.chains.run_backup import restore

    copied = restore(file, place=journal, values=values)
    for run, reason in copied.left_out.items():
        note(f"{run} is left out: it {reason}", quiet=quiet)
    note(_copied_text(copied), quiet=quiet)


def _copied_text(copied: Copied) -> str:
    runs = "1 run" if len(copied.runs) == 1 else f"{len(copied.runs):,} runs"
    return f"{runs}, {copied.values:,} large values of {copied.value_bytes / 1e6:.4g} MB"


def _print_report(timeline: RunTimeline) -> None:
    from trimtab.chains.run_advice import bottleneck_text, found_bottleneck
    from trimtab.chains.run_reports import models_of_run
    from trimtab.cli.chain_tables import models_table, path_table
    from trimtab.cli.output import show

    show(path_table(timeline))
    if models := models_of_run(timeline.record):
        show(models_table(models))
    found = found_bottleneck(timeline)
    print("No stage has a result yet." if found is None else bottleneck_text(found))


def _as_json(timeline: RunTimeline) -> dict[str, object]:
    from trimtab.chains.run_advice import critical_path, found_bottleneck
    from trimtab.chains.run_reports import models_of_run

    found = found_bottleneck(timeline)
    names = [stage.name for stage in timeline.stages]
    return {
        "run": timeline.record.id,
        "state": timeline.record.state,
        "workers": len(timeline.workers),
        "busy_frac": timeline.busy_frac(),
        "models": {
            stage: [record._asdict() for record in records]
            for stage, records in models_of_run(timeline.record).items()
        },
        "bottleneck": None if found is None else found._asdict(),
        "critical_path": [
            {
                "stage": names[run.stage],
                "instance": run.instance,
                "input": run.number,
                "node": run.node,
                "worker": run.worker,
                "waits_s": run.waits_s,
            }
            for run in critical_path(timeline)
        ],
    }


def register(app: typer.Typer) -> None:
    """Add the commands to `trimtab chain`."""
    example = "run_0123456789abcdef"
    app.command("list", epilog=examples("trimtab chain list --limit 5"))(list_runs)
    app.command("show", epilog=examples(f"trimtab chain show {example}"))(show_run)
    app.command("report", epilog=examples(f"trimtab chain report {example} --out run.html"))(report_run)
    app.command("trace", epilog=examples(f"trimtab chain trace {example} --out run.json"))(trace_run)
    app.command(
        "backup",
        epilog=examples(
            "trimtab chain backup runs.zip",
            f"trimtab chain backup film.zip {example} --journal runs",
        ),
    )(backup_runs)
    app.command(
        "restore",
        epilog=examples(
            "trimtab chain restore runs.zip --journal runs",
            "trimtab chain restore runs.zip --journal postgresql://host/trimtab --values /data/values",
        ),
    )(restore_runs)
    app.command("cancel", epilog=examples(f"trimtab chain cancel {example}"))(cancel_run)
