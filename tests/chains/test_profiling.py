"""Profiles of stages, over all attempts and workers."""

from __future__ import annotations

import pickle
import pstats
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trimtab.chains import Session, chain, stage
from trimtab.cli.app import app
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageNode


def inner(n: int) -> int:
    return sum(range(n))


@stage
def work(n: int) -> int:
    return inner(n) + inner(n)


@stage
def other(n: int) -> int:
    return n


@chain
def line(n: int) -> Any:
    return other(work(n))


def test_calls_of_all_attempts_in_all_workers_are_added_up(tmp_path: Path) -> None:
    with Session(line, on=Processes([StageNode("one", slots=2)]), profile=["work"]) as session:
        session.run(line, [1000] * 5).wait()
        rows = {row.function.partition(" ")[0]: row for row in session.profiles.top("work")}
        assert rows["work"].calls == 5
        assert rows["inner"].calls == 10
        assert rows["work"].total_s >= rows["inner"].total_s > 0.0
        assert session.profiles.attempts == {"work": 5}
        assert session.profiles.write("work", tmp_path / "work.prof")
        assert not session.profiles.write("other", tmp_path / "other.prof")
        assert session.profiles.of("other") is None
    found = pstats.Stats(str(tmp_path / "work.prof")).stats  # type: ignore[attr-defined]
    assert {name: row[1] for (_, _, name), row in found.items() if name == "inner"} == {"inner": 10}


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(UsageError, match=r"profile: no such stage .*expected one of work, other"):
        Session(line, on=InProcess(), profile=["wrok"])


def test_the_command_line_prints_the_top_and_writes_the_file(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("10\n20\n")
    (tmp_path / "profiled_line.py").write_text(
        "from trimtab.chains import chain, stage\n"
        "def inner(text):\n    return text * 2\n"
        "@stage\ndef twice(text: str) -> str:\n    return inner(text)\n"
        "@chain\ndef line(text: str):\n    return twice(text)\n"
    )
    arguments = [
        "chain",
        "run",
        f"{tmp_path}/profiled_line.py",
        "--input",
        f"{tmp_path}/in.txt",
        "--on",
        "in-process",
    ]
    options = ["--profile", "twice", "--profile-out", f"{tmp_path}/x.prof", "--journal", f"{tmp_path}/j"]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == 0, done.output
    assert "inner" in done.stderr
    assert "2 attempts" in done.stderr
    assert (tmp_path / "x.prof").exists()


def test_lines_of_all_attempts_and_of_functions_beside_the_stage_are_added_up(tmp_path: Path) -> None:
    pytest.importorskip("line_profiler", reason="the extra `line-profiles` is not installed")
    with Session(
        line, on=Processes([StageNode("one", slots=2)]), profile=["work"], profile_lines=True
    ) as session:
        session.run(line, [1000] * 5).wait()
        rows = {row.source.strip(): row for row in session.profiles.lines("work")}
        assert rows["return inner(n) + inner(n)"].hits == 5
        assert rows["return sum(range(n))"].hits == 10
        assert rows["return inner(n) + inner(n)"].seconds >= rows["return sum(range(n))"].seconds > 0.0
        assert session.profiles.write("work", tmp_path / "work.lprof")
    found = pickle.loads((tmp_path / "work.lprof").read_bytes()).timings  # as `python -m line_profiler` reads
    assert {name: [hits for _, hits, _ in lines] for (_, _, name), lines in found.items()} == {
        "work": [5],
        "inner": [10],
    }


def test_the_command_line_shows_lines(tmp_path: Path) -> None:
    pytest.importorskip("line_profiler", reason="the extra `line-profiles` is not installed")
    (tmp_path / "in.txt").write_text("10\n20\n")
    (tmp_path / "profiled_class.py").write_text(
        "from trimtab.chains import chain, stage\n"
        "@stage\nclass Twice:\n    def double(self, text):\n        return text * 2\n"
        "    def __call__(self, text: str) -> str:\n        return self.double(text)\n"
        "@chain\ndef classy(text: str):\n    return Twice(text)\n"
    )
    file = f"{tmp_path}/profiled_class.py"
    arguments = ["chain", "run", file, "--input", f"{tmp_path}/in.txt", "--on", "in-process", "--lines"]
    options = ["--profile-out", f"{tmp_path}/x.lprof", "--journal", f"{tmp_path}/j"]
    refused = CliRunner().invoke(app, [*arguments, *options])
    assert (refused.exit_code, "--lines: goes with a profile" in refused.output) == (2, True)
    done = CliRunner().invoke(app, [*arguments, *options, "--profile", "twice"])
    assert done.exit_code == 0, done.output
    assert "return text * 2" in done.stderr
    assert (tmp_path / "x.lprof").exists()
