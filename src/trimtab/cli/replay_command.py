"""`trimtab replay`: simulates a recording, or a log of one's own, and compares it with the live run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, show, spinner
from trimtab.cli.shared_options import (
    Json,
    Quiet,
    TraceRows,
    policies_option,
    read_ahead,
    with_rows,
)
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.serving.replay import Completions, Replay


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "replay",
        epilog=examples(
            "trimtab replay recordings/",
            "trimtab replay recordings/ --policy least-expected-wait --policy round-robin --json",
            "trimtab replay recordings/ --after 300",
            "trimtab replay log.csv --cluster cluster.yaml --policy least-connections --map node=host",
        ),
    )(grouped(replay))


def replay(
    recording: Annotated[
        Path,
        typer.Argument(
            help="A recording: a file, or the folder that holds it; or a log of your own.",
            metavar="RECORDING",
        ),
    ],
    rows: TraceRows,
    table: TableOptions,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Nodes that served a log of your own.", metavar="FILE"),
    ] = None,
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
    """Replay a recording of the gateway in the simulator, and compare it with the live run.

    Or a log of your own that tells how long requests took, on the cluster that served it.
    """
    from trimtab.experiments.serving.replay import replay as run_replay

    scenario = _scenario(recording, cluster, rows, table)
    if scenario is not None:
        read_ahead(scenario, quiet=quiet or json)
    with spinner(f"replaying {recording.name}", quiet=quiet or json):
        done = run_replay(recording, policy, scenario=scenario, after_s=after)
    if json:
        print_json(done.to_dict())
        return
    show(_table(done))
    for text in _notes(done):
        note(f"note: {text}", quiet=quiet)


def _scenario(recording: Path, cluster: Path | None, rows: TraceRows, table: TableOptions) -> Scenario | None:
    """A log of one's own on its cluster; None for a recording, which says all itself. Raises UsageError."""
    from trimtab.errors import UsageError
    from trimtab.experiments.scenario.loader import load_cluster, scenario_on
    from trimtab.traces.gateway_recording import is_recording

    if is_recording(recording):
        named = [*rows.given_options(), *table.given(), *(["--cluster"] if cluster else [])]
        if named:
            expected = "a log of your own; --after leaves the first seconds out of the figures"
            raise UsageError("does not apply to a recording", field=named[0], expected=expected)
        return None
    changed = [option for option in rows.given_options() if option in ("--rate-scale", "--sample")]
    if changed:
        raise UsageError(
            "does not apply to a replay", field=changed[0], expected="the load that the log was recorded at"
        )
    part = None if cluster is None else load_cluster(cluster)
    return with_rows(scenario_on(recording, part), rows, table)


def _table(done: Replay) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    for title in ("mean s", "p50 s", "p99 s", "to live %", "p50 %", "p99 %", "same node %", "mean − first s"):
        table.add_column(title, justify="right")
    table.add_row(f"live: {done.live_policy or 'the log'}", *_seconds(done.live))
    for run in done.policies:
        apart = "" if run.difference_s is None else f"{run.difference_s.mean:+.4g}"
        if run.difference_s is not None and run.difference_s.ci95 is not None:
            apart += f" ± {run.difference_s.ci95:.2g}"
        if done.is_hidden and apart:
            apart = "hidden"
        same = "–" if run.same_node_frac is None else f"{100 * run.same_node_frac:.1f}"
        table.add_row(
            f"replay: {run.policy}", *_seconds(run.completions), *_percent(run.error_frac), same, apart
        )
    return table


def _seconds(of: Completions) -> tuple[str, ...]:
    return tuple(f"{value:.4g}" for value in (of.mean_s, of.p50_s, of.p99_s))


def _percent(of: Completions) -> tuple[str, ...]:
    return tuple(f"{100 * value:+.1f}" for value in (of.mean_s, of.p50_s, of.p99_s))


def _notes(done: Replay) -> list[str]:
    notes = [f"{counted(done.requests, 'request')} that were served live"]
    if done.rows_dropped:
        notes.append(f"the recorder could not write {counted(done.rows_dropped, 'request')}")
    if done.is_hidden and len(done.policies) > 1:
        first = done.policies[0].policy
        other = f", or {first} is not {done.live_policy}, under which it was recorded"
        notes.append(
            f"differences between policies are hidden: the replay of {first} is more than 10 % off the live "
            f"run{other if done.live_policy else ''}"
        )
    return notes
