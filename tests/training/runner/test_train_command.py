"""`trimtab train`: runs that are stopped, killed and resumed, and refusals."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from support.train_runs import job, jobs_text, last_state
from trimtab.cli.app import app
from trimtab.cli.train_tables import jobs_table
from trimtab.training.runner import run_ledger, train_jobs
from trimtab.training.runner.live_job import JobRow, LiveJob

COMMAND = [sys.executable, "-c", "from trimtab.cli import main; main()", "train"]


@pytest.fixture
def cli() -> Any:
    return lambda *words: CliRunner().invoke(app, ["train", *map(str, words)])


def run_words(runs: Path, *jobs: dict[str, Any], **rules: Any) -> list[str]:
    file = runs / "jobs.yaml"
    file.write_text(jobs_text(*jobs, **rules))
    return ["run", str(file), "--policy", "fifo", "--journal", str(runs)]


def kill_when_it_trains(runs: Path, pid: int, number: signal.Signals) -> None:
    """Send a signal when the first checkpoint is there."""
    until_s = time.monotonic() + 60
    while not list(runs.glob("train_*/jobs/fit/checkpoints/g000001/step-*")) and time.monotonic() < until_s:
        time.sleep(0.05)
    os.kill(pid, number)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ((LiveJob, "begin"), "its jobs are stopped: No space left on device"),
        ((train_jobs, "recorded"), "error: No space left on device: jobs.csv"),
    ],
)
def test_a_full_disk_is_told_with_the_way_to_go_on(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], told: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "jobs.csv")

    monkeypatch.setattr(*where, full)
    result = cli(*run_words(tmp_path, job("fit", 8)))
    (folder,) = tmp_path.glob("train_*")
    assert result.exit_code == 1, result.output
    problem, hint = result.stderr.splitlines()[-2:]
    assert problem.endswith(told)
    assert hint == f"go on with: trimtab train run --resume {folder.name} --journal {tmp_path}"


@pytest.mark.parametrize("command", ["run", "list"])
def test_a_journal_that_cannot_be_is_the_users_error(tmp_path: Path, cli: Any, command: str) -> None:
    words = run_words(tmp_path, job("fit", 8)) if command == "run" else ["list"]
    no_folder = tmp_path / "file"
    no_folder.touch()
    result = cli(*words, "--journal", no_folder)
    assert result.exit_code == 2, result.output
    assert result.stderr == f"error: --journal: cannot be made: File exists (got '{no_folder}')\n"


def test_ctrl_c_while_processes_begin_is_told_by_the_run_alone(tmp_path: Path) -> None:
    """Helpers import, and get the signal as all of a terminal's processes do; none writes or lives on."""
    words = [*COMMAND, *run_words(tmp_path, job("fit", 1600))]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        begun = run.stdout.readline().strip()
        os.killpg(run.pid, signal.SIGINT)
        told = run.stdout.read().splitlines()  # to the end of all that could write
    again = f"go on with: trimtab train {begun.replace('run', 'run --resume')} --journal {tmp_path}"
    assert told == ["interrupted", again]
    assert run.returncode == 130


