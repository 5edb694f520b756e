"""What a reader of the figures is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trimtab as tt
from trimtab.engine.driver import PlanningLog
from trimtab.experiments.serving.run import Run
from trimtab.experiments.serving.warnings import lateness_note, unfit_note


@pytest.fixture(scope="module")
def run() -> Run:
    return tt.simulate("tiny", "random", mode="interpreted")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 request fits no node and was rejected (seed 3: 0)"),
        (5, "5 requests fit no node and were rejected (seed 3: 0, 1, 2, 3, 4)"),
        (6, "6 requests fit no node and were rejected (seed 3: 0, 1, 2, 3, 4, …)"),
    ],
)
def test_requests_are_left_out_only_where_there_are_more(count: int, text: str) -> None:
    assert unfit_note(count, range(count), "seed 3: ") == text


def test_a_simulated_run_has_nothing_to_say(run: Run) -> None:
    assert run.notes() == []


def test_late_arrivals_are_told(run: Run) -> None:
    arrival_s = run.records.requests.arrival_s + np.linspace(0.1, 0.3, len(run.records.requests.arrival_s))
    late = replace(run.records, requests=replace(run.records.requests, arrival_s=arrival_s))
    assert replace(run, records=late).notes() == [
        "live: arrivals were late by 0.2 s (p50) and 0.298 s (p99) of scenario time"
    ]
    assert "0.5 s (p50)" in lateness_note(np.array([0.5]))


def test_plans_that_failed_are_told(run: Run) -> None:
    assert replace(run, planning=PlanningLog(made=7)).notes() == []
    assert replace(run, planning=PlanningLog(7, 1, 2, 3)).notes() == [
        "plans: 7 made, 1 late, 2 raised, 3 invalid"
    ]
