"""Stale views by hand: sampled at kτ, visible at kτ + δ, corrected by what the dispatcher did since."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders import cluster
from support.by_hand import asked, fault_table, once
from support.mini_policies import Scripted
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Memory, memory
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run

ONE = cluster(1, slots=8)


class Diary(Policy):
    """Notes what it sees of node 0 at every decision: [time, in flight, outstanding, up] by request."""

    def __init__(self) -> None:
        self.pages: dict[int, tuple[float, int, float, int]] = {}

    def init(self, cluster: Any) -> Memory:
        return memory(floats=1)

    @property
    def dispatch(self) -> Any:  # type: ignore[override]
        def note(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            n = view.nodes
            self.pages[work.serial] = (view.context.now_s, n.in_flight[0], n.outstanding_s[0], n.up[0])
            ranking[0] = 0
            return 1

        return note


def seen(options: Options, arrival_s: list[float], units: Any) -> list[int]:
    """Requests in flight on node 0 as each request's dispatcher saw it."""
    diary = Diary()
    run(ONE, asked(ONE, arrival_s, units), options, Decider.of(diary), mode="interpreted")
    return [diary.pages[i][1] for i in range(len(arrival_s))]


def test_a_fresh_view_shows_the_node_as_it_is() -> None:
    assert seen(Options(), [0.0, 0.5, 2.0], [1.0, 1.0, 1.0]) == [0, 1, 0]


def test_one_dispatcher_knows_what_it_sent_and_what_came_back() -> None:
    """Alone, its own doings are all that happens, so it is never out of date."""
    options = Options(telemetry_period_s=100.0, telemetry_delay_s=7.0)
    assert seen(options, [0.0, 0.5, 2.0, 2.5], 1.0) == [0, 1, 0, 1]


def test_others_work_shows_up_with_the_sample() -> None:
    """Dispatcher 1 (odd) learns of request 0, which is dispatcher 0's, at 1 s, and of its end at 3 s."""
    options = Options(telemetry_period_s=1.0, dispatchers=2)
    arrival_s = [0.5, 0.75, 0.9, 1.5, 2.9, 2.95, 2.96, 3.5]
    units = [1.7, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]  # runs from 0.5 to 2.2
    assert seen(options, arrival_s, units) == [0, 0, 1, 1, 0, 1, 0, 0]


def test_a_sample_is_visible_after_the_delay() -> None:
    options = Options(telemetry_period_s=1.0, telemetry_delay_s=0.25, dispatchers=2)
    arrival_s = [0.5, 1.2, 1.21, 1.3]
    assert seen(options, arrival_s, [9.0, 0.0, 0.0, 0.0]) == [0, 0, 1, 1]


def test_a_delay_longer_than_the_period_keeps_several_samples_on_the_way() -> None:
    """Sampled at 1 s with the request, seen at 3.5 s; gone at 2 s, seen at 4.5 s at the latest."""
    options = Options(telemetry_period_s=1.0, telemetry_delay_s=2.5, dispatchers=2)
    arrival_s = [0.5, 3.4, 3.41, 3.6, 4.3, 4.4, 4.45, 4.6]
    units = [1.4] + [0.0] * 7
    assert seen(options, arrival_s, units) == [0, 0, 0, 1, 0, 1, 0, 0]


def test_own_work_that_ended_since_the_sample_is_taken_off() -> None:
    """Request 0 is in the sample of 1 s, but its own dispatcher knows at 1.5 s that it has finished."""
    options = Options(telemetry_period_s=1.0, dispatchers=2)
    assert seen(options, [0.5, 1.5, 1.6], [0.9, 0.0, 0.0]) == [0, 1, 0]


def test_a_failure_shows_with_the_next_sample() -> None:
    diary = Diary()
    options = Options(telemetry_period_s=1.0, faults=fault_table(once(0, 0.5, 1.5)), dispatchers=2)
    run(ONE, asked(ONE, [0.75, 1.25, 1.75, 2.25], 0.1), options, Decider.of(diary), mode="interpreted")
    assert [diary.pages[i][3] for i in (1, 3)] == [0, 1]


def test_each_dispatcher_has_its_own_memory() -> None:
    class Counting(Scripted):
        def init(self, cluster: Any) -> Memory:
            return memory(ints=1)

        @staticmethod
        def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
            memory.ints[0] += 1
            ranking[0] = 0
            return 1

    d = run(ONE, asked(ONE, [0.0] * 7), Options(dispatchers=3), Decider.of(Counting()), mode="interpreted")
    assert [int(m.ints[0]) for m in d.state.memories] == [3, 2, 2]


@pytest.mark.parametrize("delay_s", [0.0, 0.5, 3.0])
def test_resident_models_are_as_old_as_the_report(delay_s: float) -> None:
    c = cluster(1, models=1, load_s=0.0)
    options = Options(telemetry_period_s=1.0, telemetry_delay_s=delay_s)
    driver = Driver(
        c, asked(c, [0.5, 9.0], 0.1, model_idx=0), options, Decider.of(Scripted()), mode="interpreted"
    )
    driver.advance(0.99 + delay_s)
    assert driver.view().resident[0, 0] == 0
    driver.advance(1.0 + delay_s)
    assert driver.view().resident[0, 0] == 1
