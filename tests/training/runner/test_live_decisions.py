"""Every allocator of the catalogue decides about real jobs, or is refused with what it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.train_runs import decider_of, jobs_text
from trimtab.errors import UsageError
from trimtab.training.allocator_catalogue import allocator_class, allocator_names
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.deciding import AllocatorChoice, decided_by
from trimtab.training.runner.job_list import JobList, job_list_of
from trimtab.training.runner.live_decisions import LiveDecisions, SlotTime
from trimtab.training.runner.rank_protocol import Report
from trimtab.training.runner.run_ledger import KnownRun, RunSettings
from trimtab.training.runner.train_jobs import decisions_of

PROVIDED = AdaptiveSpeed(()).provides
PLAN = BatchPlan(16, 8)


def steps(step_s: float, sync_s: float) -> Report:
    return Report(1, 16, step_s, sync_s, math.nan, math.nan, -1, "")


def listed() -> JobList:
    def job(id: str, submit_s: float, **more: int) -> dict[str, object]:
        told = {"id": id, "command": ["x"], "samples": 8000, "batch": 16, "submit_s": submit_s}
        return told | {"gpus": 2, "deadline_s": 1e6, "samples_per_s": {1: 10, 2: 18, 4: 30}} | more

    elastic = {"gpus_min": 1, "gpus_max": 4}
    jobs = job("a", 0.0, **elastic), job("b", 0.0), job("c", 0.0, **elastic)
    return job_list_of(jobs_text(*jobs, clock=""), "jobs.yaml", Path())


def decisions(policy: str) -> tuple[LiveDecisions, Callable[[float], None]]:
    run = KnownRun("", RunSettings(policy, {"x": 4, "y": 4}, "test"), listed())
    made = decisions_of(run)
    return made, decider_of(run, made)


@pytest.mark.parametrize("policy", allocator_names())
def test_every_allocator_decides_or_is_refused(policy: str) -> None:
    if not allocator_class(policy).needs <= PROVIDED:
        with pytest.raises(UsageError, match="policy: needs"):
            decisions(policy)
        return
    made, decide = decisions(policy)
    decide(made.due_s)
    for k in np.flatnonzero(made.wanted.any(axis=1)):
        gpus = made.wanted[k]
        made.started(int(k), 1.0)
        made.speed.report(int(k), int((gpus > 0).sum()), int(gpus.sum()), PLAN, steps(0.9, 0.1))
        made.done.work[k] = 800
        made.held([SlotTime(int(k), gpus, 50.0, 5.0)])
    made.happened(200.0)
    decide(made.due_s)
    counts = made.wanted.sum(axis=1)
    assert made.wanted.sum(axis=0).max() <= 4
    assert all(n == 0 or 1 <= n <= 4 for n in counts)
    assert counts[1] in (0, 2)  # it does not scale
    assert counts.any()


def test_a_node_that_is_gone_leaves_its_jobs_waiting_until_the_next_decision() -> None:
    made, decide = decisions("fifo")
    decide(0.0)
    assert made.wanted.tolist() == [[2, 0], [2, 0], [0, 2]]
    made.node_changed(0, False, 5.0)
    assert made.wanted.tolist() == [[0, 0], [0, 0], [0, 2]]
    assert made.due_s == 5.0
    decide(5.0)
    assert made.wanted.tolist() == [[0, 2], [0, 0], [0, 2]]


def test_what_happened_while_the_allocator_decided_holds() -> None:
    """A job ended and a node went: neither gets what the decision gave."""
    made, _ = decisions("fifo")
    run = KnownRun("", RunSettings("fifo", {"x": 4, "y": 4}, "test"), listed())
    decider = AllocatorChoice("fifo", run.listed.rules).decider(made.rehearsal())
    asked = made.question(0.0)
    assert asked is not None
    answer = decided_by(decider, asked)
    assert answer.held.gpus.tolist() == [[2, 0], [2, 0], [0, 2]]
    made.finished(0, 3.0)
    made.node_changed(1, False, 4.0)
    made.decided(asked, answer)
    assert made.wanted.tolist() == [[0, 0], [2, 0], [0, 0]]
    assert made.due_s == 3.0  # of which the allocator is told next


def test_speeds_are_measured_else_declared_times_what_these_were_off() -> None:
    speed = decisions("fifo")[0].speed
    assert speed.work_per_s(0, 1, 2) == 18.0
    assert speed.work_per_s(0, 1, 3) == 24.0  # between two
    speed.report(0, 1, 2, PLAN, steps(16 / 9.0, 0.1))  # half as fast as declared
    assert speed.work_per_s(0, 1, 2) == pytest.approx(9.0)
    assert speed.work_per_s(0, 1, 4) == pytest.approx(15.0)
    assert speed.fit_error_frac == pytest.approx(1.0)  # a step took twice as long