def test_ctrl_c_stops_at_a_checkpoint_and_resume_goes_on(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's folder is named relative to another folder than the job's."""
    monkeypatch.chdir(tmp_path.parent)
    runs = Path(tmp_path.name)
    words = run_words(runs, job("fit", 1600, "--step-s", 0.01), checkpoint_period_s=0.05)
    here = tmp_path, os.getpid(), signal.SIGINT
    threading.Thread(target=kill_when_it_trains, args=here, daemon=True).start()
    result = cli(*words)
    (folder,) = tmp_path.glob("train_*")
    assert result.exit_code == 130, result.output
    assert f"go on with: trimtab train run --resume {folder.name} --journal {runs}" in result.stderr
    shown = json.loads(cli("show", folder.name, "--journal", tmp_path, "--json").stdout)
    assert shown["state"] == "stopped"
    assert shown["jobs"][0]["endings"] == {"preempted": 1}
    assert 0 < shown["jobs"][0]["samples"] < 1600
    more = tmp_path / "more.yaml"
    more.write_text(jobs_text(job("later", 80)))
    result = cli("add", folder.name, more, "--journal", runs)  # waits for the run
    assert result.exit_code == 0, result.output
    assert f"it obeys with trimtab train run --resume {folder.name} --journal {runs}" in result.stderr
    result = cli("run", "--resume", folder.name, "--journal", runs, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["state"], told["jobs"][0]["restarts"]) == ("done", 1)
    assert [(j["id"], j["state"]) for j in told["jobs"]] == [("fit", "done"), ("later", "done")]
    assert (told["was_stopped"], told["simulation_error_frac"]) == (True, None)
    counts = last_state(tmp_path, folder.name, "fit")["counts"]
    assert sum(counts) == 1600
    assert max(counts) - min(counts) <= 1
    (listed,) = json.loads(cli("list", "--journal", tmp_path, "--json").stdout)["runs"]
    assert (listed["run"], listed["state"], listed["policy"]) == (folder.name, "done", "fifo")


def test_a_killed_run_goes_on_from_the_last_checkpoints(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of the killed run write a checkpoint as they lose it; the next run waits for that."""
    words = run_words(tmp_path, job("fit", 1600, "--step-s", 0.01), checkpoint_period_s=0.05)
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL) as process:
        kill_when_it_trains(tmp_path, process.pid, signal.SIGKILL)
    (folder,) = tmp_path.glob("train_*")
    monkeypatch.setattr(run_ledger, "LEASE_S", 1.0)
    monkeypatch.setattr("trimtab.jobs.run_journal.LEASE_S", 1.0)
    result = cli("run", "--resume", folder.name, "--journal", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    state = last_state(tmp_path, folder.name, "fit")
    assert sum(state["counts"]) == 1600
    assert max(state["counts"]) - min(state["counts"]) <= 1


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("jobs: []", (), "jobs.yaml: jobs: cannot be used (got []); expected"),
        ("jobs: [{id: a, samples: 1}]", (), "jobs.yaml: jobs[0].command: missing"),
        (
            "jobs: [{id: a b, samples: 1, command: x}]",
            (),
            "jobs.yaml: jobs[0].id: cannot be used (got 'a b')",
        ),
        ("jobs: [{id: a, samples: 1, command: x, gpu: 2}]", (), "jobs.yaml: jobs[0].gpu: unknown key"),
        ("jobs: [{id: a, samples: 1, command: x}]", (), "nodes: names no slots"),
        (
            "nodes: {n: 2}\njobs: [{id: a, samples: 9, batch: 8, command: x, gpus: 3}]",
            (),
            "jobs[0].gpus: would wait for ever (got 3); expected at most 2",
        ),
        ("jobs: [{id: a, samples: 1, command: x, gpus: 2}]", ("--slots", 2), "jobs[0].batch"),
        ("jobs: [{id: a, samples: 1, command: x}, {id: a, samples: 1, command: x}]", (), "an id of its own"),
        ("jobs: [{id: a, samples: 1, command: x}]", ("--slots", 2, "-p", "optimus-oracle"), "needs"),
        ("jobs: [{id: a, samples: 1, command: x}]", ("--slots", 2, "-p", "nobody"), "no such allocator"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, cli: Any, text: str, words: tuple[Any, ...], told: str) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    result = cli("run", file, "--journal", tmp_path / "runs", *words)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("train_*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run",), "needs jobs, or a run to go on with"),
        (
            ("run", "--resume", "train_0"),
            "run: no such run (got 'train_0'); expected an id of `trimtab train list`",
        ),
        (("run", "--resume", "train_0", "--slots", "2"), "--slots: cannot change (got 2)"),
        (("show", "train_0"), "run: no such run (got 'train_0'); expected an id of `trimtab train list`"),
    ],
)
def test_wrong_usage_is_named(tmp_path: Path, cli: Any, words: tuple[str, ...], told: str) -> None:
    result = cli(*words, "--journal", tmp_path)
    assert result.exit_code == 2
    assert told in result.stderr


def test_the_table_says_where_each_job_is() -> None:
    rows = [
        JobRow("fit", "running", 2, 4, 500, 2000, 123.45, 1, 32.0, ""),
        JobRow("later", "waiting", 0, 1, 0, 800, math.nan, 0, math.inf, "ranks disagree"),
    ]
    text = StringIO()
    Console(file=text, width=160).print(jobs_table(rows, 20.0))
    lines = [line.replace("│", " ").split() for line in text.getvalue().splitlines()]
    assert ["fit", "running", "2", "4", "500", "25%", "123.5", "1", "12"] in lines
    assert ["later", "waiting", "0", "1", "0", "0%", "0", "ranks", "disagree"] in lines
    assert lines[-1] == ["20", "s;", "2", "slots", "in", "use"]
