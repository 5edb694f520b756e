"""`trimtab warmup`: compile everything once, so that nobody has to wait for it later."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trimtab.cli.help_texts import FLAG, examples
from trimtab.cli.output import print_json, spinner
from trimtab.cli.shared_options import Json, Quiet


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("warmup", epilog=examples("trimtab warmup", "trimtab warmup --prune"))(warmup)


def warmup(
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what was compiled from other versions.", metavar=FLAG)
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compile simulator, policies, bounds, solvers and forecasts into the cache (about a minute, once)."""
    from trimtab.compiled.kernel import cache_folder, prune_cache
    from trimtab.experiments.serving.compilation import compile_everything
    from trimtab.forecast.warm import compile_forecasts
    from trimtab.solvers.solve import compile_solvers

    quiet = quiet or json
    pruned = prune_cache() if prune else 0
    begun_s = time.perf_counter()
    with spinner("compiling simulator, policies, bounds, solvers and forecasts …", quiet=quiet):
        compile_everything([compile_solvers, compile_forecasts])
    took_s = time.perf_counter() - begun_s
    if json:
        print_json({"folder": str(cache_folder()), "pruned_folders": pruned, "took_s": took_s})
    elif not quiet:
        print(
            f"ready after {took_s:.1f} s in {cache_folder()}"
            + (f", {pruned} old folders deleted" if prune else "")
        )
