"""`trimtab warmup`: compile everything once, so that nobody has to wait for it later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from trimtab.cli.help import examples
from trimtab.cli.options import Json, Quiet
from trimtab.cli.output import note, print_json, spinner


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("warmup", epilog=examples("trimtab warmup", "trimtab warmup --prune"))(warmup)


def warmup(
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what was compiled from other versions.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compile the simulator, all policies and the lower bounds into the cache (about 30 s, once)."""
    from trimtab.domain.kernel import cache_folder, prune_cache

    quiet = quiet or json
    pruned = prune_cache() if prune else 0
    took_s = {}
    for what, compile_them in _parts().items():
        begun_s = time.perf_counter()
        with spinner(f"compiling {what} …", quiet=quiet):
            compile_them()
        took_s[what] = time.perf_counter() - begun_s
        note(f"  {what}: {took_s[what]:.1f} s", quiet=quiet)
    if json:
        print_json({"folder": str(cache_folder()), "pruned_folders": pruned, "took_s": took_s})
    elif not quiet:
        print(f"ready in {cache_folder()}" + (f", {pruned} old folders deleted" if prune else ""))


def _parts() -> dict[str, Callable[[], None]]:
    from trimtab.experiments.reference import compile_bounds
    from trimtab.mechanics.calls import compile_all
    from trimtab.policies import find, names

    return {
        "the simulator": lambda: compile_all([]),
        "the policies": lambda: compile_all(
            [p for name in names("dispatch") for p in find(name)]
            + [find(f"least-expected-wait+{name}")[1] for name in names("order")]
        ),
        "the lower bounds": compile_bounds,
    }
