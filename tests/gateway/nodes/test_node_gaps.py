"""A gateway that was itself stopped, or late, holds that against no node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from support.gateway.node_world import Backend, Traffic, VirtualLoop, fleet_of, watched
from support.waiting import until
from trimtab.gateway.model import Attempt, Cause, Exchange, Health
from trimtab.gateway.nodes.health_checks import HealthChecker, HealthCheckOptions
from trimtab.gateway.nodes.health_manager import HealthManager
from trimtab.gateway.nodes.health_rule import AttemptEvents, HealthRule, Success
from trimtab.gateway.stalled_streams import AWAY_S, StallDetector

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)


def stop_for(seconds: float) -> None:
    """What a stopped process sees: time has passed, and nothing was called."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.stand_still(seconds)


async def test_a_gap_is_noticed_by_whoever_asks_first_and_a_short_delay_is_none() -> None:
    loop = asyncio.get_running_loop()
    stall_detector, is_needed = StallDetector(loop), [True]
    stall_detector.on_beat.append(lambda: bool(is_needed))
    stall_detector.start()
    begun_s = loop.time()
    await asyncio.sleep(1.0)
    stop_for(AWAY_S / 2)
    assert not stall_detector.spans_gap(begun_s)
    stop_for(10.0)
    assert stall_detector.spans_gap(begun_s)
    assert not stall_detector.spans_gap(loop.time())
    begun_s = loop.time()
    await asyncio.sleep(1.0)
    assert not stall_detector.spans_gap(begun_s)
    is_needed.clear()
    await asyncio.sleep(1.0)
    stop_for(10.0)
    assert not stall_detector.spans_gap(begun_s)  # nobody waited for anything
    is_needed.append(True)
    stall_detector.start()
    await asyncio.sleep(1.0)
    assert not stall_detector.spans_gap(begun_s)  # nor is it one for what begins after it
    stop_for(10.0)
    assert stall_detector.spans_gap(begun_s)
    begun_s = loop.time()
    stall_detector.close()
    stop_for(10.0)
    assert not stall_detector.spans_gap(begun_s)


async def test_nothing_beats_while_nothing_is_under_way() -> None:
    manager = HealthManager(fleet_of(1))
    traffic, node, stall_detector = (
        Traffic(manager.observer),
        manager.fleet.nodes[0],
        manager.fleet.stall_detector,
    )
    beats: list[float] = []

    def beat() -> bool:
        beats.append(manager.fleet.loop.time())
        return False

    stall_detector.on_beat.append(beat)
    manager.inactivity.start()
    await asyncio.sleep(10.0)
    assert not beats
    exchange, _ = traffic.begin(node)
    await asyncio.sleep(1.05)
    assert len(beats) == 10
    traffic.finish(exchange)
    await asyncio.sleep(10.0)
    assert len(beats) == 11
    manager.inactivity.close()


async def test_time_in_which_the_gateway_did_not_run_is_nobodys_silence() -> None:
    manager, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    manager.inactivity.start()
    moves: list[Attempt] = []
    traffic.begin(node, estimate_s=1, moves=moves)  # nothing is known of its class: 3 s are allowed
    await asyncio.sleep(2.5)
    stop_for(300.0)
    await asyncio.sleep(2.9)
    assert fleet.gets_work(node)
    await asyncio.sleep(0.5)
    assert node.health is Health.SUSPECT  # it had its whole time again
    stop_for(300.0)
    await asyncio.sleep(0.9)
    assert not moves
    await asyncio.sleep(0.3)
    assert moves
    manager.inactivity.close()


class Told(HealthRule):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def attempts_succeeded(self, answers: Sequence[Success]) -> None:
        self.seen += ["answered" for _ in answers]

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        self.seen.append("lost")

    def attempt_inconclusive(self, exchange: Exchange, attempt: Attempt) -> None:
        self.seen.append("left")


async def test_an_attempt_that_spans_a_gap_speaks_neither_for_nor_against_its_node() -> None:
    told, (node,) = Told(), fleet_of(1).nodes
    stall_detector = StallDetector(asyncio.get_running_loop())
    traffic = Traffic(AttemptEvents([told], stall_detector))
    (good, _), (bad, _) = traffic.begin(node), traffic.begin(node)
    stop_for(60.0)
    traffic.finish(good)
    traffic.lose(bad, Cause.RESET)
    traffic.good(node)
    traffic.bad(node, Cause.RESET)
    assert told.seen == ["left", "left", "answered", "lost"]
    stall_detector.close()


async def test_a_check_that_spans_a_gap_is_void_and_done_again_at_once() -> None:
    async with Backend() as backend:
        fleet = fleet_of(1, url=backend.url)
        options = HealthCheckOptions(period_s=1000.0, timeout_s=5.0, unhealthy_threshold=1)
        checker, node = HealthChecker(fleet, options), fleet.nodes[0]
        checker.start()
        await until(lambda: fleet.state(node).was_up)
        backend.is_silent = True
        n_seen = len(backend.seen)
        checker.check_now(node)
        await until(lambda: len(backend.seen) > n_seen)
        n_seen, backend.is_silent = len(backend.seen), False
        await asyncio.sleep(0)
        stop_for(60.0)  # the answer is there, and the time-out is over
        await until(lambda: len(backend.seen) > n_seen)
        assert node.health is Health.UP
        assert fleet.problems == {}
        await checker.close()
