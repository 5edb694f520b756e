"""`trimtab solve gap`: what it prints, and how it refuses."""

from __future__ import annotations

import gzip
import importlib
import json

import pytest

INSTANCE = "2 3\n1 2 3\n4 5 6\n1 1 1\n2 2 1\n2 4\n"  # one of the tasks has to go to node 1: 3 more than 6


@pytest.mark.parametrize("packed", [False, True])
def test_json(cli, tmp_path, packed):
    file = tmp_path / "instance"
    file.write_bytes(gzip.compress(INSTANCE.encode()) if packed else INSTANCE.encode())
    result = cli("solve", "gap", file, "--json")
    assert result.exit_code == 0
    solution = json.loads(result.stdout)
    assert solution["status"] == "optimal"
    assert (solution["objective"], solution["bound"], solution["gap_frac"]) == (9, 9, 0)
    assert sorted(solution["assignment"]) == [0, 0, 1]
    assert solution["time_s"] > 0
    assert solution["method"] == "exact"


def test_maximise_and_the_table(cli, tmp_path):
    (tmp_path / "instance").write_text(INSTANCE)
    result = cli("solve", "gap", "instance", "--maximise", "--time-limit", 5)
    assert result.exit_code == 0
    for part in ("optimal", "12", "method", "exact", "3 placed, 0 left out"):  # 5 + 6 on node 1, 1 on node 0
        assert part in result.stdout


@pytest.mark.parametrize("method", ["greedy", "dual", "dual-smoothed", "dual-of-both", "search"])
def test_a_method_by_name(cli, tmp_path, method):
    (tmp_path / "instance").write_text(INSTANCE)
    solution = json.loads(cli("solve", "gap", "instance", "--method", method, "--json").stdout)
    assert solution["bound"] <= 9 <= solution["objective"]
    if method != "search":
        assert solution["method"] == method


def test_an_unknown_method_is_refused(cli, tmp_path):
    (tmp_path / "instance").write_text(INSTANCE)
    result = cli("solve", "gap", "instance", "--method", "simplex")
    assert result.exit_code == 2
    for part in ("--method", "simplex", "dual-smoothed"):
        assert part in result.stderr


def test_compiling_does_not_use_up_the_time(cli, tmp_path, monkeypatch):
    module, compiled = importlib.import_module("trimtab.solvers.compilation"), []
    monkeypatch.setattr(module, "are_solvers_compiled", lambda: bool(compiled))
    monkeypatch.setattr(module, "compile_solvers", lambda: compiled.append(True))
    (tmp_path / "instance").write_text(INSTANCE)
    runs = [cli("solve", "gap", "instance") for _ in range(2)]
    assert ["compiling" in run.stderr for run in runs] == [True, False]
    assert len(compiled) == 1


def test_infeasible_is_an_answer(cli, tmp_path):
    (tmp_path / "instance").write_text(INSTANCE.replace("2 4\n", "0 1\n"))
    solution = json.loads(cli("solve", "gap", "instance", "--json").stdout)
    assert solution["status"] == "infeasible"
    assert "task 0" in solution["reason"]
    assert solution["objective"] is None
    assert solution["assignment"] == [-1, -1, -1]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b"\x1f\x8b123", "gzip"),
        (b"\xff\xfe\x00", "binary"),
        (b"2 3 nonsense", "ends too early"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_no_instance(cli, tmp_path, content, part):
    if content is not None:
        (tmp_path / "instance").write_bytes(content)
    result = cli("solve", "gap", "instance")
    assert result.exit_code == 2
    assert part in result.stderr
    assert "Traceback" not in result.stderr


def test_a_time_limit_of_nothing(cli, tmp_path):
    (tmp_path / "instance").write_text(INSTANCE)
    result = cli("solve", "gap", "instance", "--time-limit", 0)
    assert result.exit_code == 2
    assert "--time-limit" in result.stderr
