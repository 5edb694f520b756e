"""`trimtab learn transfer`: weights trained elsewhere, for a target: as they are, trained on, or anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, show, where
from trimtab.cli.serve_command import refuse_missing
from trimtab.cli.shared_options import Json, Quiet, Report, out_option
from trimtab.cli.training_folder import (
    NEEDED,
    WEIGHTS,
    check_folder,
    last_loss,
    tell_training,
    train_in,
    write_training,
)

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.learn.similarity import Similarity

DEFAULT_OUT = Path("trimtab-transferred")
AUTO = "auto"
TOLD_BY = range(4)  # seeds of the target that its similarity is told by


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "transfer",
        epilog=examples(
            "trimtab learn transfer trained/weights.safetensors --to aigc-images --out transferred",
            "trimtab learn transfer mine.safetensors --to trace.csv --cluster cluster.yaml --samples 5760",
            "trimtab learn transfer mine.safetensors --to mine.yaml --augment resample,rates=0.2,speeds=0.1",
            "trimtab learn evaluate transferred/weights.safetensors aigc-images",
        ),
    )(grouped(transfer))


def transfer(
    weights: Annotated[
        Path,
        typer.Argument(help="File of `learn train` or `learn export`.", metavar="WEIGHTS"),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Trace, built-in scenario or YAML file that they are to serve.",
            metavar="TARGET",
            autocompletion=completion.scenarios,
        ),
    ],
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Take the cluster from this YAML file.", metavar="FILE"),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            "--load",
            help="Scale arrival times to this load (offered work over capacity).",
        ),
    ] = None,
    way: Annotated[
        str,
        typer.Option(
            "--way",
            help="as-is, fine-tuned or anew; auto chooses by the similarity of the target.",
            metavar="WAY",
        ),
    ] = AUTO,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            min=1,
            help="Simulated runs of the target to train on by es, decisions by other methods.  "
            "[dim]Default: 20 generations[/dim]",
            show_default=False,
        ),
    ] = None,
    augment: Annotated[
        str,
        typer.Option(
            "--augment",
            help="Vary what is trained on: resample requests in blocks, rates, speeds; 'resample,rates=0.2'.",
            metavar="WHAT",
        ),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the training.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that simulate.")] = 1,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on from the checkpoint in the folder."),
    ] = True,
    out: Annotated[Path, out_option()] = DEFAULT_OUT,
    report: Report = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bring weights to another cluster or traffic: as they are, trained on with few samples, or anew."""
    refuse_missing("learn", NEEDED, "learn")
    from trimtab.domain.artifact import Artifact
    from trimtab.errors import UsageError
    from trimtab.experiments.tuning.named_workload import workload_of
    from trimtab.learn.augmentation import Augmentation
    from trimtab.learn.drawn_workloads import Workloads, processes
    from trimtab.learn.similarity import similarity, source_statistics, statistics_of
    from trimtab.learn.transfer import (
        WAYS,
        setting_of,
        trained_by,
        way_of,
        with_provenance,
    )
    from trimtab.report.whole_files import refusals_of, write_bytes

    if way not in (AUTO, *WAYS):
        raise UsageError(
            "is no way",
            field="--way",
            value=way,
            expected=f"one of {', '.join((AUTO, *WAYS))}",
        )
    source, augmentation = Artifact.read(str(weights)), Augmentation.parsed(augment)
    target = Workloads(workload_of(to, cluster, load, "--to"))
    found = similarity(source_statistics(source), statistics_of(target, TOLD_BY))
    chosen = way_of(found.total) if way == AUTO else next(each for each in WAYS if each == way)
    setting = setting_of(source, target, augmentation, chosen, samples=samples, seed=seed)
    check_folder(out, report=report)
    if not json:
        print(f"from {source.name} to {target}")
        show(_table(found))
        by = "the similarity" if way == AUTO else "--way"
        print(f"total {found.total:.2f}, where 1 is that of two generated clusters; {chosen}, by {by}")
    told = {**setting.told(), "way": chosen, "similarity": found.to_dict()}
    if chosen == "as-is":
        made = with_provenance(source, source, chosen, found)
        with refusals_of(out):
            out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / WEIGHTS, made.content())
        told = {"policy": setting.policy, "way": chosen, "similarity": found.to_dict()}
    else:
        with processes(jobs) as pool:
            search = trained_by(setting, pool)
            trained = train_in(out, search, setting.policy, resume=resume, quiet=quiet or json)
        made = with_provenance(trained, source, chosen, found)
        shown = {
            **setting.told(),
            "way": chosen,
            "source": source.name,
            "distance": f"{found.total:.2f}",
        }
        write_training(out, search, made, f"{source.name} on {target}", shown, report=report)
        told |= {"loss": last_loss(search)}
    if json:
        files = {
            "source_sha256": source.sha256,
            "weights": str(out / WEIGHTS),
            "sha256": made.sha256,
        }
        print_json({**told, **files})
        return
    if chosen == "as-is":
        note(where(out / WEIGHTS, (out / WEIGHTS).stat().st_size), quiet=quiet)
    else:
        tell_training(out, search, setting.policy, report=report, quiet=quiet)
    judge = f"trimtab learn evaluate {out / WEIGHTS} {to}"
    note(f"judge it on seeds of the target that it never saw: {judge}", quiet=quiet)


def _table(found: Similarity) -> Table:
    from rich.table import Table

    from trimtab.learn.similarity import PARTS

    table, relative = Table(box=None, pad_edge=False), found.relative
    for k, column in enumerate(("distance of", "unit", "distance", "of the usual")):
        table.add_column(column, justify="left" if k < 2 else "right")
    for part in PARTS:
        of = found.distances[part.name]
        table.add_row(part.name, part.unit, f"{of:.3f}", f"{relative[part.name]:.2f}")
    return table
