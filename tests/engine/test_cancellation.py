"""What a passed deadline does, wherever the request is at that moment."""

from __future__ import annotations

import pytest

from support.builders import cluster
from support.by_hand import asked, count, fault_table, once, played, starts
from support.mini_policies import HOLD
from trimtab.domain.options import Cancel, OnFailure, Options
from trimtab.domain.requests import Reason, Status

INF = float("inf")
ONE = cluster(1)


@pytest.mark.parametrize(
    ("cancel", "status", "second_starts_s"),
    [
        (Cancel.NEVER, Status.FINISHED, 5.0),
        (Cancel.WAITING, Status.FINISHED, 5.0),
        (Cancel.ALWAYS, Status.CANCELLED, 2.0),
    ],
)
def test_running_work_is_cancelled_only_if_always(
    cancel: Cancel, status: Status, second_starts_s: float
) -> None:
    d = played(ONE, asked(ONE, [0.0, 0.0], [5.0, 1.0], deadline_s=[2.0, INF]), Options(cancel=cancel))
    assert d.state.requests["status"].tolist() == [status, Status.FINISHED]
    assert starts(d)[1] == second_starts_s


@pytest.mark.parametrize("cancel", [Cancel.WAITING, Cancel.ALWAYS])
def test_queued_work_is_cancelled_and_the_next_moves_up(cancel: Cancel) -> None:
    r = asked(ONE, [0.0, 0.0, 0.0], [5.0, 1.0, 1.0], deadline_s=[INF, 2.0, INF])
    d = played(ONE, r, Options(cancel=cancel))
    assert d.state.requests["reason"].tolist() == [Reason.NONE, Reason.DEADLINE, Reason.NONE]
    assert starts(d)[2] == 5.0


def test_cancelled_work_makes_room_for_what_is_held() -> None:
    c = cluster(1, queue_max=1)
    r = asked(c, [0.0, 0.0, 0.5], [5.0, 1.0, 1.0], deadline_s=[INF, 2.0, 3.0])
    d = played(c, r, Options(cancel=Cancel.WAITING))
    # request 2 is held until 2 s, waits at the node from then on, and is cancelled there
    assert d.state.requests["status"].tolist() == [Status.FINISHED, Status.CANCELLED, Status.CANCELLED]
    assert d.state.requests["node_idx"].tolist() == [0, 0, 0]


def test_held_work_is_cancelled_and_frees_its_place() -> None:
    r = asked(ONE, [0.0, 1.0, 2.5], key=HOLD, deadline_s=[2.0, 4.0, 4.0])
    d = played(ONE, r, Options(cancel=Cancel.WAITING, held_max=1))
    assert d.state.requests["reason"].tolist() == [Reason.DEADLINE, Reason.QUEUE_FULL, Reason.DEADLINE]
    assert d.now_s == 4.0


def test_a_deadline_before_arrival_cancels_at_arrival_what_could_not_start() -> None:
    r = asked(ONE, [0.0, 1.0], 5.0, deadline_s=[INF, 0.5])
    d = played(ONE, r, Options(cancel=Cancel.WAITING))
    assert d.state.requests["status"][1] == Status.CANCELLED


def test_work_that_a_failed_node_keeps_is_running_work() -> None:
    options = {"faults": fault_table(once(0, 1.0, 9.0)), "on_failure": OnFailure.RESUME}
    r = asked(ONE, [0.0, 0.0], 5.0, deadline_s=[2.0, INF])
    kept = played(ONE, r, Options(cancel=Cancel.WAITING, **options))
    assert kept.state.requests["finish_s"].tolist() == [13.0, 18.0]
    gone = played(ONE, r, Options(cancel=Cancel.ALWAYS, **options))
    assert gone.state.requests["finish_s"][1] == 14.0
    assert gone.state.hidden["allocated_slot_s"][0] == 1.0 + 5.0


def test_slot_time_of_cancelled_work_is_booked() -> None:
    c = cluster(1, models=1, load_s=2.0)
    d = played(c, asked(c, [0.0], 5.0, model_idx=0, deadline_s=3.0), Options(cancel=Cancel.ALWAYS))
    assert d.state.hidden["allocated_slot_s"].tolist() == [3.0]
    assert d.state.hidden["busy_slot_s"].tolist() == [1.0]
    assert count(d, "cancelled") == 1
