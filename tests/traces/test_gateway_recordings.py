"""Reading recordings: sets of files, what is left out, the state at the start, and damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import TraceError
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.traces import read_trace, write_trace
from trimtab.traces.gateway_recording import is_recording, open_recording

NODES = [
    {"idx": 0, "name": "a", "type": "big", "slots": 2, "health": "up"},
    {"idx": 1, "name": "b", "type": "small", "slots": 1, "health": "up"},
]
CLASSES = [
    {
        "name": "m/chat",
        "unit": "token",
        "fixed_s": {"big": 0.5, "small": 1.0},
        "unit_s": {"big": 0.1, "small": 0.2},
    }
]


def head(at_s: float = 0.0, **changed: Any) -> dict[str, Any]:
    return {
        "record": "head", "at_s": at_s, "format": 1, "policy": "random", "seed": 0, "options": {},
        "started_utc": "2026-01-01T00:00:00Z", "nodes": NODES, "classes": CLASSES, **changed,
    }  # fmt: skip


def row(arrival_s: float, **changed: Any) -> dict[str, Any]:
    return {
        "arrival_s": arrival_s, "finish_s": arrival_s + 3.0, "started_s": arrival_s + 1.0, "service_s": 2.0,
        "class": "m/chat", "model": "m", "units": 5.0, "node": 0, "outcome": "done", **changed,
    }  # fmt: skip


def name(seq: int, worker: int = 0, recording: str = "20260101T000000Z-0123abcd") -> str:
    return f"trimtab-{recording}-w{worker}-{seq:06d}.jsonl"


def write(path: Path, *lines: dict[str, Any], tail: bytes = b"") -> Path:
    text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines) + tail
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_requests_are_sorted_by_arrival_and_typed(tmp_path: Path) -> None:
    file = write(
        tmp_path / name(1),
        head(),
        row(4.0, session=7, tenant="f00"),
        row(1.0, prefix_blocks=[0, 1], priority=2),
    )
    trace = read_trace(file)
    assert trace.format == "gateway"
    assert trace.table["arrival_s"].to_list() == [1.0, 4.0]
    assert trace.table["session"].to_list() == [None, "7"]
    assert trace.table["prefix_blocks"].to_list() == [[0, 1], None]
    assert trace.table["recorded_s"].to_list() == [2.0, 2.0]
    assert trace.table["size"].to_list() == [5.0, 5.0]
    assert "images" not in trace.table.columns


def test_a_set_is_its_folder_or_any_of_its_files(tmp_path: Path) -> None:
    write(tmp_path / name(1), head(), row(0.0), row(2.0))
    write(tmp_path / (name(2) + ".gz"), head(5.0), row(6.0))
    write(tmp_path / name(1, worker=1), head(), row(1.0))
    for path in (tmp_path, tmp_path / name(1), tmp_path / (name(2) + ".gz")):
        assert read_trace(path).table["arrival_s"].to_list() == [0.0, 1.0, 2.0, 6.0]


def test_several_workers_are_one_recording(tmp_path: Path) -> None:
    """Each with its own order of nodes and numbers of sessions and blocks; the first tells of the nodes."""
    down = {"record": "node", "at_s": 3.0, "what": "down", "node": NODES[1]}
    other = [{**NODES[1], "idx": 0}, {**NODES[0], "idx": 1}]
    more = [CLASSES[0] | {"fixed_s": {"big": 9.0, "small": 9.0}}, CLASSES[0] | {"name": "m/embedding"}]
    numbers: dict[str, Any] = {"session": 1, "prefix_blocks": [0, 1], "tenant": "f00"}
    write(tmp_path / name(1), head(process=7), row(1.0, node=0, **numbers), down)
    file = write(
        tmp_path / name(1, worker=1),
        head(0.5, worker=1, process=8, nodes=other, classes=more),
        row(2.0, node=0, **numbers),
        row(2.5, node=1, **numbers),
        {**down, "at_s": 4.0},
    )
    write(tmp_path / name(1, worker=2), head(0.25, worker=2, process=6))  # the parent, with no request
    for path in (tmp_path, file):
        table = read_trace(path).table
        assert table["arrival_s"].to_list() == [0.5, 1.5, 2.0]  # from when all of them recorded
        assert table["node"].to_list() == ["a", "b", "a"]
        assert table["session"].n_unique() == 2
        assert not set(table["prefix_blocks"][0]) & set(table["prefix_blocks"][1])
        assert table["prefix_blocks"][1].to_list() == table["prefix_blocks"][2].to_list()
        assert table["tenant"].n_unique() == 1
    recording = open_recording(tmp_path)
    assert recording.head["options"] == {"dispatchers": 2}
    assert [note["at_s"] for note in recording.notes if note["record"] == "node"] == [3.0]
    assert {c["name"]: c["fixed_s"]["big"] for c in recording.classes} == {"m/chat": 0.5, "m/embedding": 0.5}
    assert scenario_of(tmp_path).serving.dispatchers == 2


def test_a_folder_of_two_recordings_is_refused_with_their_names(tmp_path: Path) -> None:
    write(tmp_path / name(1), head(), row(0.0))
    other = write(tmp_path / name(1, recording="20260102T000000Z-0123abcd"), head(), row(0.0))
    with pytest.raises(TraceError, match="several recordings") as raised:
        read_trace(tmp_path)
    assert other.name in str(raised.value)
    assert read_trace(other).table.height == 1


def test_a_renamed_file_is_read_alone(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path / "mine.jsonl", head(), row(0.0))).format == "gateway"


def test_the_factor_is_recorded_service_over_the_estimate_of_that_node(tmp_path: Path) -> None:
    file = write(
        tmp_path / name(1),
        head(),
        row(0.0),  # estimated .5 + .1 × 5 = 1 s, took 2 s
        row(1.0, node=1),  # estimated 1 + .2 × 5 = 2 s
        row(2.0, outcome="cancelled", service_s=0.4, finish_s=2.5),  # had it run on, at least as estimated
        row(3.0, outcome="cancelled", service_s=4.0, finish_s=7.0),
        row(
            4.0, outcome="refused", status=503, refusal="queue_full", node=None, service_s=None, finish_s=4.0
        ),
    )
    table = read_trace(file).table
    assert table["factor"].to_list() == pytest.approx([2.0, 1.0, 1.0, 4.0, 1.0], rel=1e-5)
    assert table["leave_after_s"].to_list() == pytest.approx([None, None, 0.5, 4.0, None])
    assert table["node"].to_list() == ["a", "b", "a", "a", None]


def test_the_last_estimates_count(tmp_path: Path) -> None:
    better = [{**CLASSES[0], "fixed_s": {"big": 1.5}, "unit_s": {"big": 0.1}}]
    file = write(
        tmp_path / name(1), head(), row(0.0), {"record": "estimates", "at_s": 9.0, "classes": better}
    )
    assert read_trace(file).table["factor"].to_list() == [1.0]


def test_what_is_no_work_for_nodes_is_left_out_and_counted(tmp_path: Path) -> None:
    file = write(
        tmp_path / name(1),
        head(),
        row(0.0),
        row(1.0, outcome="refused", status=429, refusal="rate_limit"),
        row(2.0, outcome="refused", status=404, refusal="unknown_model", **{"class": None}),
        row(3.0, **{"class": None}),
    )
    trace = read_trace(file)
    assert trace.table.height == 1
    assert trace.rows_in_file == 4
    assert dict(trace.dropped) == {"refused: rate_limit": 1, "refused: unknown_model": 1, "no class": 1}


def test_what_ran_at_the_start_arrives_at_time_0_with_the_rest_of_its_service(tmp_path: Path) -> None:
    # The first file was rotated away: the recording is left from second 10 on.
    file = write(tmp_path / name(2), head(10.0), row(8.0), row(7.0, finish_s=9.0), row(12.0))
    table = read_trace(file).table
    assert table["arrival_s"].to_list() == [0.0, 2.0]
    assert table["is_initial"].to_list() == [True, False]
    assert table["recorded_s"].to_list() == [1.0, 2.0]  # it had started at 9 and ended at 11
    assert table["finish_s"].to_list() == [1.0, 5.0]


def test_a_line_that_a_killed_process_left_half_written_is_left_out(tmp_path: Path) -> None:
    file = write(tmp_path / name(1), head(), row(0.0), tail=b'{"arrival_s": 1.0, "cla')
    assert read_trace(file).table.height == 1


@pytest.mark.parametrize("line", [b'{"arrival_s": oops}\n', b'{"record" oops\n'])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(TraceError, match="line 3"):
        read_trace(write(tmp_path / name(1), head(), row(0.0), tail=line + b"{}\n"))


def test_other_versions_and_empty_recordings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="format"):
        read_trace(write(tmp_path / "later.jsonl", head(format=99), row(0.0)))
    with pytest.raises(TraceError, match="no requests"):
        read_trace(write(tmp_path / "empty.jsonl", head()))
    (tmp_path / "folder").mkdir()
    assert not is_recording(tmp_path / "folder")
    with pytest.raises(TraceError, match="no recording"):
        open_recording(tmp_path / "folder")
    with pytest.raises(TraceError, match="no recording of a gateway"):
        read_trace(write(tmp_path / "plain.jsonl", row(0.0)), "gateway")


def test_rows_that_the_recorder_dropped_are_known(tmp_path: Path) -> None:
    said = {"record": "dropped", "at_s": 1.0, "rows": 12}
    assert open_recording(write(tmp_path / name(1), head(), row(0.0), said, said)).rows_dropped == 24


def test_it_can_be_sliced_and_converted(tmp_path: Path) -> None:
    from trimtab.traces import TraceOptions

    file = write(tmp_path / name(1), head(), *(row(float(k)) for k in range(10)))
    trace = read_trace(file, options=TraceOptions(start_s=2.0, stop_s=5.0))
    assert trace.table["arrival_s"].to_list() == [0.0, 1.0, 2.0]
    again = read_trace(write_trace(trace.table, tmp_path / "own.csv"))
    assert again.format == "trimtab"
    assert again.table["size"].to_list() == [5.0] * 3
