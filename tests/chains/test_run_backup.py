"""Copies of runs: into a file and back, with results that are used again, and what is refused."""

from __future__ import annotations

import re
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trimtab.chains import Session, chain, run, stage
from trimtab.chains.run_backup import backup, restore
from trimtab.chains.run_reports import summary
from trimtab.cli.app import app
from trimtab.clusters.in_process import InProcess
from trimtab.errors import UsageError

CALLS: list[int] = []


# In this process a stage's outputs are no messages: all of them, small ones too, are values of the store.
@stage(deterministic=True)
def made(n: int) -> bytes:
    CALLS.append(n)
    return bytes([n]) * 100_000


@stage(retries=0)
def measured(data: bytes) -> int:
    if data[0] == 2:
        raise LookupError("two")
    return len(data) + data[0]


@chain
def line(n: int) -> Any:
    return measured(made(n))


def begun(place: Path, key: str = "") -> str:
    handle = run(line, [1, 2, 3], on=InProcess(), journal=place, key=key)
    handle.wait()
    return handle.id


def test_a_run_goes_on_in_another_journal_and_repeats_nothing(tmp_path: Path) -> None:
    run_id = begun(tmp_path / "a", "monday")
    copied = backup(tmp_path / "runs.zip", place=tmp_path / "a")
    assert (copied.runs, copied.values, copied.missing) == ([run_id], 5, 0)
    told = restore(tmp_path / "runs.zip", place=tmp_path / "b")
    assert (told.runs, told.values) == ([run_id], 5)
    assert summary(tmp_path / "b", run_id) == summary(tmp_path / "a", run_id)
    CALLS.clear()
    with Session(line, on=InProcess(), journal=tmp_path / "b") as session:
        results = session.resume(run_id, retry_failed=True).wait()
        assert [result.value for result in results if result.is_ok] == [100_001, 100_003]
        session.run(line, [3]).wait()  # kept for equal inputs, too
    assert CALLS == []


def test_runs_that_are_there_or_whose_key_is_taken_are_left_out(tmp_path: Path) -> None:
    one, other = begun(tmp_path / "a", "monday"), begun(tmp_path / "a")
    assert backup(tmp_path / "one.zip", [one], place=tmp_path / "a").runs == [one]
    backup(tmp_path / "all.zip", place=tmp_path / "a")
    restore(tmp_path / "one.zip", place=tmp_path / "b")
    told = restore(tmp_path / "all.zip", place=tmp_path / "b")
    assert (told.runs, told.left_out) == ([other], {one: "is there already"})
    begun(tmp_path / "c", "monday")
    told = restore(tmp_path / "one.zip", place=tmp_path / "c")
    assert told.left_out == {one: "has the key 'monday', which another run has here"}


def test_a_run_that_was_going_on_is_a_stopped_one(tmp_path: Path) -> None:
    run_id = begun(tmp_path / "a")
    with sqlite3.connect(tmp_path / "a" / "journal.db") as database:
        database.execute("UPDATE chain_runs SET state = 'running', owner = 'chains-1'")
    backup(tmp_path / "runs.zip", place=tmp_path / "a")
    restore(tmp_path / "runs.zip", place=tmp_path / "b")
    assert summary(tmp_path / "b", run_id)["state"] == "stopped"


def test_a_value_that_is_gone_is_counted_and_a_damaged_one_refused(tmp_path: Path) -> None:
    begun(tmp_path / "a")
    first = next(path for path in (tmp_path / "a" / "values").rglob("*") if path.is_file())
    first.unlink()
    assert backup(tmp_path / "runs.zip", place=tmp_path / "a").missing == 1
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad, zipfile.ZipFile(tmp_path / "runs.zip") as good:
        for name in good.namelist():
            bad.writestr(name, b"other" if name.startswith("values/") else good.read(name))
    with pytest.raises(UsageError, match=r"bad\.zip: values/[0-9a-f]+: is damaged"):
        restore(tmp_path / "bad.zip", place=tmp_path / "b")


def cli(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_commands_say_what_they_copied(tmp_path: Path) -> None:
    run_id = begun(tmp_path / "a")
    done = cli("chain", "backup", tmp_path / "runs.zip", run_id, "--journal", tmp_path / "a")
    assert re.search(r"runs\.zip: 1 run, 5 large values of 0\.3001 MB", done.stderr), done.stderr
    assert cli("chain", "restore", tmp_path / "runs.zip", "--journal", tmp_path / "b").exit_code == 0
    again = cli("chain", "restore", tmp_path / "runs.zip", "--journal", tmp_path / "b")
    assert f"{run_id} is left out: it is there already" in again.stderr
    (tmp_path / "no.zip").write_text("no")
    for file, problem in (("no.zip", "not a backup of runs"), ("none.zip", "cannot be read: No such file")):
        refused = cli("chain", "restore", tmp_path / file, "--journal", tmp_path / "b")
        assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.stderr
    assert cli("chain", "backup", tmp_path / "x.zip", "run_0", "--journal", tmp_path / "a").exit_code == 2
