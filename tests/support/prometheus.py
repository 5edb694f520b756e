"""A real Prometheus server, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.waiting import wait_until

PROMETHEUS = shutil.which("prometheus")


@contextlib.contextmanager
def prometheus(config: Path, port: int) -> Iterator[None]:
    """A server with this configuration; its data and its log lie beside that."""
    folder = config.parent
    command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        server.terminate()
        server.wait(20)


def ask(port: int, query: str) -> list[Any]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def ask_until(port: int, query: str) -> list[Any]:
    def answer() -> list[Any]:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):  # it still starts
            return ask(port, query)
        return []

    return wait_until(answer, timeout_s=120.0)
