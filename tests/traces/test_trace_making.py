"""Synthetic traces, and request tables to files and back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.errors import TraceError
from trimtab.traces import make_trace, read_trace, write_trace
from trimtab.traces.arrivals import GammaArrivals, PoissonArrivals
from trimtab.traces.formats import COLUMNS
from trimtab.traces.generators import ConstantSizes, LognormalSizes

POISSON = PoissonArrivals(process="poisson", rate_per_s=2.0)
LOGNORMAL = LognormalSizes(distribution="lognormal", mean=3.0, cv=1.0)

FULL = pl.DataFrame(
    {
        "arrival_s": [0.0, 0.1, 1 / 3],
        "size": [1.0, 2.5, 1e-9],
        "class": ["a", "b,\n", None],
        "model": ["m", None, "Ω"],
        "adapter": [None, 'x"y', "z"],
        "tenant": ["1", "2", "3"],
        "priority": [0, -3, 2**53],
        "deadline_s": [None, 0.0, 9.5],
        "images": [1, 8, None],
        "steps": [30, 1, None],
        "prompt_tokens": [0, 5, None],
        "output_tokens": [1, 2, 3],
        "payload_gib": [0.0, 0.5, 1.0],
        "session": ["s", "s", "t"],
        "recorded_s": [1.0, None, 2.0],
        "prefix_blocks": [[1, -2], [], None],
        "content": ["c", None, "c"],
        "original_id": ["x1", None, "x3"],
        "node": ["n", "n", None],
    },
    schema=COLUMNS,
)


def test_streams_are_independent_and_repeat() -> None:
    table = make_trace(POISSON, LOGNORMAL, 1000, seed=3)
    assert table.equals(make_trace(POISSON, LOGNORMAL, 1000, seed=3))
    assert not table["size"].equals(make_trace(POISSON, LOGNORMAL, 1000, seed=4)["size"])
    gamma = GammaArrivals(process="gamma", rate_per_s=2.0, cv=3.0)
    constant = ConstantSizes(distribution="constant", value=1.0)
    assert make_trace(gamma, LOGNORMAL, 1000, seed=3)["size"].equals(table["size"])
    assert make_trace(POISSON, constant, 1000, seed=3)["arrival_s"].equals(table["arrival_s"])
    assert abs(np.corrcoef(np.diff(table["arrival_s"]), table["size"][1:])[0, 1]) < 4 / math.sqrt(1000)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_every_kind_of_file_gives_the_table_back(tmp_path: Path, name: str) -> None:
    path = write_trace(FULL, tmp_path / name)
    trace = read_trace(path)
    assert trace.format == "trimtab"
    assert trace.table.equals(FULL)
    assert trace.table.schema == FULL.schema
    assert [file.name for file in tmp_path.iterdir()] == [name]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps_s=st.lists(st.floats(0, 1e6), min_size=1, max_size=20),
    suffix=st.sampled_from([".csv", ".jsonl", ".parquet"]),
    scale=st.floats(1e-6, 1e6),
)
def test_numbers_survive_to_the_last_bit(
    tmp_path: Path, gaps_s: list[float], suffix: str, scale: float
) -> None:
    table = pl.DataFrame({"arrival_s": np.cumsum(gaps_s), "size": np.full(len(gaps_s), scale)})
    assert read_trace(write_trace(table, tmp_path / f"t{suffix}")).table.equals(table)


def test_a_trace_is_as_readable_as_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    path = write_trace(FULL, tmp_path / "t.csv")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write_trace(FULL, tmp_path / "t.csv")
    before = path.read_bytes()
    unwritable = FULL.with_columns(extra=pl.Series([[1], [2], [3]]))  # CSV has no lists
    with pytest.raises(pl.exceptions.ComputeError):
        write_trace(unwritable, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing.*t\.csv: cannot be written"):
        write_trace(FULL, tmp_path / "missing" / "t.csv")
    with pytest.raises(TraceError, match=r"unknown kind of file \(got '\.xlsx'\)"):
        write_trace(FULL, tmp_path / "t.xlsx")
    with pytest.raises(TraceError, match="unknown kind of file"):
        write_trace(FULL, tmp_path / "t.parquet.gz")
