"""`trimtab compare` on a shared cluster, as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.shared_clusters import small_shared


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"policies": ["borrowing"]}, "borrowing"),
        ({"resource": "cpu_cores"}, "resource"),
        ({"round_s": 0}, "round_s"),
    ],
)
def test_bad_input_is_named(cli: Any, tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(small_shared(**changed)))
    result = cli("compare", str(file), "--out", str(tmp_path / "out"), "--no-report", "-j", "1")
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr


def test_compare_prints_the_table(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(small_shared()))
    command = ("compare", str(file), "-p", "lending", "-p", "muxflow", "-p", "static(nodes=3)", "-j", "1")
    result = cli(*command, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    assert "what each threshold trades" in (tmp_path / "out" / "report.html").read_text()
    assert "gained" in result.stdout
    assert "static(nodes=3)" in result.stdout
    assert cli("scenario", "check", str(file)).exit_code == 0
    assert cli("compare", str(file), "--load", "0.5").exit_code == 2
