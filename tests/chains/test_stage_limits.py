"""Limits of stages: attempts at a time, and attempts that start in a second."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.chains import State, chain, run, stage
from trimtab.chains.limited_stages import LimitedStages
from trimtab.chains.limits import StageLimit
from trimtab.chains.plan import planned
from trimtab.chains.run_progress import Instance
from trimtab.clusters.in_process import InProcess
from trimtab.live.stage_backend import StageNode

GATE = threading.Lock()
AT_ONCE = [0, 0]  # now, most


@stage(concurrency=2, cpu=0)
def narrow(n: int) -> int:
    with GATE:
        AT_ONCE[0] += 1
        AT_ONCE[1] = max(AT_ONCE)
    time.sleep(0.02)
    with GATE:
        AT_ONCE[0] -= 1
    return n


@stage(concurrency=1, cpu=0, retries=0)
def positive(n: int) -> int:
    if n < 0:
        raise ValueError(n)
    return n


def test_a_stage_runs_so_often_at_a_time_as_it_says_and_no_slot_waits_for_it() -> None:
    @chain
    def limited(n: int) -> Any:
        return narrow(n)

    AT_ONCE[:] = [0, 0]
    handle = run(limited, range(12), on=InProcess([StageNode("one", slots=6)]))
    assert handle.values() == list(range(12))
    assert AT_ONCE == [0, 2]


def test_attempts_start_no_more_often_than_the_rate_allows() -> None:
    limit: StageLimit[str] = StageLimit(0, 10.0)
    assert [limit.begin(name, 5.0) for name in "abc"] == [5.0, 5.1, pytest.approx(5.2)]
    assert limit.begin("b", 5.1) == 5.1  # its time has come
    assert limit.begin("d", 9.0) == 9.0


class Input(SimpleNamespace):
    """That lies in one row."""

    __hash__ = object.__hash__

    def row(self, _: Instance) -> int:
        return int(self.number)


class Host(SimpleNamespace):
    """Of one stage with a limit, over three inputs."""

    def __init__(self, limited: Any) -> None:
        plan = planned(limited)
        runs = SimpleNamespace(lose=lambda *_: None, offer=lambda row, _: self.offered.append(row))
        super().__init__(
            steps=plan.steps,
            loop=SimpleNamespace(runs=runs),
            wake=lambda: None,
            offered=[],
            over=set(),
            at_s=0.0,
        )
        run, progress = SimpleNamespace(plan=plan), SimpleNamespace(instances=lambda _: [ONLY])
        self.inputs: Any = [Input(run=run, number=number, progress=progress) for number in range(3)]

    def now_s(self) -> float:
        return float(self.at_s)

    def is_waiting(self, item: Any, _: Instance) -> bool:
        return item.number not in self.over


ONLY = Instance(0, 0)


def test_a_turn_that_a_cancelled_run_had_goes_to_the_next() -> None:
    """`b` is told that it may begin when `a` ends, and is cancelled before the loop starts it."""

    @chain
    def limited(n: int) -> Any:
        return narrow.options(concurrency=1)(n)

    host: Any = Host(limited)
    limits, (a, b, c) = LimitedStages(host), host.inputs
    assert [limits.holds_back(item, ONLY) for item in (a, b, c)] == [False, True, True]
    limits.end(host.steps[0])
    assert host.offered == [1]
    host.over.add(1)
    limits.end_run(b)
    assert host.offered == [1, 2]
    assert not limits.holds_back(c, ONLY)


def test_the_time_at_which_a_cancelled_run_would_have_begun_is_forgotten() -> None:
    """Else it would be kept as long as the session is open."""

    @chain
    def limited(n: int) -> Any:
        return narrow.options(concurrency=0, rate_per_s=1.0)(n)

    host: Any = Host(limited)
    limits, (a, b, c) = LimitedStages(host), host.inputs
    assert [limits.holds_back(item, ONLY) for item in (a, b, c)] == [False, True, True]  # at 0, 1 and 2 s
    host.over.add(1)
    limits.end_run(b)
    host.at_s = 2.0
    assert limits.holds_back(b, ONLY)
    assert not limits.holds_back(c, ONLY)


def test_an_input_that_fails_while_its_map_waits_for_a_limit_holds_up_no_other() -> None:
    @chain
    def limited(numbers: list[int]) -> Any:
        return positive.map(numbers)

    handle = run(limited, [[-1, 1, 2, 3, 4, 5, 6], [7], [8, 9]], on=InProcess([StageNode("one", slots=8)]))
    failed, *done = handle.wait()
    assert failed.state is State.FAILED
    assert [result.value for result in done] == [[7], [8, 9]]


def test_those_that_wait_for_a_limit_begin_in_turn() -> None:
    limit: StageLimit[str] = StageLimit(1, 0.0)
    assert limit.begin("a", 1.0) == 1.0
    assert [limit.begin(name, 1.0) for name in "bc"] == [float("inf")] * 2
    assert limit.end() == "b"
    assert limit.begin("b", 2.0) == 2.0
    assert (limit.end(), limit.end()) == ("c", None)
