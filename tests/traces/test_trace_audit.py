"""What an audit finds in files of every kind, beside brute force and values planted by hand."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.errors import TraceError
from trimtab.traces.audit import Audit, audit
from trimtab.traces.gateway_format import file_name

KEY = "sk-0123456789abcdef"


def verdicts(done: Audit) -> dict[str, str]:
    return {found.column: found.verdict for found in done.columns}


def finding(done: Audit, column: str) -> str:
    return next(found.finding for found in done.columns if found.column == column)


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def request(k: int, **changed: Any) -> dict[str, Any]:
    return {
        "arrival_s": k + 0.25, "finish_s": k + 1.5, "class": "m/chat", "model": "m", "units": 120.0 + k,
        "tenant": f"{k % 2:012x}", "session": k, "prefix_blocks": [k, k + 1], "prompt_tokens": 1000 + k,
        "outcome": "done", "node": 0, **changed,
    }  # fmt: skip


def head(redact: str) -> dict[str, Any]:
    hour = "00:00" if redact in ("coarse", "unlinked") else "12:13"
    started = {"started_utc": f"2026-11-27T02:{hour}Z", "nodes": [{"idx": 0, "name": "n0"}]}
    return {"record": "head", "at_s": 0.0, "format": 1, "redact": redact, **started}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("alice@hospital.example.org", "e-mail addresses"),
        ("from 10.1.2.3 by us", "IP addresses"),
        ("2001:db8:0:0:0:0:0:1", "IP addresses"),
        (f"x={KEY}", "keys or passwords"),
        ("postgresql://me:secret@db/x", "keys or passwords"),
        ("Bearer abcdefghij", "keys or passwords"),
        ("python /home/alice/train.py", "folders of users"),
        ("the patient has a fever", "text"),
    ],
)
def test_what_is_planted_is_found_in_every_kind_of_file(tmp_path: Path, value: str, what: str) -> None:
    table = pl.DataFrame({"arrival_s": [0.0, 1.0], "note": [None, value]})
    table.write_csv(tmp_path / "a.csv")
    table.write_parquet(tmp_path / "a.parquet")
    table.write_ndjson(tmp_path / "a.jsonl")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    lines(tmp_path / "whole.json", {"workflow": {"tasks": [{"note": value}]}})
    for name in ("a.csv", "a.parquet", "a.jsonl", "a.csv.gz", "whole.json"):
        done = audit(tmp_path / name)
        column = "workflow.tasks[].note" if name == "whole.json" else "note"
        assert verdicts(done)[column] == "clear", name
        assert finding(done, column).startswith(what)
        assert done.is_clear


def test_a_log_is_searched_beyond_what_its_format_reads(tmp_path: Path) -> None:
    line = (
        '10.0.0.9 - alice [27/Nov/2026:02:12:00 +0000] "POST /v1/chat/completions HTTP/1.1" 200 512 "-" "-"\n'
    )
    (tmp_path / "access.log").write_text(line * 3)
    done = audit(tmp_path / "access.log")
    assert "IP addresses" in finding(done, "lines")


@pytest.mark.parametrize("redact", ["none", "pseudonyms", "coarse", "unlinked"])
def test_recordings_by_profile(tmp_path: Path, redact: str) -> None:
    rows = [request(k) for k in range(8)]
    for row in rows:
        if redact == "none":
            row["tenant"] = ("hospital", "bank")[int(row["tenant"], 16)]
        if redact in ("coarse", "unlinked"):
            row |= {"arrival_s": float(int(row["arrival_s"])), "units": 120.0, "prompt_tokens": 1000}
        if redact == "unlinked":
            del row["tenant"], row["session"], row["prefix_blocks"]
    folder = tmp_path / "recording"
    folder.mkdir()
    lines(folder / file_name("20261127T021213Z-00000000", 0, 1), head(redact), *rows)
    done = audit(folder)
    assert (done.redact, done.rows) == (redact, 8)
    said = verdicts(done)
    assert said.get("tenant") == {"none": "clear", "unlinked": None}.get(redact, "linkable")
    assert said.get("session") == (None if redact == "unlinked" else "linkable")
    exact = redact in ("none", "pseudonyms")
    assert said["arrival_s"] == said["head.started_utc"] == ("exact" if exact else "fine")
    assert done.is_clear == (redact == "none")


def test_who_is_alone_is_counted_as_by_brute_force(tmp_path: Path) -> None:
    sizes = [(100, "m"), (101, "m"), (101, "m"), (104, "n"), *[(7, "n")] * 6]
    rows = [
        {"arrival_s": k, "user_id": k, "prompt_tokens": n, "model": m, "wait_s": k * 0.1}
        for k, (n, m) in enumerate(sizes)
    ]
    alone = audit(lines(tmp_path / "a.jsonl", *rows)).alone
    assert alone is not None
    assert alone.columns == ("prompt_tokens", "model")
    counts = Counter(sizes)
    assert alone.alone_frac == sum(counts[one] == 1 for one in sizes) / len(sizes) == 0.2
    assert alone.few_frac == sum(counts[one] < 5 for one in sizes) / len(sizes) == 0.4
    assert alone.smallest == 1
    assert alone.rounded_alone_frac == 0.1  # 100 and 101 become one


def test_times_are_exact_by_their_steps(tmp_path: Path) -> None:
    rows = [
        {
            "submit_time": k,
            "timestamp": 1_764_000_000 + k,
            "end_ms": 0.5 * k,
            "created": f"2026-11-27T02:12:{k:02d}Z",
        }
        for k in range(5)
    ]
    said = verdicts(audit(lines(tmp_path / "a.jsonl", *rows)))
    assert said == {"submit_time": "fine", "timestamp": "exact", "end_ms": "exact", "created": "exact"}


def test_exit_codes_and_json(tmp_path: Path) -> None:
    runner = CliRunner()
    fine = lines(tmp_path / "fine.jsonl", *({"arrival_s": k, "prompt_tokens": 8} for k in range(3)))
    clear = lines(
        tmp_path / "clear.jsonl", {"arrival_s": 0, "user": "alice"}, {"arrival_s": 1, "user": "bob"}
    )
    (tmp_path / "empty.csv").write_text("")
    asked = {file: runner.invoke(app, ["trace", "audit", str(file), "--json"]) for file in (fine, clear)}
    assert [answer.exit_code for answer in asked.values()] == [0, 6]
    told = json.loads(asked[clear].stdout)
    assert told["is_clear"]
    assert next(c for c in told["columns"] if c["column"] == "user")["verdict"] == "clear"
    assert "alice" not in asked[clear].stdout
    shown = runner.invoke(app, ["trace", "audit", str(fine)])
    assert shown.exit_code == 0
    assert "prompt_tokens" in shown.stdout
    for bad in ("none.jsonl", "empty.csv"):
        with pytest.raises(TraceError):
            audit(tmp_path / bad)
    with pytest.raises(TraceError, match="without a recording"):
        audit(tmp_path)
