"""`trimtab chain import` and `trimtab chain export`: chains from and for other systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

importing = typer.Typer(no_args_is_help=True, help="Make chains of other systems' pipelines.")
exporting = typer.Typer(no_args_is_help=True, help="Make other systems' pipelines of chains.")


@importing.command(
    "kfp",
    epilog=examples(
        "trimtab chain import kfp pipeline.yaml --out training.py",
        "trimtab chain run training.py --input inputs.jsonl --files outputs",
    ),
)
def import_kfp(
    file: Annotated[Path, typer.Argument(help="Pipeline that kfp has compiled.", metavar="FILE.yaml")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Python file to write, with stages and chain.", metavar="FILE.py"),
    ],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a chain of a Kubeflow pipeline: its Python functions and commands become stages."""
    from trimtab.chains.kubeflow.chain_source import chain_source
    from trimtab.chains.kubeflow.pipeline_spec import read_pipeline
    from trimtab.errors import UsageError
    from trimtab.report.whole_files import check_file, write_text

    if out.suffix != ".py" or not out.stem.isidentifier():
        raise UsageError(
            "no module of Python", field="--out", value=str(out), expected="a name such as training.py"
        )
    check_file(out)
    made = chain_source(read_pipeline(file), str(file))
    write_text(out, made.text)
    if json:
        told = {"out": str(out), "chain": made.chain, "stages": made.stages, "notes": made.notes}
        print_json(told)
        return
    for text in made.notes:
        note(f"note: {text}", quiet=quiet)
    note(f"{out}: chain {made.chain} of {counted(len(made.stages), 'stage')}", quiet=quiet)


@exporting.command(
    "kfp",
    epilog=examples(
        "trimtab chain export kfp pictures.py --image registry.example/pictures:1 --out pipeline.yaml"
    ),
)
def export_kfp(
    file: Annotated[str, typer.Argument(help="FILE.yaml, FILE.py:CHAIN or MODULE:CHAIN.", metavar="FILE")],
    image: Annotated[str, typer.Option(help="Image with the stages' modules, trimtab and kfp.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.", metavar="FILE.yaml")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a Kubeflow pipeline of a chain whose functions an image has."""
    import yaml

    from trimtab.chains.chain_files import load_chain
    from trimtab.chains.kubeflow.export import exported
    from trimtab.errors import UsageError
    from trimtab.report.whole_files import check_file, write_text

    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(
            "no YAML file", field="--out", value=str(out), expected="a name such as pipeline.yaml"
        )
    check_file(out)
    made = exported(load_chain(file), image)
    write_text(out, yaml.safe_dump(made.pipeline, width=1_000_000))
    tasks = list(made.pipeline["root"]["dag"]["tasks"])
    if json:
        print_json({"out": str(out), "tasks": tasks, "notes": made.notes})
        return
    for text in made.notes:
        note(f"note: {text}", quiet=quiet)
    note(f"{out}: pipeline of {counted(len(tasks), 'task')} in {image}", quiet=quiet)
