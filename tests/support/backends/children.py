"""Fake backends as child processes, from outside: start them, talk to their control paths, end them."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.backends.options import Options, to_arguments

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
TESTS = str(Path(__file__).parents[2])


@dataclass(slots=True)
class BackendProcess:
    """A running fake backend. `stop()` ends it; so does the end of this process, or of a `with` block."""

    options: Options
    url: str  # http://HOST:PORT, without a path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.options.shown_name

    @property
    def models(self) -> tuple[str, ...]:
        """What it serves."""
        return self.options.served_models

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        """End it, by force where it does not end within seconds. Safe to call again."""
        end_process(self.process)

    def set_faults(self, *rules: Mapping[str, object]) -> None:
        """Put these rules (see faults.py) in the place of those in force; none = no faults."""
        self._call("/_demo/faults", {"faults": list(rules)})

    def stats(self) -> dict[str, Any]:
        """Its counts: running, waiting, received, served, aborted, tokens."""
        return self._call("/_demo/stats")

    def requests(self) -> list[dict[str, Any]]:
        """The latest requests it got: id, method, path, header names, outcome, status."""
        requests: list[dict[str, Any]] = self._call("/_demo/requests")["requests"]
        return requests

    def _call(self, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=READY_TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def __enter__(self) -> BackendProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def launch(options: Options) -> BackendProcess:
    """Start a backend and wait until it listens. Raises RuntimeError where it does not."""
    return launch_all([options])[0]


def launch_all(wanted: Sequence[Options]) -> tuple[BackendProcess, ...]:
    """Start backends side by side and wait until all listen. Raises RuntimeError: then none runs."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(_spawned(options) for options in wanted)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        urls = [_url_of(process, deadline_s) for process in processes]
    except BaseException:
        for process in processes:
            end_process(process)
        raise
    return tuple(map(BackendProcess, wanted, urls, processes))


@contextlib.contextmanager
def launched(*wanted: Options) -> Iterator[tuple[BackendProcess, ...]]:
    """Backends that run as long as the block does."""
    backends = launch_all(wanted)
    try:
        yield backends
    finally:
        for backend in backends:
            backend.stop()


def with_tests_on_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of a process that imports `support`."""
    return {**environ, "PYTHONPATH": os.pathsep.join([TESTS, *filter(None, [environ.get("PYTHONPATH")])])}


def _spawned(options: Options) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for the gateway, which drains and then ends its backends
    arguments = [*to_arguments(options), f"--parent={os.getpid()}"]
    command = [sys.executable, "-m", "support.backends", *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=with_tests_on_path(os.environ),
    )


def _url_of(process: subprocess.Popen[bytes], deadline_s: float) -> str:
    """What its first line says. Raises RuntimeError."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        is_there = selector.select(max(0.0, deadline_s - time.monotonic()))
    line = process.stdout.readline() if is_there else b""
    if not line:
        raise RuntimeError("a fake backend did not start; what it said is above")
    return str(json.loads(line)["url"])


def end_process(process: subprocess.Popen[bytes], within_s: float = STOP_TIMEOUT_S) -> None:
    """End a process, by force where it does not end within this time. Safe to call again."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:  # it is frozen, perhaps
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
