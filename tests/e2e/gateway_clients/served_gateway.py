"""`trimtab serve` as a user starts it: a process of its own before demo backends, and what it printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trimtab.runtime.gateway.config import digest_of

START_S = 400.0  # with no cache, all kernels are compiled first
WAIT_S = 60.0
T = TypeVar("T")
KEY = "tt-a-key-of-the-tests"
ADMIN_KEY = "tt-an-admin-key-of-the-tests"
ADMIN = {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(ADMIN_KEY.encode())}]}


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with names in lower case, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


@dataclass(slots=True)
class Served:
    """A running gateway."""

    process: subprocess.Popen[str]
    folder: Path
    said: list[str] = field(default_factory=list)  # lines of its stderr
    ready: threading.Event = field(default_factory=threading.Event)

    def _found(self, pattern: str) -> str:
        match = re.search(pattern, "\n".join(self.said), re.M)
        assert match is not None, self.said
        return match[1]

    @property
    def url(self) -> str:
        """Where clients go."""
        return self._found(r"^trimtab serves (\S+)")

    @property
    def admin_url(self) -> str:
        """Where the admin goes."""
        return self._found(r"^  metrics +(\S+)/metrics")

    @property
    def link(self) -> str:
        """The sign-in link of the dashboard."""
        return self._found(r"^  dashboard +(\S+)")

    @property
    def key(self) -> str:
        """The key that it made."""
        return self._found(r"^  key +(\S+)")

    def call(
        self, path: str, body: object = None, *, key: str = KEY, method: str = "", **headers: str
    ) -> Answer:
        """One request of a client; `x_request_id="…"` sets a header."""
        return ask(self.url + path, body, key=key, method=method, **headers)

    def admin(self, path: str, body: object = None, *, key: str = ADMIN_KEY, method: str = "") -> Answer:
        """One request to the admin port."""
        return ask(self.admin_url + path, body, key=key, method=method)

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


def ask(url: str, body: object = None, *, key: str = KEY, method: str = "", **headers: str) -> Answer:
    """One HTTP request, whatever the status of its answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method or None)
    for name, value in {"content_type": "application/json", **headers}.items():
        request.add_header(name.replace("_", "-"), value)
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=WAIT_S) as response:
            return _answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, error.headers, error.read())


def _answer(status: int, headers: Any, body: bytes) -> Answer:
    return Answer(status, {name.lower(): value for name, value in headers.items()}, body)


def node_of(backend: Any, **more: object) -> dict[str, object]:
    """A demo backend as an entry of `nodes`."""
    entry = {"name": backend.name, "url": backend.url, "models": list(backend.models)}
    return {**entry, "capacity": backend.options.slots, **more}


def config_of(*backends: Any, **more: object) -> dict[str, object]:
    """A configuration of these backends with one key; `more` goes over it."""
    base: dict[str, object] = {
        "listen": "127.0.0.1:0",
        "admin": ADMIN,
        "keys": [{"name": "tests", "sha256": digest_of(KEY.encode())}],
        "nodes": [node_of(backend) for backend in backends],
        "health": {"period_s": 0.2, "timeout_s": 5.0},
        "drain_s": 5.0,
    }
    return base | more


@contextmanager
def served(
    folder: Path, config: Mapping[str, object] | None, *arguments: str, env: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """`trimtab serve` in a folder of its own; None = without a file. It has to end cleanly."""
    given = [*arguments]
    if config is not None:
        (folder / "gateway.yaml").write_text(yaml.safe_dump(dict(config)))
        given.insert(0, "gateway.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "serve", *given],
        cwd=folder,
        env={**os.environ, "TRIMTAB_STATE_DIR": str(folder / "state"), **(env or {})},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    gateway = Served(process, folder)
    reader = threading.Thread(target=_read, args=(gateway,), daemon=True)
    reader.start()
    try:
        assert gateway.ready.wait(START_S), gateway.said
        assert process.poll() is None, gateway.said
        yield gateway
        process.terminate()
        assert process.wait(WAIT_S) == 0, gateway.said
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(WAIT_S)
        if process.stderr is not None:
            process.stderr.close()
    assert not [line for line in gateway.said if "Traceback" in line], "\n".join(gateway.said)


def _read(gateway: Served) -> None:
    assert gateway.process.stderr is not None
    for line in gateway.process.stderr:
        gateway.said.append(line.rstrip("\n"))
        if line.startswith("  metrics"):
            gateway.ready.set()
    gateway.ready.set()  # it has ended


def until(ask_for: Callable[[], T], wanted: Callable[[T], object] = bool) -> T:
    """Ask again until the answer is as wanted; fails after WAIT_S."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        got = ask_for()
        if wanted(got):
            return got
        assert time.monotonic() < deadline_s, got
        time.sleep(0.02)


def chat(model: str = "demo-chat", content: str = "hello", **more: object) -> dict[str, object]:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}
