"""`trimtab case`: from nothing to a page; input that it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Cli
from trimtab.experiments import case
from trimtab.experiments.case import Scale


def test_it_writes_a_page_and_figures(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "QUICK", Scale(requests=40, seeds=2, loads=(0.8,), switch_seeds=1))
    done = cli("case", "--quick", "--learned", "mine=jiq", "--jobs", 1, "--out", "out")
    assert done.exit_code == 0, done.stderr
    assert "Strategies, load 0.8" in done.stdout
    assert "round robin" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "results.json"]
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["strategies"]["0.8"]["mine"]["completion_mean_s"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--learned", "nothing"), ("--learned", "nothing", "NAME=POLICY")),
        (("--learned", "mine=no-such-policy"), ("no-such-policy",)),
        (("--seeds", 1), ("--seeds", "2")),
    ],
)
def test_bad_input_is_told(cli: Cli, arguments: tuple[object, ...], told: tuple[str, ...]) -> None:
    done = cli("case", "--quick", *arguments)
    assert done.exit_code == 2
    assert all(word in done.stderr for word in told)
    assert "Traceback" not in done.stderr
