"""The gateway's bench: load against its own mock backends, and the page."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.figures import Skipped, at_least, figure
from bench.gateway.interpreters import build_of, run_by
from bench.gateway.load import Job, Run
from bench.gateway.page import page
from bench.gateway.proxies import PROXIES
from bench.results import Result

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "bench.gateway.backend", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as backend:  # type: ignore[call-overload]
        yield json.loads(backend.stdout.readline())[0]
        backend.communicate()


@pytest.mark.parametrize(
    ("job", "requests"),
    [
        ({"mode": "closed", "requests": 50, "connections": 4, "size": 8192}, 50),
        ({"mode": "open", "rate": 500, "seconds": 0.1}, 50),
        ({"mode": "streams", "connections": 3}, 3),
    ],
)
def test_load_is_answered(port: int, job: dict[str, object], requests: int) -> None:
    result = asyncio.run(Run(Job(port=port, key="k", **job)).go())  # type: ignore[arg-type]
    assert (result["requests"], result["errors"], result["pending"]) == (requests, 0, 0)
    if job["mode"] == "streams":
        assert result["chunks"] == 3 * 102
        assert result["delay_p99_s"] > 0


def test_page_shows_options_targets_and_what_is_missing() -> None:
    figures = (
        figure([10.0, 12.0], "requests/s", size="1 KiB", proxy="trimtab", figure="per core"),
        figure([2.0], "×", at_least(1.3), size="1 KiB", proxy="trimtab", figure="speed, over nginx's"),
    )
    on = {"cpu": "c", "cores": 2, "memory_gb": 1, "system": "s"}
    skipped = (Skipped({"proxy": "litellm"}, "not installed"),)
    text = page({"requests": Result("2026-01-01T00:00", 1.0, False, on, {}, figures, skipped)})
    assert all(proxy.about in text for proxy in PROXIES)
    assert "| requests | 1 KiB · speed, over nginx's | 2.00 |  | × | ≥ 1.3 | yes |" in text
    assert "| trimtab | 11.0 (10.0 – 12.0) |" in text
    assert "Not measured: litellm (not installed)" in text


def test_another_python_runs_what_is_written_in_it(tmp_path: Path) -> None:
    written = {proxy.name: proxy for proxy in PROXIES if proxy.python_env is not None}
    assert set(written) == {"trimtab", "litellm"}
    for proxy in PROXIES:
        other = run_by(proxy, "another-python")
        first, *rest = other.command(tmp_path, 1, [2])
        assert rest == proxy.command(tmp_path, 1, [2])[1:]
        assert (first == "another-python") == (proxy.name in written)
        if proxy.name in written:
            packages = other.environment["PYTHONPATH"].split(":")[-1]
            assert Path(packages).is_relative_to(proxy.python_env or "")
    assert build_of(sys.executable).startswith(".".join(map(str, sys.version_info[:3])))
