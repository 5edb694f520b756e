"""What the ends of ranks, and their silence, mean."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.generation import Ending, Generation
from trimtab.training.runner.job_list import JobSpec, RunRules
from trimtab.training.runner.live_job import LiveJob, log_end
from trimtab.training.runner.rank_protocol import Report, read_report, report_line


def generation(ranks: int = 3) -> Generation:
    return Generation(1, {0: tuple(range(ranks))}, 0.0, BatchPlan(8, 8))


def steps(step: int) -> Report:
    return read_report(report_line(step=step, samples=8 * step))


def test_the_first_rank_to_end_is_named_and_not_those_that_were_killed_for_it() -> None:
    made = generation()
    made.ended(2, -11, "")
    made.ended(0, -9, "")
    made.ended(1, 1, "")
    verdict = made.verdict("rank{rank}.log")
    assert (verdict.ending, verdict.rank) == (Ending.FAILED, 2)
    assert verdict.problem == "rank 2 ended by SIGSEGV; see rank2.log"


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {k}\n" for k in range(1000)) + "\nKeyError: 'x'")
    told = log_end(log).splitlines()
    assert told[-2:] == ["    line 999", "    KeyError: 'x'"]
    assert len(told) < 10
    assert log_end(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("gaps", "silent_s"),
    [((), 600.0), ((0.2, 0.5, 0.3), 60.0), ((10.0, 4.0), 200.0)],
    ids=["unknown", "short-steps", "long-steps"],
)
def test_a_job_is_silent_after_twenty_of_its_longest_gaps(gaps: tuple[float, ...], silent_s: float) -> None:
    spec = JobSpec(id="fit", command=("x",), samples=8)
    job = LiveJob(0, spec, Path("fit"), current=generation())
    assert job.current is not None
    at_s = 100.0  # the first report is that of the start
    job.current.heard(0, steps(1), at_s)
    for step, gap_s in enumerate(gaps, 2):
        at_s += gap_s
        job.current.heard(0, steps(step), at_s)
    assert job.silent_s(RunRules()) == silent_s
    assert job.silent_s(RunRules(silent_s=7.0)) == 7.0
    job.silences = 2  # twice it was killed for its silence: it may have been at work
    assert job.silent_s(RunRules()) == 4 * silent_s


def test_a_rank_that_announces_a_pause_may_make_it_until_its_next_step() -> None:
    made = generation(2)
    for rank in (0, 1):
        made.heard(rank, steps(1), 1.0)
    made.heard(0, read_report(report_line(quiet_s=3600)), 2.0)
    made.heard(1, steps(2), 2.1)  # that of the other does not end it
    assert made.quiet_s == 3600
    gap_s = made.gap_s
    made.heard(0, steps(2), 500.0)
    assert made.quiet_s == 0
    assert made.gap_s == gap_s  # the pause tells nothing of its steps
    assert not math.isnan(gap_s)
