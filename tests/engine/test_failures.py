"""Failures, repairs, slow-downs: each time below is worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, count, fault_table, finishes, once, played, starts
from support.mini_policies import Emptiest, Scripted
from trimtab.domain.options import Cancel, OnFailure, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Reason, Status
from trimtab.engine.driver import Driver

TWO = cluster(2)
ONE = cluster(1)


def test_restart_begins_anew_elsewhere() -> None:
    r = asked(TWO, [0.0], 4.0)
    d = played(TWO, r, Options(faults=fault_table(once(0, 3.0, 10.0))), Emptiest())
    assert starts(d) == [3.0]
    assert finishes(d) == [7.0]
    assert d.state.requests["node_idx"].tolist() == [1]
    assert count(d, "retries") == 1


def test_restart_waits_for_the_repair_when_there_is_no_other_node() -> None:
    d = played(ONE, asked(ONE, [0.0], 4.0), Options(faults=fault_table(once(0, 3.0, 10.0))))
    assert starts(d) == [10.0]
    assert finishes(d) == [14.0]


def test_resume_keeps_what_was_done() -> None:
    options = Options(faults=fault_table(once(0, 3.0, 10.0)), on_failure=OnFailure.RESUME)
    d = played(ONE, asked(ONE, [0.0, 1.0], 4.0), options)
    assert finishes(d) == [11.0, 15.0]
    assert starts(d) == [0.0, 11.0]
    assert count(d, "retries") == 0
    assert d.state.hidden["allocated_slot_s"].tolist() == [3.0 + 1.0 + 4.0]
    assert d.state.hidden["down_s"].tolist() == [7.0]


def test_retries_are_limited_and_then_lost() -> None:
    faults = fault_table(once(0, 1.0, 2.0), once(0, 3.0, 4.0), once(0, 5.0, 6.0))
    d = played(ONE, asked(ONE, [0.0], 4.0), Options(faults=faults, max_retries=2))
    row = d.state.requests[0]
    assert (row["status"], row["reason"]) == (Status.LOST, Reason.RETRIES)
    assert count(d, "retries") == 2
    assert np.isnan(row["finish_s"])


def test_three_retries_suffice_for_three_failures() -> None:
    faults = fault_table(once(0, 1.0, 2.0), once(0, 3.0, 4.0), once(0, 5.0, 6.0))
    d = played(ONE, asked(ONE, [0.0], 4.0), Options(faults=faults, max_retries=3))
    assert finishes(d) == [10.0]


def test_waiting_work_moves_on_without_costing_a_retry() -> None:
    r = asked(TWO, [0.0, 0.5], [4.0, 1.0], key=[0, 1000 * 2])  # both first choose node 0
    d = played(TWO, r, Options(faults=fault_table(once(0, 1.0, 9.0)), max_retries=0))
    assert d.state.requests["status"].tolist() == [Status.LOST, Status.FINISHED]
    assert starts(d)[1] == 1.0
    assert d.state.requests["retries"].tolist() == [0, 0]


def test_a_slow_down_rescales_what_is_left() -> None:
    faults = fault_table(once(0, 1.0, 3.0, factor=0.5))
    d = played(ONE, asked(ONE, [0.0], 4.0), Options(faults=faults))
    assert finishes(d) == [5.0]  # 1 s at full speed, 2 s at half, 2 s at full


def test_overlapping_slow_downs_take_the_slowest() -> None:
    faults = fault_table(once(0, 1.0, 5.0, factor=0.5), once(0, 2.0, 4.0, factor=0.25))
    d = played(ONE, asked(ONE, [0.0], 4.0), Options(faults=faults))
    assert finishes(d) == [6.5]  # done: 1 by 1 s, 1.5 by 2 s, 2 by 4 s, 2.5 by 5 s


def test_work_that_starts_during_a_slow_down_is_slow_and_then_recovers() -> None:
    faults = fault_table(once(0, 0.0, 2.0, factor=0.5))
    d = played(ONE, asked(ONE, [1.0], 1.0), Options(faults=faults))
    assert finishes(d) == [2.5]


def test_overlapping_failures_repair_with_the_last() -> None:
    faults = fault_table(once(0, 1.0, 4.0), once(0, 2.0, 3.0), once(0, 3.5, 6.0))
    d = played(ONE, asked(ONE, [0.0], 2.0), Options(faults=faults))
    assert finishes(d) == [8.0]
    assert d.state.hidden["down_s"].tolist() == [5.0]


def test_a_slow_down_while_down_holds_after_the_repair() -> None:
    faults = fault_table(once(0, 1.0, 4.0), once(0, 2.0, 6.0, factor=0.5))
    d = played(ONE, asked(ONE, [0.0], 3.0), Options(faults=faults, on_failure=OnFailure.RESUME))
    assert finishes(d) == [7.0]  # 1 s done, 4..6 at half = 1, 1 left


def test_a_permanent_failure_is_never_repaired() -> None:
    faults = fault_table(once(0, 1.0, np.inf))
    d = played(ONE, asked(ONE, [0.0, 2.0], 4.0), Options(faults=faults))
    assert d.state.requests["status"].tolist() == [Status.HELD, Status.HELD]
    assert np.isfinite(d.now_s)


def test_a_failure_clears_what_is_resident_and_loading_starts_again() -> None:
    c = cluster(1, models=1, load_s=2.0)
    options = Options(faults=fault_table(once(0, 3.0, 5.0)), on_failure=OnFailure.RESUME)
    d = played(c, asked(c, [0.0], 4.0, model_idx=0), options)
    assert finishes(d) == [10.0]  # loads 0..2, serves 2..3, loads 5..7, serves 7..10
    assert count(d, "model_loads") == 2
    assert d.state.hidden["busy_slot_s"].tolist() == [4.0]
    node = d.state.hidden[0]
    since_change_s = d.now_s - node["memory_since_s"]
    assert node["memory_gib_s"] + node["memory_used_gib"] * since_change_s == 6.0 * 3 + 6.0 * 5


def test_a_failure_during_loading_costs_only_the_loading() -> None:
    c = cluster(1, models=1, load_s=2.0)
    options = Options(faults=fault_table(once(0, 1.0, 5.0)), on_failure=OnFailure.RESUME)
    d = played(c, asked(c, [0.0], 4.0, model_idx=0), options)
    assert finishes(d) == [11.0]


def test_a_slow_down_leaves_loading_alone() -> None:
    c = cluster(1, models=1, load_s=2.0)
    d = played(
        c, asked(c, [0.0], 4.0, model_idx=0), Options(faults=fault_table(once(0, 1.0, 3.0, factor=0.5)))
    )
    assert finishes(d) == [6.5]  # loads 0..2, half speed 2..3, 3.5 left


def test_a_payload_that_reaches_a_failed_node_is_sent_elsewhere() -> None:
    c = cluster(2, nic_gib_per_s=1.0)
    r = asked(c, [0.0], 1.0, payload_gib=2.0, key=1000 * 2)
    d = played(c, r, Options(faults=fault_table(once(0, 1.0, 9.0))))
    assert finishes(d) == [5.0]  # 2 s to node 0, 2 s to node 1, 1 s service
    assert count(d, "moved_gib") == 4


@pytest.mark.parametrize("cancelled", [0, 1])
def test_the_backlog_of_a_failed_node_counts_the_requests_it_still_keeps(cancelled: int) -> None:
    c = cluster(1, slots=2)
    r = asked(c, [0.0, 0.5, 0.5], [10.0, 20.0, 40.0])
    r.work["deadline_s"][cancelled] = 5.0
    options = Options(
        faults=fault_table(once(0, 1.0, 90.0)), on_failure=OnFailure.RESUME, cancel=Cancel.ALWAYS
    )
    driver = Driver(c, r, options, Decider.of(Scripted()), mode="interpreted")
    driver.advance(6.0)
    node = driver.state.nodes[0]
    estimated_end_s = [20.5, 10.0][cancelled]
    assert node["anchor_s"] == 5.0
    assert node["backlog_s"] == pytest.approx(estimated_end_s - 5.0 + 40.0)
    assert node["outstanding_s"] == [60.0, 50.0][cancelled]


def test_recurring_faults_have_the_stated_availability() -> None:
    faults = fault_table((0.0, 0.0, 0.0, 8.0, 2.0, 0, 0, 0, 0, 0.0, 0))
    driver = Driver(
        ONE,
        asked(ONE, [0.0], 1.0, key=-1),
        Options(faults=faults),
        Decider.of(Scripted()),
        seed=3,
        mode="interpreted",
    )
    driver.advance(100_000.0, 10_000)
    down_frac = driver.state.hidden["down_s"][0] / driver.now_s
    # renewal reward: 5,000 cycles, standard error of the fraction ≈ 0.8·0.2·√(2/5000) = 0.0032
    assert down_frac == pytest.approx(0.2, abs=3 * 0.0032)
