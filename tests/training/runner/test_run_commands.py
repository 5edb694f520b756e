"""Commands to a run that goes on: what they change is done, kept, and told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.train_runs import job, jobs_text, last_state, train
from trimtab.cli.app import app
from trimtab.training.runner.live_job import JobRow
from trimtab.training.runner.run_ledger import KnownRun, RunLedger
from trimtab.training.runner.train_jobs import RunOutcome


class Running:
    """A run in a thread, and the rows of its table."""

    def __init__(self, runs: Path, policy: str, *jobs: dict[str, Any], **more: Any) -> None:
        self.runs, self.rows, self.outcome = runs, dict[str, JobRow](), list[RunOutcome]()

        def work() -> None:
            self.outcome.append(train(runs, policy, *jobs, show=self._show, **more))

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _show(self, rows: Sequence[JobRow], now_s: float) -> None:
        self.rows = {row.id: row for row in rows}

    def until(self, holds: Callable[[dict[str, JobRow]], bool]) -> None:
        end_s = time.monotonic() + 120
        while not (self.rows and holds(self.rows)):
            assert time.monotonic() < end_s, self.rows
            time.sleep(0.02)

    def tell(self, *words: Any) -> Any:
        (folder,) = self.runs.glob("train_*")
        do, *rest = map(str, words)
        return CliRunner().invoke(app, ["train", do, folder.name, *rest, "--journal", str(self.runs)])

    def ended(self) -> RunOutcome:
        self._thread.join(120)
        return self.outcome[0]


def known(runs: Path, run_id: str) -> tuple[KnownRun, list[str]]:
    """A run as the journal has it, and where each generation ran."""

    async def read() -> tuple[KnownRun, list[str]]:
        ledger = RunLedger(runs)
        await ledger.open()
        try:
            attempts = await ledger.journal.attempts(run_id)
            where = [a.node for a in sorted(attempts, key=lambda a: (a.number, a.instance))]
            return await ledger.known(run_id), where
        finally:
            await ledger.close()

    return asyncio.run(read())


def test_jobs_come_and_go_and_nodes_are_drained(tmp_path: Path) -> None:
    runs, more = tmp_path / "runs", tmp_path / "more.yaml"
    long = job("long", 800_000, "--step-s", 0.01)
    run = Running(runs, "fifo", long, nodes={"a": 1, "b": 1})
    run.until(lambda rows: rows["long"].samples > 0)
    more.write_text(jobs_text(job("quick", 80, priority=1), job("next", 80, submit_s=0.5)))
    result = run.tell("add", more)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == ["quick: added", "next: added"]
    run.until(lambda rows: all(name in rows and rows[name].state == "done" for name in ("quick", "next")))
    assert run.tell("drain", "a", "b").exit_code == 0
    run.until(lambda rows: rows["long"].state == "waiting")
    assert run.tell("undrain", "b").exit_code == 0
    run.until(lambda rows: rows["long"].state == "running")
    assert run.tell("priority", 7, "long").stderr == "long: priority 7\n"
    result = run.tell("cancel", "quick", "nobody", "long")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "long: cancelled"
    assert "quick: is over: done" in result.stderr
    assert "nobody: no such job; expected one of long, next, quick" in result.stderr
    outcome = run.ended()
    assert outcome.state == "done"
    states = {told.id: told.state for told in outcome.recording.jobs}
    assert states == {"long": "cancelled", "quick": "done", "next": "done"}
    assert 0 < sum(last_state(runs, outcome.run_id, "long")["counts"]) < 800_000  # it was stopped in order
    kept, where = known(runs, outcome.run_id)
    assert [spec.priority for spec in kept.listed.jobs] == [7, 1, 0]
    assert kept.settings.drained == ("a",)
    assert where == ["a:1", "b:1", "b:1", "b:1"]


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        (job("fit", 80), "fit: there is a job of this id"),
        (job("wide", 80, gpus=5), "wide: wants 5 slots; the run has 1"),
    ],
    ids=["id", "size"],
)
def test_jobs_that_cannot_be_added_are_refused_together(
    tmp_path: Path, jobs: dict[str, Any], told: str
) -> None:
    run = Running(tmp_path / "runs", "fifo", job("fit", 80_000, "--step-s", 0.01), nodes={"a": 1})
    run.until(lambda rows: rows["fit"].samples > 0)
    more = tmp_path / "more.yaml"
    more.write_text(jobs_text(job("good", 80), jobs))
    result = run.tell("add", more)
    assert result.exit_code == 2
    assert told in result.stderr
    assert run.tell("cancel", "fit").exit_code == 0
    assert [told.id for told in run.ended().recording.jobs] == ["fit"]
    result = run.tell("cancel", "fit")
    assert result.exit_code == 2
    assert "is over" in result.stderr
