"""What a file is recognised by, what makes it doubtful, and figures that say that it was misread."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from support.trace_files import written
from trimtab.errors import TraceError
from trimtab.traces import read_trace
from trimtab.traces.mapping import TraceMapping
from trimtab.traces.plausibility import RecordedTimes, doubts_about
from trimtab.traces.read import import_files
from trimtab.traces.slicing import TraceOptions

CHAT = {
    "timestamp": 0.5,
    "input_length": 40,
    "output_length": 9,
    "hash_ids": [1, 2],
    "type": "text",
    "turn": 1,
}
BAILIAN = [
    {**CHAT, "timestamp": at, "chat_id": k, "parent_chat_id": -1} for k, at in enumerate((0.5, 12.5, 61.25))
]


def lines(folder: Path, rows: list[dict[str, object]]) -> Path:
    return written(folder, "t.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


def test_two_formats_with_the_same_names_are_told_apart_by_the_others(tmp_path: Path) -> None:
    trace = read_trace(lines(tmp_path, BAILIAN))
    assert trace.format == "qwen-bailian"
    assert "parent_chat_id" in trace.known_by
    assert trace.table["arrival_s"].to_list() == [
        0.5,
        12.5,
        61.25,
    ]  # its seconds, not Mooncake's milliseconds
    assert trace.table["class"].to_list() == ["text"] * 3
    assert trace.doubts == ()


def test_a_file_between_two_formats_is_refused_until_its_unit_is_given(tmp_path: Path) -> None:
    file = lines(tmp_path, [{**CHAT, "chat_id": 1}, {**CHAT, "chat_id": 2, "timestamp": 2.0}])
    with pytest.raises(
        TraceError, match=r"columns of mooncake, and some of qwen-bailian.*--time-unit ms.* or .* s"
    ):
        read_trace(file)
    assert read_trace(file, "mooncake").doubts == (
        "times were read as milliseconds, and have parts of one, such as 0.5: "
        "if they are seconds, --time-unit s",
    )
    right = read_trace(file, "mooncake", {"time_unit": "s"})
    assert (right.table["arrival_s"].to_list(), right.doubts) == ([0.5, 2.0], ())


def doubts(unit: str, times: list[float], **columns: list[float]) -> tuple[str, ...]:
    """Doubts about requests at these times of the file, in seconds of the unit."""
    scale = {"s": 1.0, "ms": 1e-3, "ns": 1e-9, "datetime": 1e-9}[unit]
    recorded = RecordedTimes(unit)  # type: ignore[arg-type]
    recorded.add(pl.Series(times, dtype=pl.Float64))
    arrival_s = (pl.Series(times, dtype=pl.Float64) - times[0]) * scale
    recorded.add_order(arrival_s)
    return doubts_about(pl.DataFrame({"arrival_s": arrival_s.sort(), **columns}), recorded)


EPOCH_S = 1_763_028_000.0


@pytest.mark.parametrize(
    ("unit", "times", "columns", "told"),
    [
        ("s", [EPOCH_S * 1e3, EPOCH_S * 1e3 + 5], {}, "milliseconds since 1970: --time-unit ms"),
        ("ms", [EPOCH_S, EPOCH_S + 5], {}, "seconds since 1970: --time-unit s"),
        ("ms", [0.0, 0.25], {}, "parts of one, such as 0.25"),
        ("s", [7.0, 7.0], {}, "all 2 requests arrive at the same time"),
        (
            "ns",
            [float(k) for k in range(20)],
            {},
            "20 requests arrive in 1.9e-08 s, with times read as nanosec",
        ),
        ("s", [4e3 * k for k in range(20)], {}, "3,800 s pass from one request to the next"),
        ("s", [0.0, 500.0, 100.0], {}, "arrivals before the row above them: 1 row, by up to 400 s"),
        ("s", [0.0, 1.0], {"recorded_s": [900.0, 901.0]}, "took 900.5 s or more: if these are milliseconds"),
        ("s", [0.0, 1e-4], {"recorded_s": [9.0, 9.0]}, "180,000 requests were served at once"),
        ("s", [0.0, 1.0], {"recorded_s": [0.01, 0.01], "output_tokens": [90, 90]}, "9,000 tokens a second"),
        ("s", [0.0, 1.0], {"prompt_tokens": [20_000_000, 1]}, "go up to 20,000,000: are these characters"),
    ],
)
def test_figures_that_tell_of_a_wrong_unit(
    unit: str, times: list[float], columns: dict[str, list[float]], told: str
) -> None:
    found = doubts(unit, times, **columns)
    assert len(found) == 1
    assert told in found[0]


@pytest.mark.parametrize(
    ("unit", "times", "columns"),
    [
        ("s", [EPOCH_S, EPOCH_S + 0.5], {}),
        ("ms", [EPOCH_S * 1e3, EPOCH_S * 1e3 + 0.5], {}),  # parts of milliseconds since 1970
        ("ms", [0.0, 3000.0, 3000.0], {}),
        ("datetime", [EPOCH_S * 1e9 + 5e12 * k for k in range(20)], {}),  # a sparse log with dates
        # Lines stand in the order of their ends.
        ("s", [0.0, 500.0, 300.0], {"recorded_s": [1.0, 1.0, 250.0], "output_tokens": [9, 9, 9]}),
    ],
)
def test_usual_figures_raise_no_doubt(unit: str, times: list[float], columns: dict[str, list[float]]) -> None:
    assert doubts(unit, times, **columns) == ()


def test_doubts_come_with_the_notes_of_an_import(tmp_path: Path) -> None:
    mapping = TraceMapping.model_validate({"arrival_s": "at"})
    files = [written(tmp_path, f"{k}.csv", "at\n1\n1\n") for k in range(2)]
    trace = import_files(files, "auto", mapping, TraceOptions())
    assert trace.notes() == ["in doubt: all 2 requests arrive at the same time, with times read as seconds"]
    assert trace.format_in_words() == "read as mapping, known by the columns that are mapped"


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_around_the_rows_comes_with_the_command_that_unpacks_it(
    tmp_path: Path, indent: int | None
) -> None:
    page = {"note": '"data": [{', "of": [1], "data": [{"request_id": "a", "startTime": "x"}], "total": 1}
    file = written(tmp_path, "page.json", json.dumps(page, indent=indent))
    with pytest.raises(TraceError, match=r"as `jq -c '\.data\[\]' page\.json` writes it"):
        read_trace(file)


def test_an_unknown_table_names_the_formats_of_training_jobs_too(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"training jobs: .*philly.* the simplest has job_id, submit_s, gpus, dura"
    ):
        read_trace(written(tmp_path, "t.csv", "job,when,n\n1,2,3\n"))


TRT = "[07/09/2025-23:07:49] [TRT-LLM] [I] Received request c1 at 32142.770581067\n"
KSERVE = "2025-05-14 17:45:10.901 1647689 kserve.trace requestId: a, preprocess_ms: 0.1\n"
ENGINE = "(APIServer pid=42) INFO 02-13 11:33:39 [loggers.py:257] Engine 000: Running: 0 reqs\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TRT, "a log of TensorRT-LLM: its lines tell no tokens"),
        (KSERVE, "KServe"),
        (ENGINE, "no requests in the trace, read as vllm; expected answers"),
    ],
)
def test_logs_that_tell_too_little_are_called_by_their_names(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_trace(written(tmp_path, "server.log", text))
