"""`trimtab allocate`: decisions about training jobs, for a given state or for one after another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.cli import completion
from trimtab.cli.help_texts import FLAG, examples
from trimtab.cli.output import note, print_json, stdout_console
from trimtab.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "allocate",
        epilog=examples(
            "trimtab allocate --jobs jobs.csv --cluster cluster.yaml --policy tiresias",
            "trimtab allocate --jobs jobs.csv --cluster cluster.yaml --profiles speeds/ -p elasticflow",
            "trimtab allocate --jobs jobs.csv --cluster cluster.yaml --policy my.py:Mine --dry-run",
            "trimtab allocate --jobs - --cluster cluster.yaml --policy sia < states.jsonl",
            "trimtab allocate --serve 8077 --cluster cluster.yaml --policy tiresias",
        ),
    )(allocate)


def allocate(
    cluster: Annotated[Path, typer.Option("--cluster", help="Take the cluster from this YAML file.")],
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", help="Decide with this policy.", autocompletion=completion.allocators),
    ],
    jobs: Annotated[
        Path | None,
        typer.Option(
            "--jobs",
            help="Take the state of the jobs from this file. -: one JSON object a line from standard input, "
            "one decision a line to standard output.",
            show_default=False,
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option("--profiles", help="Take the speeds of models from this folder or throughputs.json."),
    ] = None,
    now: Annotated[
        float | None,
        typer.Option("--now", help="Decide at this second.  [dim]Default: the latest submission[/dim]"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what the queue holds beside what the policy would give, no JSON.",
            metavar=FLAG,
        ),
    ] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            help="Answer states over HTTP: POST /v1/allocate, GET /healthz.",
            metavar="[HOST:]PORT",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print how many GPUs a policy gives each training job now, where and why, as JSON."""
    from trimtab.cli.allocation_server import answer_lines
    from trimtab.experiments.training.allocate import Decisions
    from trimtab.traces.read_jobs import read_jobs

    if (jobs is None) == (serve is None):
        raise UsageError("missing or both", field="--jobs, --serve", expected="one of the two")
    decisions = Decisions(cluster, policy, profiles=profiles)
    if serve is not None:
        _serve(decisions, serve)
    elif str(jobs) == "-":
        if dry_run or now is not None:
            option = "--dry-run" if dry_run else "--now"
            raise UsageError("does not go with --jobs -", field=option, expected="now_s in each object")
        if answer_lines(decisions, sys.stdin, sys.stdout):
            raise typer.Exit(2)
    else:
        assert jobs is not None
        answer = decisions.of(read_jobs(jobs, use="state"), now_s=now)
        _print_difference(answer) if dry_run else print_json(answer)


def _serve(decisions: Any, address: str) -> None:
    from trimtab.cli.allocation_server import PATH, AllocationServer

    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError("no address", field="--serve", value=address, expected="PORT or HOST:PORT")
    try:
        server = AllocationServer((host.strip("[]") or "127.0.0.1", int(port)), decisions)
    except OSError as error:
        problem = f"can't listen: {error.strerror or error}"
        raise UsageError(problem, field="--serve", value=address, expected="a free port") from None
    note(f"{decisions.policy} decides at http://{host or '127.0.0.1'}:{server.server_port}{PATH}")
    server.until_signalled()


def _print_difference(answer: dict[str, Any]) -> None:
    """Print the held GPUs beside the policy's, and the sums."""
    from rich.table import Table

    table = Table("job", "held", "policy", "change", "reason", box=None)
    counts: dict[str, int] = {}
    for job in answer["jobs"]:
        counts[job["change"]] = counts.get(job["change"], 0) + 1
        if job["change"] not in {"keep", "wait"}:
            table.add_row(
                job["job_id"], _placed(job["held"]), _placed(job["nodes"]), job["change"], job["reason"]
            )
    console = stdout_console()
    console.print(table if table.row_count else "nothing would change")
    sums = ", ".join(f"{n} {change}" for change, n in sorted(counts.items()))
    console.print(
        f"{answer['policy']} at {answer['now_s']:g} s: {answer['gpus_given']} of {answer['gpus']} GPUs "
        f"given, {answer['gpus_held']} held by the queue; {sums}"
    )


def _placed(nodes: dict[str, int]) -> str:
    if not nodes:
        return "–"
    return f"{sum(nodes.values())}: " + ", ".join(f"{name} {n}" for name, n in nodes.items())
