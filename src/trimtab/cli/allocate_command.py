"""`trimtab allocate`: decisions about training jobs, for a given state or for one after another.

Decisions about training jobs over standard input and over HTTP: one state in, one decision out.

    POST /v1/allocate   a state as JSON → the decision; 400: a state that can't be, 500: a failing policy
    GET  /healthz       200 while decisions are made

The server keeps nothing between two requests, so it may be restarted, or several may run, at any time.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json, stdout_console
from trimtab.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from trimtab.experiments.training.allocate import Decisions


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


PATH, HEALTH = "/v1/allocate", "/healthz"
MOST_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 30.0  # of a client that sends nothing


def answer_lines(decisions: Decisions, states: TextIO, answers: TextIO) -> int:
    """Answer each line; a line that can't be answered gets an error object. Returns the number of those."""
    failed = 0
    for line in states:
        if line.strip():
            status, answer = answered(decisions, line)
            failed += status != HTTPStatus.OK
            answers.write(json.dumps(answer, allow_nan=False) + "\n")
            answers.flush()
    return failed


def answered(decisions: Decisions, text: str | bytes) -> tuple[HTTPStatus, dict[str, Any]]:
    """Status and answer of one state as JSON text."""
    from trimtab.experiments.training.allocate import error_answer

    state: Any = None
    try:
        state = _parsed(text)
        return HTTPStatus.OK, decisions.of_state(state)
    except UsageError as error:
        return HTTPStatus.BAD_REQUEST, error_answer(error, state)
    except PolicyError as error:
        return HTTPStatus.INTERNAL_SERVER_ERROR, error_answer(error, state)


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text[:80].decode(errors="replace") if isinstance(text, bytes) else text[:80]
        expected = "one JSON object a line"
        raise UsageError(f"no JSON: {error}", field="state", value=shown, expected=expected) from None


class AllocationServer(ThreadingHTTPServer):
    """Answers states until it is told to stop."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], decisions: Decisions) -> None:
        self.decisions = decisions
        super().__init__(address, _Handler)

    def until_signalled(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: threading.Thread(target=self.shutdown).start())
        with self:
            self.serve_forever(poll_interval=0.1)


class _Handler(BaseHTTPRequestHandler):
    server: AllocationServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        if self.path == HEALTH:
            decisions = self.server.decisions
            self._send(HTTPStatus.OK, {"status": "ok", "policy": decisions.policy, "gpus": decisions.gpus})
        elif self.path == PATH:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"expected {PATH} or {HEALTH}")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != PATH:
            self._refuse(HTTPStatus.NOT_FOUND, f"expected {PATH}")
        elif not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        elif int(length) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MOST_BYTES} bytes")
        else:
            self._send(*answered(self.server.decisions, self.rfile.read(int(length))))

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True  # what the client still sends is no request
        self._send(status, {"error": {"message": f"{status.phrase}: {message}"}})

    def _send(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        body = json.dumps(answer, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
