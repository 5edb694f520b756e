"""`trimtab replay`: simulates a recording of the gateway and compares the result with the live run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.help_texts import examples
from trimtab.cli.output import note, print_json, show, spinner
from trimtab.cli.shared_options import Json, Quiet, policies_option

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.experiments.serving.replay import Completions, Replay


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "replay",
        epilog=examples(
            "trimtab replay recordings/",
            "trimtab replay recordings/ --policy least-expected-wait --policy round-robin --json",
            "trimtab replay recordings/ --after 300",
        ),
    )(replay)


def replay(
    recording: Annotated[
        Path, typer.Argument(help="A file of a recording, or the folder that holds it.", metavar="RECORDING")
    ],
    policy: Annotated[list[str] | None, policies_option("Replay with", "the recorded one")] = None,
    after: Annotated[
        float,
        typer.Option(
            help="Leave requests of the first seconds, when estimates were learned, out of the figures.",
            metavar="SECONDS",
            min=0.0,
        ),
    ] = 0.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replay a recording of the gateway in the simulator, and compare it with the live run."""
    from trimtab.experiments.serving.replay import replay as run_replay

    with spinner(f"replaying {recording.name}", quiet=quiet or json):
        done = run_replay(recording, policy, after_s=after)
    if json:
        print_json(done.to_dict())
        return
    show(_table(done))
    for text in _notes(done):
        note(f"note: {text}", quiet=quiet)


def _table(done: Replay) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    for title in ("mean s", "p50 s", "p99 s", "to live %", "p50 %", "p99 %", "same node %", "mean − first s"):
        table.add_column(title, justify="right")
    table.add_row(f"live: {done.live_policy}", *_seconds(done.live))
    for run in done.policies:
        apart = "" if run.difference_s is None else f"{run.difference_s.mean:+.4g}"
        if run.difference_s is not None and run.difference_s.ci95 is not None:
            apart += f" ± {run.difference_s.ci95:.2g}"
        if done.is_hidden and apart:
            apart = "hidden"
        same = f"{100 * run.same_node_frac:.1f}"
        table.add_row(
            f"replay: {run.policy}", *_seconds(run.completions), *_percent(run.error_frac), same, apart
        )
    return table


def _seconds(of: Completions) -> tuple[str, ...]:
    return tuple(f"{value:.4g}" for value in (of.mean_s, of.p50_s, of.p99_s))


def _percent(of: Completions) -> tuple[str, ...]:
    return tuple(f"{100 * value:+.1f}" for value in (of.mean_s, of.p50_s, of.p99_s))


def _notes(done: Replay) -> list[str]:
    notes = [f"{done.requests:,} requests that were served live"]
    if done.rows_dropped:
        notes.append(f"{done.rows_dropped:,} requests are missing: the recorder could not write them")
    if done.is_hidden and len(done.policies) > 1:
        first = done.policies[0].policy
        notes.append(
            f"differences between policies are hidden: the replay of {first} is more than 10 % off the live "
            f"run, or {first} is not {done.live_policy}, under which it was recorded"
        )
    return notes
