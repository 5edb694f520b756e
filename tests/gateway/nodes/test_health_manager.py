"""Signals reach the rules once, and the whole room starts and closes."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import uvloop

from support.gateway.node_world import Backend, Traffic, VirtualLoop, fleet_of, spec, watched
from support.waiting import until
from trimtab.gateway.model import Attempt, Cause, Exchange, Health, Outcome
from trimtab.gateway.nodes.health_checks import HealthCheckOptions
from trimtab.gateway.nodes.health_manager import HealthManager, HealthManagerOptions
from trimtab.gateway.nodes.health_rule import AttemptEvents, Success
from trimtab.gateway.stalled_streams import StallDetector

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)


class Notes:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, Cause | None]] = []

    def attempt_started(self, exchange: Exchange, attempt: Attempt) -> None:
        self.seen.append(("began", attempt.node.idx, None))

    def attempts_succeeded(self, answers: Sequence[Success]) -> None:
        self.seen += [("answered", attempt.node.idx, None) for _, attempt in answers]

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        self.seen.append(("lost", attempt.node.idx, cause))

    def attempt_inconclusive(self, exchange: Exchange, attempt: Attempt) -> None:
        self.seen.append(("left", attempt.node.idx, None))


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_final_loss_is_told_once_whether_or_not_the_observer_heard_of_it(is_told: bool) -> None:
    notes = Notes()
    events = AttemptEvents([notes], StallDetector(asyncio.get_running_loop()))
    traffic, node = Traffic(events), fleet_of(1).nodes[0]
    exchange, attempt = traffic.begin(node)
    attempt.cause, exchange.outcome = Cause.RESET, Outcome.FAILED
    if is_told:
        events.lost(exchange, attempt)
    events.ended([exchange])
    events.ended([exchange])
    assert notes.seen == [("began", 0, None), ("lost", 0, Cause.RESET)]


async def test_a_retry_is_a_loss_and_an_answer_and_a_hedge_that_lost_is_neither() -> None:
    notes = Notes()
    events = AttemptEvents([notes], StallDetector(asyncio.get_running_loop()))
    traffic, fleet = Traffic(events), fleet_of(3)
    exchange, first = traffic.begin(fleet.nodes[0])
    first.cause = Cause.CONNECT
    events.lost(exchange, first)
    slow = Attempt(fleet.nodes[2], begun_s=traffic.loop.time(), hedge=True)
    won = Attempt(fleet.nodes[1], begun_s=traffic.loop.time())
    for attempt in (slow, won):
        exchange.attempts.append(attempt)
        events.started(exchange, attempt)
    traffic.finish(exchange)
    assert notes.seen[-3:] == [("began", 1, None), ("left", 2, None), ("answered", 1, None)]


async def test_what_ends_in_one_turn_is_told_in_its_order() -> None:
    notes = Notes()
    events = AttemptEvents([notes], StallDetector(asyncio.get_running_loop()))
    traffic, fleet = Traffic(events), fleet_of(5)
    begun = [traffic.begin(node) for node in fleet.nodes]
    for (exchange, attempt), status in zip(begun, (200, 404, 429, 200, 0), strict=True):
        exchange.outcome = Outcome.DONE if status else Outcome.CANCELLED
        attempt.status, attempt.ended_s = status, traffic.loop.time()
    del notes.seen[:]
    events.ended([exchange for exchange, _ in begun])
    assert notes.seen == [
        ("answered", 0, None),
        ("answered", 1, None),
        ("lost", 2, Cause.RATE_LIMITED),
        ("answered", 3, None),
        ("left", 4, None),
    ]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_room_starts_closes_and_starts_again(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        async with Backend() as backend:
            backend.answers["/metrics"] = (200, "vllm:num_requests_waiting 3\n")
            fleet = fleet_of(2, url=backend.url, metrics_url="/metrics")
            manager = HealthManager(fleet)
            for _ in range(2):
                manager.start()
                await until(lambda: all(node.reported.get("waiting") == 3.0 for node in fleet.nodes))
                await until(lambda: all(fleet.state(node).was_up for node in fleet.nodes))
                await manager.close()
            assert [node.health for node in fleet.nodes] == [Health.UP] * 2
            fleet.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@pytest.mark.event_loop(factory=None)
async def test_a_check_that_times_out_is_excused_until_the_work_is_overdue() -> None:
    async with Backend() as backend:
        health = HealthCheckOptions(period_s=0.01, timeout_s=0.03)
        manager, fleet, traffic = watched(1, HealthManagerOptions(health=health), url=backend.url)
        node = fleet.nodes[0]
        manager.start()
        await until(lambda: fleet.state(node).was_up)
        exchange, _ = traffic.begin(node, estimate_s=1000)
        backend.is_silent = True
        await asyncio.sleep(0.5)
        assert node.health is Health.UP
        traffic.abort(exchange)
        traffic.begin(node, estimate_s=0.01)
        await until(lambda: node.health is Health.DOWN)
        backend.is_silent = False
        await until(lambda: fleet.gets_work(node))
        await manager.close()


@pytest.mark.parametrize("drain_s", [60.0, 0.0], ids=["drained", "out of time"])
async def test_a_removed_node_comes_back_without_its_past(drain_s: float) -> None:
    manager, fleet, traffic = watched(2, auto=True)
    node = fleet.nodes[0]
    traffic.bad(node, Cause.CONNECT)  # the second in a row would open the breaker
    for _ in range(4):
        traffic.bad(node, Cause.RESET)  # the fifth would eject the node
    first_limit = manager.capacity.limit(node)
    exchange, _ = traffic.begin(node)
    fleet.remove(node.name, drain_s)
    traffic.finish(exchange)
    await asyncio.sleep(1)
    assert fleet.present() == fleet.nodes[1:]
    assert manager.inactivity.age_s(node, fleet.loop.time()) == 0.0
    assert fleet.add(spec("n0", auto=True)) is node
    traffic.bad(node, Cause.CONNECT)
    traffic.bad(node, Cause.RESET)
    assert fleet.gets_work(node)
    assert manager.capacity.limit(node) is not first_limit
