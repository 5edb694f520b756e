"""Traces of runs: JSONL and Parquet, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from trimtab.engine.layout import rows_with_runs
from trimtab.errors import ScenarioError, TraceError
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.loader import parse_scenario
from trimtab.traces import TraceOptions, read_trace
from trimtab.traces.run_tables import run_rows
from trimtab.traces.write import write_runs

STAGES = [
    {"stage": "a", "class": "write", "size": 2.0, "output_gib": 0.5},
    {"stage": "b", "class": "draw", "size": 3.0, "after": ["a"], "after_frac": [0.5]},
]
ROWS: list[dict[str, Any]] = [
    {"arrival_s": 0.0, "tenant": "t1", "stages": STAGES},
    {"arrival_s": 1.5, "tenant": "t2", "priority": 2, "deadline_s": 9.0, "stages": STAGES[:1]},
    {"arrival_s": 2.0, "stages": STAGES},
]


def written(tmp_path: Path, rows: Any) -> Path:
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return file


def test_jsonl_and_parquet_say_the_same(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, ROWS))
    assert trace.format == "trimtab-runs"
    assert trace.table["arrival_s"].to_list() == [0.0, 1.5, 2.0]
    assert trace.stages is not None
    assert trace.stages["run_idx"].to_list() == [0, 0, 1, 2, 2]
    assert trace.stages["after_frac"].to_list() == [[], [0.5], [], [], [0.5]]
    file = tmp_path / "runs.parquet"
    run_rows(trace.table, trace.stages).write_parquet(file)
    again = read_trace(file)
    assert again.stages is not None
    assert again.table.equals(trace.table)
    assert again.stages.equals(trace.stages)


def test_runs_of_one_graph_share_a_template(tmp_path: Path) -> None:
    written(tmp_path, ROWS)
    text = f"""
cluster: {{types: {{x: {{memory_gib: 1}}}}, nodes: [{{type: x}}]}}
classes: {{write: {{unit_s: 1}}, draw: {{unit_s: 2}}}}
workload: {{trace: {{file: {tmp_path / "runs.jsonl"}}}}}
"""
    inputs = build(parse_scenario(text), 0)
    chains = inputs.requests.chains
    assert chains is not None
    assert chains.template_idx.tolist() == [0, 1, 0]
    assert chains.work["class_idx"].tolist() == [0, 1, 0, 0, 1]
    assert chains.work["rank_s"].tolist() == [8.0, 6.0, 2.0, 8.0, 6.0]
    stages = rows_with_runs(inputs.requests, 1, splits=False).requests.work[3:]
    assert stages["run_arrival_s"].tolist() == [0.0, 0.0, 1.5, 2.0, 2.0]
    assert stages["deadline_s"].tolist()[2] == 10.5
    assert inputs.cluster.class_names == ("write", "draw", "workflow")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"stages": STAGES}, r"run 2: arrival_s: missing"),
        ({"arrival_s": 1.0, "stages": []}, r"run 2: stages: has no stages"),
        ({"arrival_s": 1.0, "stages": [*STAGES, STAGES[0]]}, r"a stage twice.*'a'"),
        ({"arrival_s": 1.0, "stages": STAGES[1:]}, r"no such stage.*'a'"),
        ({"arrival_s": 1.0, "stages": [{**STAGES[0], "size": 0}]}, r"stages\[0\].size.*above 0"),
        ({"arrival_s": 1.0, "stages": [{**STAGES[0], "output_gib": -1}]}, r"output_gib.*-1.*at least 0"),
        ({"arrival_s": 1.0, "stages": [{**STAGES[0], "after": ["a"]}]}, r"a cycle.*a → a"),
        (
            {"arrival_s": 1.0, "stages": [STAGES[0], {**STAGES[1], "after_frac": [2]}]},
            r"after_frac.*from 0 to 1",
        ),
        ({"arrival_s": 1.0, "stages": [*STAGES[:1], 5]}, r"stages\[1\].*5.*an object"),
        ({"arrival_s": 1.0, "stages": [STAGES[0], {**STAGES[1], "after": ["a", "a"]}]}, r"after.*each once"),
        ({"arrival_s": 1.0, "priority": "high", "stages": STAGES}, r"priority.*high.*a whole number"),
        ({"arrival_s": 1.0, "stages": [{"stage": "a", "size": 1}]}, r"stages\[0\].class: missing"),
    ],
)
def test_refusals_name_run_field_and_value(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, [ROWS[0], row]))


def test_arrivals_must_not_decrease(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="run 2, arrival_s"):
        read_trace(written(tmp_path, [ROWS[1], ROWS[0]]))


def test_a_stage_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, ROWS)
    text = f"""
cluster: {{types: {{x: {{memory_gib: 1}}}}, nodes: [{{type: x}}]}}
classes: {{write: {{unit_s: 1}}}}
workload: {{trace: {{file: {file}}}}}
"""
    with pytest.raises(ScenarioError, match=r"no such class.*draw"):
        build(parse_scenario(text), 0)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, ROWS)
    file.write_text(file.read_text() + "{\n")
    with pytest.raises(TraceError, match=r"line 4"):
        read_trace(file)


def test_options_choose_runs(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, ROWS), options=TraceOptions(start_s=1.0))
    assert trace.table["run_idx"].to_list() == [1, 2]
    assert isinstance(trace.stages, pl.DataFrame)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.parquet", "out.json"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    count = 1 if name == "out.json" else 3
    trace = read_trace(written(tmp_path, ROWS), options=TraceOptions(limit=count))
    assert trace.stages is not None
    again = read_trace(write_runs(trace.table, trace.stages, tmp_path / name))
    assert again.table["arrival_s"].equals(trace.table["arrival_s"])
    assert again.stages is not None
    columns = ["stage", "class", "size", "after", "output_gib"]
    wanted = trace.stages.filter(pl.col("run_idx") < count).select(columns)
    assert again.stages.select(columns).equals(wanted)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, ROWS))
    assert trace.stages is not None
    with pytest.raises(TraceError, match=r"WfFormat holds one run.*3"):
        write_runs(trace.table, trace.stages, tmp_path / "out.json")
    with pytest.raises(TraceError, match=r"\.csv"):
        write_runs(trace.table, trace.stages, tmp_path / "out.csv")
