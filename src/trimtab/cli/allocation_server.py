"""Decisions about training jobs over standard input and over HTTP: one state in, one decision out.

    POST /v1/allocate   a state as JSON → the decision; 400: a state that can't be, 500: a failing policy
    GET  /healthz       200 while decisions are made

The server keeps nothing between two requests, so it may be restarted, or several may run, at any time.
"""

from __future__ import annotations

import json
import signal
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, TextIO

from trimtab.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from trimtab.experiments.training.allocate import Decisions

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
