"""Orders see what runs carry: priority, tenant, arrival of the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from trimtab.chains import RunHandle, Session, chain, stage
from trimtab.chains.run_defaults import DEFAULT_POLICY
from trimtab.clusters.in_process import InProcess
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageNode

GATE = threading.Event()
SERVED: list[str] = []


@stage
def serve(name: str) -> str:
    if name == "gate":
        GATE.wait(60.0)
    SERVED.append(name)
    return name


@stage
def again(name: str) -> str:
    SERVED.append(name.upper())
    return name


@chain
def once(name: str) -> Any:
    return serve(name)


@chain
def twice(name: str) -> Any:
    return again(serve(name))


def served(policy: str, begin: Callable[[Session], list[RunHandle]], **queues: Any) -> str:
    """The order in which one worker serves what waits behind a closed gate."""
    GATE.clear()
    SERVED.clear()
    given = queues or None
    with Session([once, twice], on=InProcess([StageNode("one")]), policy=policy, queues=given) as session:
        gate = session.run(once, ["gate"], tenant="gate")
        while not gate.counts or gate.counts["serve"].running == 0:
            time.sleep(0.01)
        runs = begin(session)
        while sum(run.counts["serve"].queued if run.counts else 0 for run in runs) < 8:
            time.sleep(0.01)
        GATE.set()
        for run in (gate, *runs):
            run.wait()
    return "".join(SERVED[1:])


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (DEFAULT_POLICY, "bbbbaaaa"),
        ("least-connections+priority-deadline", "bbbbaaaa"),
        ("downstream-aware", "aaaabbbb"),
        ("least-connections+fcfs", "aaaabbbb"),
    ],
)
def test_a_run_of_higher_priority_goes_first_where_the_policy_reads_it(policy: str, order: str) -> None:
    def begin(session: Session) -> list[RunHandle]:
        return [session.run(once, ["a"] * 4), session.run(once, ["b"] * 4, priority=3)]

    assert served(policy, begin) == order


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (DEFAULT_POLICY, "bbbbaaaa"),
        ("downstream-aware+edf", "bbbbaaaa"),
        ("late-binding+edf", "bbbbaaaa"),
        ("least-connections+edf", "bbbbaaaa"),
        ("downstream-aware", "aaaabbbb"),
    ],
)
def test_a_run_with_a_deadline_goes_first_where_the_policy_reads_it(policy: str, order: str) -> None:
    def begin(session: Session) -> list[RunHandle]:
        return [session.run(once, ["a"] * 4), session.run(once, ["b"] * 4, deadline_s=100.0)]

    assert served(policy, begin) == order


def test_tenants_take_turns_where_the_order_counts_what_each_was_given() -> None:
    def begin(session: Session) -> list[RunHandle]:
        runs = [("a", 6, "many"), ("b", 2, "few")]
        return [session.run(once, [name] * n, tenant=tenant) for name, n, tenant in runs]

    # Both were given nothing so far. Whoever was given less is next, so neither is ever two ahead.
    order = served("least-connections+vtc", begin)
    assert order.count("b") == 2
    assert order.rindex("b") <= 4


def test_the_oldest_run_goes_first_also_at_its_second_stage() -> None:
    def begin(session: Session) -> list[RunHandle]:
        return [session.run(twice, ["a"]), session.run(once, ["b"] * 7)]

    assert served("least-connections+fair-runs", begin) == "aAbbbbbbb"
    assert served("least-connections+fcfs", begin) == "abbbbbbbA"


@pytest.mark.parametrize(("order", "expected"), [("priority", "bbbbaaaa"), ("fifo", "aaaabbbb")])
def test_hdrf_serves_a_leaf_in_its_order(order: str, expected: str) -> None:
    def begin(session: Session) -> list[RunHandle]:
        first = session.run(once, ["a"] * 4, tenant="ana")
        return [first, session.run(once, ["b"] * 4, tenant="ben", priority=3)]

    leaf = {"order": order, "tenants": ["ana", "ben"]}
    assert served("least-connections+hdrf", begin, team=leaf, default={}) == expected


RUNNING: dict[str, int] = {}
MOST: dict[str, int] = {}
LOCK = threading.Lock()


@stage
def counted(name: str) -> str:
    with LOCK:
        RUNNING[name] = RUNNING.get(name, 0) + 1
        MOST[name] = max(MOST.get(name, 0), RUNNING[name])
        is_full = len(RUNNING) == 2 and RUNNING.get("other", 0) == 2
    if is_full:
        GATE.set()
    GATE.wait(60.0)
    with LOCK:
        RUNNING[name] -= 1
    return name


@chain
def counting(name: str) -> Any:
    return counted(name)


def test_a_queue_of_runs_stays_within_its_limit() -> None:
    """Three workers: one for the limited tenant, whose run came first, and two for the other one."""
    for kept in (RUNNING, MOST):
        kept.clear()
    GATE.clear()
    queues = {"small": {"limit": 0.34, "tenants": ["ana"]}, "default": {}}
    with Session(counting, on=InProcess([StageNode("one", slots=3)]), queues=queues) as session:
        runs = [session.run(counting, ["limited"] * 5, tenant="ana"), session.run(counting, ["other"] * 4)]
        for run in runs:
            run.wait()
    assert MOST["limited"] == 1
    assert MOST["other"] >= 2


def test_queues_without_a_default_are_refused() -> None:
    with pytest.raises(UsageError, match="a queue 'default' too"):
        Session(counting, on=InProcess([StageNode("one")]), queues={"small": {"tenants": ["ana"]}})
