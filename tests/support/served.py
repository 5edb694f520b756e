"""`trimtab serve` as a user starts it: a process of its own, its configuration, and requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from support.backends import BackendProcess
from support.waiting import wait_until
from trimtab.gateway.config import digest_of

T = TypeVar("T")
START_S = 400.0  # with no cache, all kernels are compiled first
WAIT_S = 90.0
KEY, ADMIN_KEY = "tt-key-of-the-tests-0123456789", "tt-admin-key-of-the-tests-987654"
READY = re.compile(r"^  metrics +(\S+)/metrics$", re.MULTILINE)  # said last of what names an address


def key_entry(name: str, key: str, **more: object) -> dict[str, object]:
    """A tenant of the configuration."""
    return {"name": name, "sha256": digest_of(key.encode()), **more}


def node_of(backend: BackendProcess, **more: object) -> dict[str, object]:
    """A fake backend as an entry of `nodes`."""
    entry = {"name": backend.name, "url": backend.url, "models": list(backend.models)}
    return {**entry, "capacity": backend.options.slots, **more}


def config_of(*backends: BackendProcess, **changes: object) -> dict[str, Any]:
    """A configuration of these backends with one key; `changes` replace whole entries."""
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(ADMIN_KEY.encode())}]},
        "keys": [key_entry("tests", KEY)],
        "nodes": [node_of(backend) for backend in backends],
        "health": {"period_s": 0.2, "timeout_s": 5.0, "healthy_threshold": 1},
        **changes,
    }


def posts(backend: BackendProcess) -> list[dict[str, Any]]:
    """What came to a backend from clients; the gateway's checks come by GET, at any moment."""
    return [seen for seen in backend.requests() if seen["method"] == "POST"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with names in lower case, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway's process; `folder` has its configuration, its state and all that it said."""

    process: subprocess.Popen[bytes]
    folder: Path

    def printed(self) -> str:
        """What it wrote to its standard output so far: addresses and how to use it."""
        return (self.folder / "printed").read_text()

    def said(self) -> str:
        """All it wrote so far, the logs last."""
        return self.printed() + (self.folder / "said").read_text()

    def _found(self, pattern: str) -> str:
        match = re.search(pattern, self.said(), re.MULTILINE)
        assert match is not None, self.said()
        return match[1]

    @property
    def url(self) -> str:
        """Where clients go."""
        return self._found(r"^trimtab serves (\S+)")

    @property
    def port(self) -> int:
        """Where clients go, without the host."""
        return int(self.url.rpartition(":")[2])

    @property
    def admin_url(self) -> str:
        """Where the admin goes."""
        return self._found(READY.pattern)

    @property
    def link(self) -> str:
        """The sign-in link of the dashboard."""
        return self._found(r"^  dashboard +(\S+)")

    @property
    def key(self) -> str:
        """The key that it made."""
        return self._found(r"^  key +(\S+)")

    @property
    def is_up(self) -> bool:
        """Whether it serves. It must not have ended before."""
        assert self.process.poll() is None, self.said()
        return READY.search(self.said()) is not None

    def end(self) -> None:
        """Kill it with all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        return self.process.wait(WAIT_S)

    def configure(self, config: Mapping[str, object]) -> None:
        """Write another configuration; a reload reads it."""
        configure(self.folder, config)

    def call(
        self, path: str, body: object = None, *, key: str = KEY, method: str = "", **headers: str
    ) -> Answer:
        """One request of a client; `x_request_id="…"` sets a header."""
        return fetch(self.url + path, body, key=key, method=method, **headers)

    def admin(self, path: str, body: object = None, *, key: str = ADMIN_KEY, method: str = "") -> Answer:
        """One request to the admin port."""
        return fetch(self.admin_url + path, body, key=key, method=method)

    def receipt(self, request_id: str) -> dict[str, Any]:
        """Why a request went where it went."""
        return dict(self.admin(f"/admin/requests/{request_id}").json())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.admin("/metrics").body.decode().splitlines():
            match = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line)
            if match is not None and match[1] == name:
                has = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if labels.items() <= has.items():
                    total += float(match[3])
        return total


def configure(folder: Path, config: Mapping[str, object]) -> None:
    """Write gateway.yaml at once: nobody reads a half of it."""
    fresh = folder / "gateway.new"
    fresh.write_text(yaml.safe_dump(dict(config)))
    fresh.replace(folder / "gateway.yaml")


def spawn(
    folder: Path,
    config: Mapping[str, object] | None,
    *arguments: str,
    command: tuple[str, ...] = ("serve",),
    **environ: str,
) -> Served:
    """Start it in this folder and do not wait; no configuration = what the arguments say.

    `command`: what the name of the file follows.
    """
    file = [] if config is None else ["gateway.yaml"]
    if config is not None:
        configure(folder, config)
    with (folder / "printed").open("wb") as printed, (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab", *command, *file, *arguments],
            cwd=folder,
            env={**os.environ, "TRIMTAB_STATE_DIR": str(folder / "state"), **environ},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=said,
            start_new_session=True,
        )
    return Served(process, folder)


@contextlib.contextmanager
def served(
    folder: Path, config: Mapping[str, object] | None, *arguments: str, **options: Any
) -> Iterator[Served]:
    """A gateway that serves as long as the block lasts. Where the block does not end it, it ends cleanly."""
    gateway = spawn(folder, config, *arguments, **options)
    try:
        wait_until(lambda: gateway.is_up, timeout_s=START_S)
        yield gateway
        if gateway.process.poll() is None:
            gateway.tell(signal.SIGINT)
            assert gateway.wait() == 0, gateway.said()
    finally:
        gateway.end()
    assert "Traceback" not in gateway.said(), gateway.said()


def fetch(url: str, body: object = None, *, key: str = KEY, method: str = "", **headers: str) -> Answer:
    """One HTTP request, whatever the status of its answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method or None)
    for name, value in {"content_type": "application/json", **headers}.items():
        request.add_header(name.replace("_", "-"), value)
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=START_S) as response:
            return _answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, error.headers, error.read())


def _answer(status: int, headers: Any, body: bytes) -> Answer:
    return Answer(status, {name.lower(): value for name, value in headers.items()}, body)


def chat(model: str = "demo-chat", content: str = "hello", **more: object) -> dict[str, object]:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}
