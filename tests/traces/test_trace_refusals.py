"""Every kind of bad trace: the message names the file, the place, the value and what was expected."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from test_trace_reading import AZURE, GENTD26, MOONCAKE

from support.trace_files import written
from trimtab.errors import TraceError, UsageError
from trimtab.traces import read_trace


def refusal(path: Path, **how: object) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **how)  # type: ignore[arg-type]
    assert isinstance(caught.value, UsageError)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (AZURE.replace("396", "x"), "line 3, column ContextTokens", "x"),
        (AZURE.replace("396", "NaN"), "line 3, column ContextTokens", "NaN"),
        (AZURE.replace("396", "inf"), "line 3, column ContextTokens", "inf"),
        (AZURE.replace("396", "39.6"), "line 3, column ContextTokens", "39.6"),
        (AZURE.replace("396", "-396"), "line 3, column ContextTokens", -396),
        (AZURE.replace("396", ""), "line 3, column ContextTokens", None),
        (AZURE.replace("50.9951690", "50,9951690", 1), "line 3", None),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"), "line 3, column TIMESTAMP", "yesterday"),
        (AZURE.replace("0,1\n", "0,0\n"), "line 4, column size", 0.0),
        (AZURE + "2023-11-16 18:15:49,1,1\n", "line 5, column TIMESTAMP", "2023-11-16 18:15:49"),
        (AZURE.replace("18:15:46", "19:15:46"), "line 3, column TIMESTAMP", "2023-11-16 18:15:50.995169"),
        ("arrival_s,size\n0,1\n5,1\n4.5,1\n", "line 4, column arrival_s", "4.5 s"),
        (MOONCAKE.replace("3001", "-1"), "line 3, column timestamp", -0.001),
        (MOONCAKE.replace("[7]", '["seven"]'), "line 3, column hash_ids", '["seven"]'),
        (MOONCAKE.replace('"output_length": 7, ', ""), "line 2, column output_length", None),
        (MOONCAKE.replace("[7]}", "[7]"), "line 3", MOONCAKE.splitlines()[2][:-1]),
        (GENTD26.replace("1.0,40.0,M1", "1.0,40.0,"), "line 5, column checkpoint_model_version_id", None),
        (GENTD26.replace("1.0,40.0,M1", "0.0,40.0,M1"), "line 5, column num_images_per_prompt", 0),
        ("arrival_s,size\n0,1\n5,2e15\n", "line 3, column size", 2e15),
        ("arrival_s,arrival_s\n1,2\n", "line 1", "arrival_s"),
    ],
)
def test_bad_values(tmp_path: Path, text: str, field: str, value: object) -> None:
    path = written(tmp_path, "bad", text)
    error = refusal(path)
    assert error.file == str(path)
    assert error.field == field
    if value is not None:
        assert error.value == value


def test_lines_are_counted_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.traces.source.BLOCK_BYTES", 1)
    for text in (AZURE.replace("396", "x"), AZURE.replace("396", "396,1")):
        assert (refusal(written(tmp_path, "bad", text)).field or "").startswith("line 3")
    unsorted = refusal(written(tmp_path, "bad", AZURE + "2023-11-16 18:15:49,1,1\n"))
    assert unsorted.field == "line 5, column TIMESTAMP"


def test_missing_columns_are_named_with_those_found(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", AZURE.replace("ContextTokens", "Context"))
    message = str(refusal(path, format="azure-llm-2023"))
    assert "missing columns ['ContextTokens']" in message
    assert "'Context', 'GeneratedTokens'" in message
    assert "perhaps 'Context'" in message


def test_unknown_columns_list_the_formats(tmp_path: Path) -> None:
    message = str(refusal(written(tmp_path, "a.csv", "a,b\n1,2\n")))
    assert "mooncake" in message
    assert "column mapping" in message


def test_unknown_format(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, "a.csv", AZURE), format="azure")
    assert (error.field, error.value) == ("format", "azure")


@pytest.mark.parametrize(
    ("mapping", "field", "expected"),
    [
        ({"arrivals": "t"}, "mapping.columns", "unknown columns"),
        ({"size": "t"}, "mapping.columns", "arrival_s must be mapped"),
        ({"columns": {"arrival_s": "t"}, "time_unit": "h"}, "mapping.time_unit", "'ms'"),
        ({"arrival_s": {"column": "t", "scale": 2}}, "mapping.columns", "time_unit"),
        ({"arrival_s": "t", "size": {"column": "t", "scale": -1}}, "mapping.columns.size.scale", "greater"),
    ],
)
def test_bad_mappings(tmp_path: Path, mapping: dict[str, object], field: str, expected: str) -> None:
    error = refusal(written(tmp_path, "a.csv", "t\n1\n"), mapping=mapping)
    assert error.field == field
    assert expected in str(error)


@pytest.mark.parametrize("text", ["", "\n\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_empty_traces(tmp_path: Path, text: str) -> None:
    assert "at least one request" in str(refusal(written(tmp_path, "empty.csv", text)))


def test_a_trace_of_failures_only_says_what_was_dropped(tmp_path: Path) -> None:
    text = GENTD26.replace("SUCCEED", "FAILED")
    message = str(refusal(written(tmp_path, "g.csv", text)))
    assert "read as gentd26; left out 3 rows: FAILED, 1 row: PENDING" in message


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "No such file" in str(refusal(tmp_path / "missing.csv"))
    assert "directory" in str(refusal(tmp_path)).lower()
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\x7fELF\0\0\1")
    assert "binary file" in str(refusal(binary))
    binary.write_bytes(b"arrival_s,tenant\n0,\xff\xfe\n")
    assert "line 2: no UTF-8 text" in str(refusal(binary))


@pytest.mark.parametrize("cut", [5, 60, -4])
def test_damaged_gzip(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:cut])
    assert "damaged gzip file" in str(refusal(path))


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"arrival_s": [0.0]}).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "cannot be read" in str(refusal(path))
