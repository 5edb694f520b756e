"""Limits of stages: attempts at a time, and attempts that start in a second."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.chains import State, chain, run, stage
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.stage_limits import LimitedStages, StageLimit
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
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


def anybody(_: str) -> bool:
    return True


def test_attempts_start_no_more_often_than_the_rate_allows() -> None:
    limit: StageLimit[str] = StageLimit(0, 10.0)
    assert [limit.begin(name, 5.0) for name in "abc"] == [True, False, False]
    assert list(limit.turns(anybody)) == [("b", pytest.approx(5.1))]  # one after the other
    assert not limit.begin("d", 5.15)  # it is the turn of another
    assert limit.begin("b", 5.15)  # late
    assert list(limit.turns(anybody)) == [("c", pytest.approx(5.2))]
    assert limit.begin("c", 5.25)
    assert list(limit.turns(anybody)) == [("d", pytest.approx(5.3))]
    assert limit.begin("d", 9.0)  # so late that what is missed is missed
    assert not limit.begin("e", 9.05)
    assert list(limit.turns(anybody)) == [("e", pytest.approx(9.1))]


def test_attempts_start_at_the_rate_while_the_first_ones_run() -> None:
    """In virtual time: four at 0, 0.1, 0.2 and 0.3 s, of a minute each."""

    @chain
    def limited(n: int) -> Any:
        return narrow.options(concurrency=0, rate_per_s=10.0)(n)

    backend = SimulatedWorkers([StageNode("one", slots=4)], {"limited/narrow": StandIn(lambda n: 60.0)})
    handle = run(limited, range(4), on=backend)
    handle.wait()
    assert handle.elapsed_s == pytest.approx(60.3)


class Input(SimpleNamespace):
    """That lies in one row."""

    __hash__ = object.__hash__

    def row(self, _: StageInstance) -> int:
        return int(self.number)


class Host(SimpleNamespace):
    """Of one stage with a limit, over three inputs."""

    def __init__(self, limited: Any) -> None:
        runs = SimpleNamespace(lose=lambda *_: None, offer=lambda *turn: self.offered.append(turn))
        super().__init__(
            steps=limited.steps,
            loop=SimpleNamespace(runs=runs),
            wake=lambda: None,
            offered=[],
            over=set(),
            at_s=0.0,
        )
        run, progress = SimpleNamespace(chain=limited), SimpleNamespace(instances=lambda _: INSTANCES)
        self.inputs: Any = [Input(run=run, number=number, progress=progress) for number in range(3)]

    def now_s(self) -> float:
        return float(self.at_s)

    def is_waiting(self, item: Any, _: StageInstance) -> bool:
        return item.number not in self.over


ONLY = StageInstance(0, 0)
INSTANCES = [StageInstance(0, k) for k in range(3)]


def test_turns_that_a_cancelled_run_had_go_to_the_next_ones() -> None:
    """`a` is told twice that an instance of it may begin, and is cancelled before the loop starts them."""

    @chain
    def limited(n: int) -> Any:
        return narrow.options(concurrency=2)(n)

    host: Any = Host(limited)
    limits, (a, b, c) = LimitedStages(host), host.inputs
    assert [limits.holds_back(b, at) for at in INSTANCES[:2]] == [False, False]
    assert [limits.holds_back(a, at) for at in INSTANCES[:2]] == [True, True]
    assert [limits.holds_back(c, at) for at in INSTANCES] == [True, True, True]
    limits.end(host.steps[0])
    limits.end(host.steps[0])
    assert host.offered == [(0, 0.0)] * 2
    host.over.add(0)
    limits.end_run(a)
    assert host.offered[2:] == [(2, 0.0)] * 2
    assert [limits.holds_back(c, at) for at in INSTANCES] == [False, False, True]


def test_the_time_at_which_a_cancelled_run_would_have_begun_goes_to_the_next() -> None:
    @chain
    def limited(n: int) -> Any:
        return narrow.options(concurrency=0, rate_per_s=1.0)(n)

    host: Any = Host(limited)
    limits, (a, b, c) = LimitedStages(host), host.inputs
    assert [limits.holds_back(item, ONLY) for item in (a, b, c)] == [False, True, True]
    assert host.offered == [(1, 1.0)]
    host.over.add(1)
    limits.end_run(b)
    assert host.offered == [(1, 1.0), (2, 1.0)]
    host.at_s = 1.0
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
    assert [limit.begin(name, 1.0) for name in "abc"] == [True, False, False]
    assert list(limit.turns(anybody)) == []
    limit.end()
    assert [who for who, _ in limit.turns(anybody)] == ["b"]
    assert limit.begin("d", 2.0)  # more urgent, says the loop
    assert not limit.begin("b", 2.0)
    limit.end()
    assert [who for who, _ in limit.turns(anybody)] == ["b"]  # still before `c`
    assert limit.begin("b", 3.0)
    limit.end()
    assert [who for who, _ in limit.turns(lambda who: who != "c")] == []
