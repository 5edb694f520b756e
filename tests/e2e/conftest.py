"""The command line as a user would use it: in this process where that is enough, else in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trimtab.cli.app import app

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"

Cli = Callable[..., Result]


SHARED = {"fleet", "gateway", "pair", "stage", "whole"}  # module fixtures with a gateway that serves


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one running gateway go to one process of pytest's: else each of them starts one of its own."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            for name in SHARED.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{name}"))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("run", "tiny", …)` in an empty folder; the result has exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TRIMTAB_DEBUG", raising=False)
    return lambda *arguments, stdin=None: CliRunner().invoke(
        app, [str(a) for a in arguments], input=stdin, prog_name="trimtab"
    )


def process(*arguments: object, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """`trimtab …` in a process of its own."""
    command = [sys.executable, "-m", "trimtab", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
