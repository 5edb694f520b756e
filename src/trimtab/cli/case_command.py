"""`trimtab case`: the study of 100 GPU nodes and 10,000 images, run anew."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, note_written, print_json, progress_bar, show
from trimtab.cli.shared_options import Json, Quiet, Simulations, out_option

DEFAULT_OUT = Path("trimtab-case")
RUNS = "runs"  # finished runs, until the study is whole


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "case",
        epilog=examples(
            "trimtab case --quick",
            "trimtab case --seeds 5 --out case",
            "trimtab case --learned 'DQN=learned-dispatch(artifact=trained/weights.safetensors)'",
        ),
    )(grouped(case))


def case(
    quick: Annotated[
        bool, typer.Option("--quick", help="A seventh of the images, one load: two minutes, wide intervals.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=2, help="Seeds, 2 or more; default: 3.", show_default=False)
    ] = None,
    learned: Annotated[
        list[str] | None,
        typer.Option("--learned", help="One more strategy: its name and a policy.", metavar="NAME=POLICY"),
    ] = None,
    jobs: Simulations = None,
    out: Annotated[Path, out_option()] = DEFAULT_OUT,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the case study: strategies alone and together, and what became of the claims about them.

    An interrupted study goes on from its finished runs.
    """
    from dataclasses import replace

    from trimtab.experiments.case import QUICK, Scale, run_case
    from trimtab.report.case_tables import claims_table, strategy_table
    from trimtab.report.results_folder import write_case
    from trimtab.report.terminal_tables import text_table
    from trimtab.report.whole_files import check_writable

    check_writable(out)
    scale = QUICK if quick else Scale()
    if seeds is not None:
        scale = replace(scale, seeds=seeds, switch_seeds=seeds)
    with progress_bar("case study", quiet=quiet or json) as bar:

        def tell(done: int, total: int, what: str) -> None:
            bar(done, total)
            if sys.stderr.isatty():
                bar.say(what)

        study = run_case(scale, out / RUNS, _named(learned or []), jobs=jobs, say=tell)
    written = write_case(study, out)
    shutil.rmtree(out / RUNS)
    if json:
        print_json(study.to_dict())
        return
    show(text_table(strategy_table(study, list(study.strategies)[-1])))
    show(text_table(claims_table(study)))
    if not quiet:
        note("Causes, switches, interactions and the front are on the page.")
    note_written(written, quiet=quiet)


def _named(given: list[str]) -> dict[str, str]:
    """Strategy → policy."""
    from trimtab.errors import UsageError

    found = {}
    for text in given:
        name, sign, policy = text.partition("=")
        if not (name and sign and policy):
            raise UsageError("cannot be read", field="--learned", value=text, expected="NAME=POLICY")
        found[name] = policy
    return found
