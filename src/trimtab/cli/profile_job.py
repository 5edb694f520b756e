"""`trimtab profile job`: seconds of a training step over GPUs and batches."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, show, where
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.experiments.training.job_speeds import Convergence, JobSpeeds

MOST_GPUS, MOST_SAMPLES = 100_000, 1_000_000_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "job",
        epilog=examples(
            "trimtab profile job profiles/resnet50.csv --gpus 1,2,4,8,16,32",
            "trimtab profile job nets:ResNet --input 3x32x32 --batch 32,64 --gpus 1,2,4,8 --out ResNet.csv",
            "trimtab profile job nets:ResNet --input 3x32x32 --way runs --measure mine.json",
            "trimtab profile job nets:Wider --input 3x32x32 --measured mine.json --way operators",
            "trimtab profile job profiles/resnet50.csv --losses losses.csv",
        ),
    )(grouped(job))


def job(
    given: Annotated[
        str,
        typer.Argument(
            help="MODEL.csv with measured steps a second (global_batch_size, 1, 2, 4, …; empty = not "
            "measured), or a torch module, package.module:Name.",
            metavar="FILE|MODULE",
        ),
    ],
    way: Annotated[
        str,
        typer.Option(
            "--way",
            help="Of a file: runs (lines between them), formula (Optimus'), metadata (all files of its "
            "folder). Of a module: graph, operators or metadata (learnt from other modules), runs (here). "
            "Default: runs of a file, graph of a module.",
            metavar="NAME",
        ),
    ] = "",
    gpus: Annotated[str, typer.Option("--gpus", help="Numbers of GPUs.", metavar="N,…")] = "1,2,4,8",
    batch: Annotated[
        str,
        typer.Option("--batch", help="Global batches; default: those of the file, or 32.", metavar="N,…"),
    ] = "",
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Shape of one sample of an argument of forward, such as 3x32x32 or 128:int64; not needed "
            "where the module has example_inputs(batch).",
            metavar="SHAPE",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", help="Measured steps to learn from; default: one core of a CPU.", metavar="FILE"
        ),
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option("--measure", help="Measure the module here, and add it to this file.", metavar="FILE"),
    ] = None,
    link_gb_per_s: Annotated[
        float,
        typer.Option(
            "--link-gb-per-s", min=1e-3, help="From a GPU to the next, of a module.", metavar="GB/S"
        ),
    ] = 12.0,
    link_us: Annotated[
        float, typer.Option("--link-us", min=0.0, max=1e9, help="Latency of a message there.", metavar="US")
    ] = 20.0,
    losses: Annotated[
        Path | None,
        typer.Option("--losses", help="CSV with step and loss: fit when it converges.", metavar="FILE"),
    ] = None,
    fall: Annotated[
        float,
        typer.Option(
            "--fall",
            min=1e-12,
            help="Converged: over a tenth of the recorded steps the loss falls by less.",
            metavar="LOSS",
        ),
    ] = 0.01,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write MODEL.csv, for --profiles, or rules.estimate_profiles of a scenario.",
            metavar="FILE",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell seconds of a training step over GPUs and batches, from profiled speeds or a torch module."""
    from trimtab.experiments.training.job_speeds import convergence_of, speeds_of_file
    from trimtab.report.whole_files import check_file, write_text
    from trimtab.training.performance.module_steps import Link

    for path in filter(None, (out, measure)):
        check_file(path)
    counts = _numbers("gpus", gpus, MOST_GPUS)
    batches = _numbers("batch", batch, MOST_SAMPLES) if batch else []
    if ":" in given and not os.path.exists(given):
        from trimtab.learn.module_speeds import speeds_of_module

        link = Link(link_gb_per_s * 1e9, link_us * 1e-6)
        speeds = speeds_of_module(
            given, way or "graph", counts, batches or [32],
            shapes=shapes or (), measured=measured, measure=measure, link=link,
        )  # fmt: skip
    else:
        _refuse_of_module({"input": shapes, "measured": measured, "measure": measure})
        speeds = speeds_of_file(Path(given), way or "runs", counts, batches)
    converged = None if losses is None else convergence_of(losses, fall)
    if out is not None:
        write_text(out, speeds.csv_text())
    if json:
        told = {"job": speeds.name, "way": speeds.way, "steps": speeds.rows(), "notes": list(speeds.notes)}
        print_json(told | ({} if converged is None else {"convergence": _told(converged)}))
        return
    _show(speeds)
    if converged is not None:
        _show_convergence(converged, speeds)
    for text in speeds.notes:
        note(f"note: {text}", quiet=quiet)
    for path in filter(None, (out, measure)):
        note(where(path, path.stat().st_size), quiet=quiet)


def _refuse_of_module(options: dict[str, object]) -> None:
    from trimtab.errors import UsageError

    for option, value in options.items():
        if value:
            raise UsageError("has no meaning for a file", field=f"--{option}", expected="a torch module")


def _numbers(field: str, text: str, most: int) -> list[int]:
    from trimtab.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,10}", part) and 0 < int(part) <= most for part in parts):
        expected = f"whole numbers from 1 to {most:,} with commas between, such as 1,2,4"
        raise UsageError("no numbers", field=f"--{field}", value=text, expected=expected)
    return sorted({int(part) for part in parts})


def _show(speeds: JobSpeeds) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_justify="left")
    table.caption = f"{speeds.name}, by {speeds.way}."
    for title in ("batch", "GPUs", "seconds a step", "samples/s"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in speeds.rows():
        figures = f"{row['seconds']:.4g}", f"{row['samples_per_s']:.4g}"
        table.add_row(f"{row['batch']:,}", str(row["gpus"]), *figures)
    show(table)


def _show_convergence(found: Convergence, speeds: JobSpeeds) -> None:
    curve = found.curve
    show(
        f"loss(k) = 1 / ({curve.slope:.4g} k + {curve.start:.4g}) + {curve.floor:.4g}; a fit of the first "
        f"half misses the second by {100 * found.second_half_error:.1f} %"
    )
    if not math.isfinite(found.steps):
        show("the loss does not fall: when it converges can't be told")
        return
    fastest = min(speeds.rows(), key=lambda row: float(row["seconds"]))
    hours = found.steps * fastest["seconds"] / 3600
    show(
        f"converges after {counted(round(found.steps), 'step')}: {hours:.3g} h with batch "
        f"{fastest['batch']} on {counted(fastest['gpus'], 'GPU')}"
    )


def _told(found: Convergence) -> dict[str, float | None]:
    steps = found.steps if math.isfinite(found.steps) else None
    return vars(found.curve) | {"steps": steps, "second_half_error": found.second_half_error}
