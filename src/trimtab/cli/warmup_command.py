"""`trimtab warmup`: compiles all kernels in advance, so that later runs start without delay."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json
from trimtab.cli.shared_options import Json, Quiet

CLOCK_S = 1.0  # by which clocks of files may lag


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("warmup", epilog=examples("trimtab warmup", "trimtab warmup --prune"))(warmup)


def warmup(
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete kernels that this version does not use.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compile simulator, policies, bounds, solvers and forecasts into the cache, once."""
    quiet = quiet or json
    note("compiling simulator, policies, bounds, solvers and forecasts", quiet=quiet)
    from trimtab.compiled.kernel_cache import cache_folder, prune_cache
    from trimtab.engine.compilation import compile_everything
    from trimtab.experiments.bounds import compile_bounds
    from trimtab.forecast import compilation as forecasts
    from trimtab.solvers import compilation as solvers

    begun_s, begun = time.perf_counter(), time.time()
    others = [*solvers.COMPILATIONS, *forecasts.COMPILATIONS, compile_bounds]
    compile_everything(others, lambda text: note(text, quiet=quiet))
    took_s = time.perf_counter() - begun_s
    pruned = prune_cache(begun - CLOCK_S) if prune else 0
    if json:
        print_json({"folder": str(cache_folder()), "pruned_kernels": pruned, "took_s": took_s})
    elif not quiet:
        print(
            f"ready after {took_s:.1f} s in {cache_folder()}"
            + (f", {pruned} old kernels deleted" if prune else "")
        )
