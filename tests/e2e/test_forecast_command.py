"""`trimtab forecast`: what it prints, and how it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest


def column_file(path: Path, values: object, name: str = "load") -> Path:
    path.write_text("\n".join([f"step,{name}", *(f"{i},{v}" for i, v in enumerate(values))]))  # type: ignore[call-overload]
    return path


def test_json_has_forecast_and_accuracy(cli, tmp_path, rng):
    file = column_file(tmp_path / "s.csv", rng.poisson(30, 200))
    result = cli("forecast", file, "--column", "load", "--horizon", 3, "--period", 7, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["step"] for row in found["forecast"]] == [1, 2, 3]
    for row in found["forecast"]:
        assert row["mean"] == pytest.approx(30, abs=5)
        assert row["quantiles"]["0.05"] < row["mean"] < row["quantiles"]["0.95"]
    methods = {row["method"]: row for row in found["accuracy"]}
    assert {
        "naive",
        "simple",
        "double",
        "triple",
        "median",
        "seasonal naive",
        "autoregressive",
        "mixture",
    } == set(methods)
    assert methods["mixture"]["mase"] < methods["naive"]["mase"]
    assert found["loses_to_naive"] is False


def test_table_and_plot_of_counted_times(cli, tmp_path, rng):
    times = np.sort(rng.uniform(0, 3000, 2000))
    lines = "\n".join(json.dumps({"at": float(t)}) for t in times)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    result = cli("forecast", "t.jsonl.gz", "--column", "at", "--window", 30, "--horizon", 5, "--arima")
    assert result.exit_code == 0, result.stderr
    for part in ("99 values", "5 steps ahead", "mean", "95 %", "steps from now", "MASE", "mixture", "ARIMA"):
        assert part in result.stdout


def test_dates_are_counted_in_any_order(cli, tmp_path):
    minutes = [f"2026-01-01 00:{m:02}:30" for m in range(59, -1, -1)]
    file = column_file(tmp_path / "d.csv", minutes, "when")
    found = json.loads(
        cli("forecast", file, "--column", "when", "--window", 60, "--horizon", 1, "--json").stdout
    )
    assert found["values"] == 59
    assert found["forecast"][0]["mean"] == pytest.approx(1.0)


def test_a_forecast_that_loses_to_naive_says_so(cli, tmp_path, rng):
    steps = np.repeat(rng.normal(0, 100, 40), 30) + np.arange(1200) % 2 * 1e-3
    file = column_file(tmp_path / "s.csv", steps)
    result = cli("forecast", file, "--column", "load", "--horizon", 1, "--json")
    found = json.loads(result.stdout)
    mase = {row["method"]: row["mase"] for row in found["accuracy"]}
    assert found["loses_to_naive"] == (mase["mixture"] > mase["naive"])
    if found["loses_to_naive"]:
        assert "loses to naive" in cli("forecast", file, "--column", "load", "--horizon", 1).stderr


def test_a_short_history_has_no_accuracy(cli, tmp_path):
    file = column_file(tmp_path / "s.csv", [1, 2, 3, 2])
    result = cli("forecast", file, "--column", "load", "--horizon", 1)
    assert result.exit_code == 0
    assert "too short for its accuracy" in result.stderr


def test_a_constant_series_is_forecast_and_said_to_be_one(cli, tmp_path):
    file = column_file(tmp_path / "s.csv", [4] * 50)
    result = cli("forecast", file, "--column", "load", "--horizon", 2)
    assert result.exit_code == 0
    assert "constant" in result.stderr


@pytest.mark.parametrize(
    ("values", "arguments", "parts"),
    [
        ([1, 2], ["--horizon", 1], ("too short to forecast from", "2 values", "at least 3")),
        ([1, "nan", 3, 4], ["--horizon", 1], ("line 3", "column load", "nan", "a finite number")),
        ([1, "x", 3, 4], ["--horizon", 1], ("line 3", "x")),
        ([1, 2, 3, 4], ["--horizon", 4], ("horizon", "less than the 4 values")),
        ([1, 2, 3, 4], ["--horizon", 0], ("--horizon",)),
        ([1, 2, 3, 4], ["--horizon", 1, "--window", 50], ("--window", "3 s, the span of the times")),
        ([1, 2, 3, 4], ["--horizon", 1, "--window", 0], ("--window", "above 0")),
        ([1, 2, 3, 4], ["--horizon", 1, "--column", "lod"], ("--column", "lod", "step, load")),
    ],
)
def test_bad_input(cli, tmp_path, values, arguments, parts):
    file = column_file(tmp_path / "s.csv", values)
    result = cli("forecast", file, "--column", "load", *arguments)
    assert result.exit_code == 2, result.stdout
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr
