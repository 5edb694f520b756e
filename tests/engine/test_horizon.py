"""Where a run stops: at the horizon, at the end of the work, or where nothing more can happen."""

from __future__ import annotations

import numpy as np

from support.builders import cluster
from support.by_hand import asked, count, fault_table, finishes, once, played
from support.mini_policies import HOLD, Scripted
from trimtab.domain.options import FAULT, Cancel, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Status
from trimtab.engine.simulator import run

ONE = cluster(1)


def test_the_horizon_belongs_to_the_run() -> None:
    d = played(ONE, asked(ONE, [0.0, 1.0, 2.0], 1.0), Options(horizon_s=2.0))
    assert d.state.requests["status"].tolist() == [Status.FINISHED, Status.FINISHED, Status.RUNNING]


def test_what_arrives_after_the_horizon_never_arrived() -> None:
    d = played(ONE, asked(ONE, [0.0, 1.0, 2.0], 1.0), Options(horizon_s=1.999))
    assert count(d, "arrived") == 2
    assert d.state.requests["status"].tolist() == [Status.FINISHED, Status.RUNNING, Status.PENDING]


def test_a_run_ends_with_its_last_request_though_faults_and_samples_go_on() -> None:
    faults = np.zeros(1, FAULT)
    faults["mtbf_s"], faults["mttr_s"] = 50.0, 1.0
    d = played(ONE, asked(ONE, [0.0], 3.0), Options(faults=faults, telemetry_period_s=0.5))
    assert finishes(d) == [3.0]
    assert d.now_s == 3.0


def test_a_run_ends_where_the_policy_holds_for_ever() -> None:
    d = played(ONE, asked(ONE, [0.0], key=HOLD), Options(telemetry_period_s=0.5))
    assert count(d, "in_system") == 1


def test_no_requests_is_a_run_of_nothing() -> None:
    assert count(played(ONE, asked(ONE, [])), "arrived") == 0


def test_held_work_waits_for_a_repair_however_many_reports_come_meanwhile() -> None:
    options = Options(telemetry_period_s=1.0, faults=fault_table(once(0, 0.5, 20_000.0)))
    assert finishes(played(ONE, asked(ONE, [0.75], 1.0), options)) == [20_001.0]


def test_held_work_waits_for_its_deadline_however_many_reports_come_meanwhile() -> None:
    options = Options(telemetry_period_s=1.0, cancel=Cancel.WAITING)
    d = played(ONE, asked(ONE, [0.75], 1.0, key=HOLD, deadline_s=20_000.0), options)
    assert d.state.requests["status"][0] == Status.CANCELLED


def test_work_that_fails_after_long_service_is_served_again() -> None:
    options = Options(telemetry_period_s=1.0, faults=fault_table(once(0, 15_000.0, 15_001.0)))
    assert finishes(played(ONE, asked(ONE, [0.0], 16_000.0), options)) == [31_001.0]


def test_a_long_silence_before_the_last_arrival_does_not_end_the_run() -> None:
    options = Options(telemetry_period_s=1.0, faults=fault_table(once(0, 14_999.5, 15_002.0)))
    assert finishes(played(ONE, asked(ONE, [0.0, 15_000.5], 1.0), options)) == [1.0, 15_003.0]


def test_recurring_faults_do_not_keep_a_run_alive_that_holds_for_ever() -> None:
    faults = np.zeros(1, FAULT)
    faults["mtbf_s"] = faults["mttr_s"] = 1.0
    d = played(ONE, asked(ONE, [0.0], key=HOLD), Options(faults=faults, telemetry_period_s=0.5))
    assert count(d, "in_system") == 1


def test_progress_counts_arrivals() -> None:
    told: list[int] = []
    run(
        ONE,
        asked(ONE, [0.0, 1.0]),
        Options(),
        Decider.of(Scripted()),
        mode="interpreted",
        progress=told.append,
    )
    assert told == [2]
