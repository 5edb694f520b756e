"""The recorder against a folder: what it writes, what it never writes, and what a full disk does."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import math
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.waiting import until
from trimtab.domain.view import empty_plan
from trimtab.errors import UsageError
from trimtab.gateway.model import (
    Attempt,
    Cause,
    Endpoint,
    Exchange,
    Facts,
    Kind,
    Node,
    Outcome,
    Refusal,
    Tenant,
    Usage,
)
from trimtab.gateway.record.pseudonyms import Numbers, Pseudonyms
from trimtab.gateway.record.recorded_rows import Snapshot
from trimtab.gateway.record.recorder import LINES_FROM, Recorder, RecordSettings, RotatedFiles
from trimtab.traces import read_trace
from trimtab.traces.gateway_format import ClassRow

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT, replayable=True)
HEALTH = Endpoint("/health", ("GET",), Kind.HEALTH, local=True)
SECRETS = ("sk-secret", "alice", "who-am-i", "hello world", "req-77", "conversation-9")


def node(idx: int = 0) -> Node:
    return Node(
        f"n{idx}", "http://10.0.0.9:1", idx, "10.0.0.9", 1, False, ("m",), 4,
        type_name="big", authorization=b"Bearer sk-secret",
    )  # fmt: skip


def snapshot(**changed: Any) -> Snapshot:
    fields = {"policy": "random", "nodes": [node(0), node(1)]} | changed
    return Snapshot(classes=[class_row("m/chat")], **fields)


def class_row(name: str) -> ClassRow:
    return {
        "name": name, "unit": "token", "fixed_s": {"big": 0.1}, "unit_s": {"big": 0.01}, "served_by": None
    }  # fmt: skip


def exchange(arrived_s: float = 1.0, ended_s: float = 3.0, **changed: Any) -> Exchange:
    x = Exchange()
    x.id, x.endpoint, x.arrived_s, x.class_idx, x.units = "req-77", CHAT, arrived_s, 0, 120.0
    x.tenant, x.session, x.body = Tenant("alice", 0), "who-am-i", b"hello world"
    x.facts = Facts("m", prompt_tokens=50.2, prefix_blocks=(991, 992), session="conversation-9")
    x.started_s, x.estimate_s, x.outcome = arrived_s + 0.5, 1.25, Outcome.DONE
    x.attempts = [Attempt(node(1), arrived_s + 0.5, first_byte_s=arrived_s + 0.7, ended_s=ended_s)]
    x.usage, x.actual_units = Usage(48, 96, 16), 98.4
    for name, value in changed.items():
        setattr(x, name, value)
    return x


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def recorded(
    folder: Path, exchanges: list[Exchange], *, per_flush: int = 10**9, **settings: Any
) -> tuple[Recorder, list[dict[str, Any]]]:
    """What is in all files after these exchanges, file by file."""

    async def main() -> Recorder:
        clock = Clock()
        recorder = Recorder(
            RecordSettings(folder, **settings),
            snapshot,
            clock,
            candidates_of=lambda decision: decision or (),
            adapter_of=lambda model: "",
        )
        await recorder.open()
        for k, x in enumerate(exchanges):
            clock.now_s = x.ended_s = x.attempts[-1].ended_s if x.attempts else clock.now_s
            recorder.ended([x])
            if k % per_flush == per_flush - 1:
                await recorder.flush()
        await recorder.close()
        return recorder

    recorder = asyncio.run(main())
    return recorder, [json.loads(row) for path in files(folder) for row in path.read_text().splitlines()]


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def requests_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in lines if "record" not in row]


def test_a_row_says_what_happened(tmp_path: Path) -> None:
    recorder, lines = recorded(
        tmp_path, [exchange(decision=[1, 0], priority=2, deadline_s=9.0), exchange(2.0, 4.0)]
    )
    first, second = requests_of(lines)
    expected = {
        "arrival_s": 1.0, "finish_s": 3.0, "kind": "chat", "class": "m/chat", "model": "m", "units": 120.0,
        "actual_units": 98.4, "prompt_tokens": 48, "output_tokens": 96, "cached_tokens": 16, "priority": 2,
        "deadline_s": 8.0, "session": 0, "prefix_blocks": [0, 1], "outcome": "done", "candidates": [1, 0],
        "node": 1, "estimate_s": 1.25, "wait_s": 0.5, "started_s": 1.5, "service_s": 1.5, "first_byte_s": 1.7,
    }  # fmt: skip
    assert {name: first[name] for name in first if name != "tenant"} == expected
    assert second["tenant"] == first["tenant"]
    assert "priority" not in second
    assert recorder.written == 2
    assert recorder.dropped == 0
    assert recorder.error == ""


def test_many_rows_are_as_many_lines_whatever_their_names_hold(tmp_path: Path) -> None:
    model = '"},{"arrival_s":0}\n{"arrival_s":'
    many = [exchange(k + 1.0, k + 3.0, facts=Facts(model), session=model) for k in range(3 * LINES_FROM)]
    many[LINES_FROM : 2 * LINES_FROM] = [exchange(endpoint=HEALTH) for _ in range(LINES_FROM)]
    recorder, lines = recorded(tmp_path, many)
    rows = requests_of(lines)
    assert recorder.written == len(rows) == 2 * LINES_FROM
    expected = [*range(1, LINES_FROM + 1), *range(2 * LINES_FROM + 1, 3 * LINES_FROM + 1)]
    assert [row["arrival_s"] for row in rows] == expected
    assert {row["model"] for row in rows} == {model}


def test_times_are_rounded_to_the_nearest_microsecond(tmp_path: Path) -> None:
    odd = exchange(12345.6789016, 12346.0000004, units=1.0)
    (row,) = requests_of(recorded(tmp_path, [odd])[1])
    assert (row["arrival_s"], row["finish_s"]) == (12345.678902, 12346.0)
    assert row["wait_s"] == 0.5


def test_an_estimate_that_is_no_number_costs_no_line(tmp_path: Path) -> None:
    endless = [exchange(estimate_s=value) for value in (math.inf, math.nan, 1.5)]
    recorder, lines = recorded(tmp_path, endless)
    assert [row["estimate_s"] for row in requests_of(lines)] == [None, None, 1.5]
    assert recorder.written == 3


def test_every_file_begins_with_head_and_state(tmp_path: Path) -> None:
    _, lines = recorded(tmp_path, [exchange()])
    head, state, *_, last = lines
    assert head["record"] == "head"
    assert head["format"] == 1
    assert head["policy"] == "random"
    assert head["nodes"][1] == {
        "idx": 1, "name": "n1", "type": "big", "slots": 4, "max_tokens": 0.0, "health": "up",
    }  # fmt: skip
    assert head["classes"][0]["fixed_s"] == {"big": 0.1}
    assert state == {"record": "state", "at_s": 0.0, "in_flight": [], "queued": []}
    assert "estimates" in {last.get("record"), lines[2].get("record")}


def test_nothing_leads_back_to_people_or_content(tmp_path: Path) -> None:
    recorded(tmp_path, [exchange() for _ in range(3)])
    text = "".join(path.read_text() for path in files(tmp_path))
    assert not [secret for secret in SECRETS if secret in text]
    assert "10.0.0.9" not in text
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}


def test_pseudonyms_hold_within_one_recording_only(tmp_path: Path) -> None:
    def tenant(folder: str) -> str:
        return str(requests_of(recorded(tmp_path / folder, [exchange()])[1])[0]["tenant"])

    assert tenant("a") != tenant("b")
    names = Pseudonyms()
    assert names.tenant("x") == names.tenant("x") != names.tenant("y")


def test_those_that_ended_together_are_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    async def main() -> Recorder:
        recorder = Recorder(RecordSettings(tmp_path, max_rows=5), snapshot, Clock())
        await recorder.open()
        recorder.ended([exchange() for _ in range(3)])
        recorder.ended([exchange() for _ in range(4)])
        recorder.ended([exchange()])
        await recorder.close()
        return recorder

    recorder = asyncio.run(main())
    assert (recorder.written, recorder.dropped) == (5, 3)


def test_lines_that_wait_to_be_written_take_up_room_too(tmp_path: Path) -> None:
    async def main() -> Recorder:
        recorder = Recorder(RecordSettings(tmp_path, max_rows=LINES_FROM + 2), snapshot, Clock())
        await recorder.open()
        for _ in range(LINES_FROM + 5):
            recorder.ended([exchange()])
        await recorder.flush()
        recorder.ended([exchange()])
        await recorder.close()
        return recorder

    recorder = asyncio.run(main())
    assert (recorder.written, recorder.dropped) == (LINES_FROM + 3, 3)


def test_numbers_are_bounded_and_forget_what_was_used_longest_ago() -> None:
    numbers = Numbers(2)
    assert numbers.of_all("abab") == [0, 1, 0, 1]
    assert numbers.of("a") == 0
    assert numbers.of("c") == 2
    assert numbers.of("a") == 0
    assert numbers.of("b") == 3
    assert len(numbers) == 2
    many = Numbers(100)
    for k in range(1000):
        assert many.of_all((k, k)) == [k, k]
        assert len(many) <= 100
        assert many.of_all(range(max(0, k - 49), k + 1)) == list(range(max(0, k - 49), k + 1))


def test_rotation_keeps_the_newest_files_each_readable_alone(tmp_path: Path) -> None:
    many = [exchange(float(k), k + 2.0) for k in range(200)]
    recorded(tmp_path, many, per_flush=10, max_bytes=5000, max_files=3)
    names = [path.name for path in files(tmp_path)]
    assert len(names) == 3
    sequence = [int(name.split("-")[-1].split(".")[0]) for name in names]
    assert sequence == list(range(sequence[0], sequence[0] + 3))
    assert sequence[0] > 1
    for path in files(tmp_path):
        first = json.loads(path.read_text().splitlines()[0])
        assert first["record"] == "head"
        assert path.stat().st_size < 2 * 5000


@pytest.mark.parametrize(
    ("redact", "tenant", "has_links", "arrival_s", "tokens"),
    [
        ("none", "alice", True, 1.25, 48),
        ("pseudonyms", None, True, 1.25, 48),
        ("coarse", None, True, 1.0, 120),
        ("unlinked", "", False, 1.0, 120),
    ],
)
def test_profiles_leave_what_they_say(
    tmp_path: Path, redact: Any, tenant: str | None, *, has_links: bool, arrival_s: float, tokens: int
) -> None:
    used = Usage(48 if arrival_s == 1.25 else 123, 96, 16)
    _, lines = recorded(tmp_path, [exchange(1.25, usage=used) for _ in range(2)], redact=redact)
    row = requests_of(lines)[0]
    assert ("session" in row, "prefix_blocks" in row) == (has_links, has_links)
    assert (row["arrival_s"], row["prompt_tokens"]) == (arrival_s, tokens)
    assert lines[0]["redact"] == redact
    assert lines[0]["started_utc"].endswith(":00:00Z") or arrival_s == 1.25
    text = "".join(path.read_text() for path in files(tmp_path))
    assert ("alice" in text) == (redact == "none")
    assert not [secret for secret in SECRETS if secret in text and secret != "alice"]
    if tenant is not None:
        assert row.get("tenant", "") == tenant


async def test_a_model_that_no_node_lists_is_not_named(tmp_path: Path) -> None:
    recorder = Recorder(RecordSettings(tmp_path), snapshot, Clock(), lists={"m"}.__contains__)
    await recorder.open()
    recorder.ended([exchange(), exchange(facts=Facts("hello world"))])
    await recorder.close()
    lines = [json.loads(row) for row in files(tmp_path)[0].read_text().splitlines()]
    assert [row["model"] for row in requests_of(lines)] == ["m", ""]


def aged(path: Path, days: float) -> Path:
    then_s = path.stat().st_mtime - days * 86_400.0
    os.utime(path, (then_s, then_s))
    return path


def test_old_files_go_as_a_whole_and_what_is_left_is_read(tmp_path: Path) -> None:
    many = [exchange(float(k), k + 2.0) for k in range(60)]
    recorded(tmp_path, many, per_flush=10, max_bytes=3000)
    before = files(tmp_path)
    for path in before[:2]:
        aged(path, 9.5)
    aged(before[2], 8.5)  # its first request is at most a day older
    (tmp_path / "notes.txt").write_text("{}")
    aged(tmp_path / "notes.txt", 99.0)
    _, lines = recorded(tmp_path, [exchange()], keep_s=10 * 86_400.0, max_files=99)
    left = files(tmp_path)
    assert [path for path in before if path in left] == before[2:]
    assert (tmp_path / "notes.txt").exists()
    assert len([row for row in lines if row.get("record") == "head"]) == len(left) - 1
    rest = [json.loads(line) for path in before[2:] for line in path.read_text().splitlines()]
    ended = [row for row in requests_of(rest) if row["finish_s"] >= rest[0]["at_s"]]
    assert read_trace(before[2]).table.height == len(ended) > 20


def test_files_are_deleted_down_to_a_size_but_never_one_that_is_written_to(tmp_path: Path) -> None:
    recorded(tmp_path, [exchange(float(k), k + 2.0) for k in range(60)], per_flush=10, max_bytes=3000)
    before = files(tmp_path)
    other = RotatedFiles(RecordSettings(tmp_path), "20200101T000000Z-00000000")
    other.write(b"{}\n", b"{}\n")  # another process, whose recording is older than all others
    other.delete_old()
    assert other.path.exists()
    sizes = [path.stat().st_size for path in before]
    room = 3000 + sizes[-1] + sizes[-2]  # for the file that is begun, and two
    recorded(tmp_path, [exchange()], keep_bytes=room, max_bytes=3000, max_files=99)
    left = files(tmp_path)
    assert [path for path in before if path in left] == before[-2:]
    assert other.path.exists()
    other.close()  # as if it was killed: its lock has gone
    recorded(tmp_path, [exchange()], max_files=1)
    assert len(files(tmp_path)) == 1


def test_a_file_is_short_enough_for_the_days_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1e9]
    monkeypatch.setattr("trimtab.gateway.record.recorder.time.time", lambda: now_s[0])
    kept = RotatedFiles(RecordSettings(tmp_path, keep_s=1000.0), "20200101T000000Z-00000000")
    kept.write(b"{}\n", b"{}\n")
    now_s[0] += 99.0
    assert not kept.needs_head()
    now_s[0] += 1.0
    assert kept.needs_head()
    kept.close()


def test_too_fast_traffic_is_dropped_and_counted(tmp_path: Path) -> None:
    recorder, lines = recorded(tmp_path, [exchange() for _ in range(30)], max_rows=10)
    assert recorder.dropped == 20
    assert recorder.written == 10 == len(requests_of(lines))
    assert [row["rows"] for row in lines if row.get("record") == "dropped"] == [20]


def test_a_full_disk_costs_rows_but_no_half_line_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    real_write, room = os.write, [10**9]

    def write(fd: int, data: Any) -> int:
        if len(data) > room[0]:
            if room[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            data, room[0] = bytes(data)[: room[0]], 0
        return real_write(fd, data)

    async def main() -> Recorder:
        recorder = Recorder(RecordSettings(tmp_path), snapshot, Clock())
        await recorder.open()
        recorder.ended([exchange()])
        await recorder.flush()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            room[0] = 40  # half a line, then nothing
            recorder.ended([exchange()])
            await recorder.flush()
            assert recorder.error == "No space left on device"
            assert recorder.dropped == 1
            recorder.ended([exchange()])
            await recorder.flush()
        recorder.ended([exchange()])
        await recorder.flush()
        assert recorder.error == ""
        await recorder.close()
        return recorder

    recorder = asyncio.run(main())
    lines = [json.loads(row) for path in files(tmp_path) for row in path.read_text().splitlines()]
    assert len(requests_of(lines)) == 2 == recorder.written
    assert [row["rows"] for row in lines if row.get("record") == "dropped"] == [2]
    assert [record.getMessage() for record in caplog.records] == [
        f"recording to {tmp_path}: rows are lost: No space left on device",
        f"recording to {tmp_path}: works again; 2 rows were lost",
    ]


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")

    async def main() -> None:
        await Recorder(RecordSettings(in_the_way), snapshot, Clock()).open()

    with pytest.raises(UsageError, match="record: cannot be written"):
        asyncio.run(main())


async def test_the_task_writes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.gateway.record.recorder.FLUSH_PERIOD_S", 0.01)
    recorder = Recorder(RecordSettings(tmp_path), snapshot, Clock())
    await recorder.open()
    recorder.ended([exchange()])
    await until(lambda: recorder.written)
    await recorder.close()
    assert len(files(tmp_path)) == 1


def attempts_at(home: Node) -> int:
    gc.collect()
    return sum(type(one) is Attempt and one.node is home for one in gc.get_objects())


async def test_nothing_is_kept_of_requests_that_have_their_lines(tmp_path: Path) -> None:
    recorder = Recorder(RecordSettings(tmp_path), snapshot, Clock())
    await recorder.open()
    home = node(1)

    def ended(count: int) -> None:
        recorder.ended([exchange(attempts=[Attempt(home, 1.5, ended_s=3.0)]) for _ in range(count)])

    ended(LINES_FROM - 1)
    assert attempts_at(home) == LINES_FROM - 1
    ended(1)
    assert attempts_at(home) == 0
    await recorder.close()
    assert recorder.written == LINES_FROM


async def test_a_class_that_shows_up_later_is_named(tmp_path: Path) -> None:
    names = ["m/chat"]

    def now() -> Snapshot:
        return replace(snapshot(), classes=[class_row(name) for name in names])

    recorder = Recorder(RecordSettings(tmp_path), now, Clock())
    await recorder.open()
    recorder.ended([exchange(class_idx=k % 2) for k in range(LINES_FROM)])
    names.append("m/embedding")
    recorder.ended([exchange(class_idx=1) for _ in range(LINES_FROM)])
    await recorder.close()
    lines = [json.loads(row) for row in files(tmp_path)[0].read_text().splitlines()]
    classes = [row.get("class") for row in requests_of(lines)]
    assert classes == [*("m/chat", None) * (LINES_FROM // 2), *("m/embedding",) * LINES_FROM]


def test_outcomes_retries_and_what_is_no_work(tmp_path: Path) -> None:
    lost = Attempt(node(0), 1.0, ended_s=1.4, cause=Cause.RESET)
    answered = Attempt(node(1), 1.5, first_byte_s=2.0, ended_s=3.0)
    aborted_hedge = Attempt(node(0), 1.6, ended_s=2.0, hedge=True)
    retried = exchange(attempts=[lost, answered, aborted_hedge], started_s=1.0)
    full = exchange(
        attempts=[], outcome=Outcome.REFUSED, refusal=Refusal(503, "queue_full", "full"), usage=None
    )
    unauthorised = exchange(facts=None, attempts=[], outcome=Outcome.REFUSED)
    health = exchange(endpoint=HEALTH)
    recorder, lines = recorded(tmp_path, [retried, full, unauthorised, health])
    first, second = requests_of(lines)
    assert (first["node"], first["retries"], first["wait_s"], first["service_s"]) == (1, 1, 0.0, 1.5)
    assert second["outcome"] == "refused"
    assert second["refusal"] == "queue_full"
    assert "node" not in second
    assert recorder.written == 2


async def test_node_events_plans_and_what_is_under_way(tmp_path: Path) -> None:
    running, waiting = exchange(5.0), exchange(6.0, attempts=[])
    recorder = Recorder(
        RecordSettings(tmp_path), lambda: snapshot(in_flight=[running], queued=[waiting]), Clock()
    )
    await recorder.open()
    recorder.node_event(node(1), "down")
    shares = empty_plan()._replace(weights=np.array([0.5, 0.5]), quota=np.ones((1000, 5)))
    recorder.plan_changed("steering", shares)
    with pytest.raises(ValueError, match="no node event"):
        recorder.node_event(node(1), "sideways")
    await recorder.close()
    lines = [json.loads(row) for row in files(tmp_path)[0].read_text().splitlines()]
    assert lines[1]["in_flight"] == [{"arrival_s": 5.0, "units": 120.0, "class_idx": 0, "node": 1}]
    assert lines[1]["queued"][0]["node"] == -1
    assert [(row["what"], row["node"]["name"]) for row in lines if row["record"] == "node"] == [
        ("down", "n1")
    ]
    (plan,) = [row for row in lines if row["record"] == "plan"]
    said = {"weights": [0.5, 0.5], "quota": {"shape": [1000, 5]}, "active_idx": [0]}
    assert (plan["policy"], plan["plan"]) == ("steering", said)


def test_the_recorder_loads_no_heavy_library() -> None:
    code = (
        "import sys, json, trimtab.gateway.record.recorder; "
        "print(json.dumps([m for m in ('polars', 'scipy', 'pandas', 'rich', 'aiohttp') if m in sys.modules]))"
    )

    async def main() -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0]

    assert json.loads(asyncio.run(main())) == []
