"""Passive events: what opens the breaker, what is back-pressure, what is neither."""

import asyncio

import pytest

from support.gateway.node_world import VirtualLoop, watched
from trimtab.gateway.model import Cause, Health
from trimtab.gateway.nodes.node_state import Hold

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)


async def test_failures_to_connect_open_it_for_growing_times_and_a_trial_closes_it() -> None:
    _, fleet, traffic = watched(1, max_requests=10)
    node = fleet.nodes[0]
    traffic.bad(node, Cause.CONNECT)
    assert fleet.gets_work(node)
    traffic.bad(node, Cause.CONNECT)
    assert node.health is Health.DOWN
    for open_s in (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0):
        await asyncio.sleep(open_s - 0.01)
        assert not fleet.gets_work(node)
        await asyncio.sleep(0.02)
        assert fleet.gets_work(node)
        assert fleet.allowed_requests(node, fleet.loop.time()) == 1
        traffic.bad(node, Cause.CONNECT)  # the trial fails: one failure is enough
        assert not fleet.gets_work(node)
    await asyncio.sleep(15.01)
    traffic.good(node)
    assert fleet.gets_work(node)
    await asyncio.sleep(30)
    assert fleet.allowed_requests(node, fleet.loop.time()) == 10


async def test_attempts_begun_before_it_opened_do_not_open_it_longer() -> None:
    _, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    begun = [traffic.begin(node)[0] for _ in range(20)]
    await asyncio.sleep(0.1)
    for exchange in begun:
        traffic.lose(exchange, Cause.CONNECT)
    await asyncio.sleep(0.51)
    assert fleet.gets_work(node)


async def test_all_nodes_may_be_open_at_once_and_come_back() -> None:
    _, fleet, traffic = watched(3)
    for node in fleet.nodes * 2:
        traffic.bad(node, Cause.CONNECT)
    assert not any(fleet.gets_work(node) for node in fleet.nodes)
    await asyncio.sleep(0.6)
    assert all(fleet.gets_work(node) for node in fleet.nodes)


async def test_a_check_that_came_through_ends_the_wait() -> None:
    manager, fleet, traffic = watched(1)
    for _ in range(2):
        traffic.bad(fleet.nodes[0], Cause.CONNECT)
    manager.breaker.check_passed(fleet.nodes[0])
    assert fleet.gets_work(fleet.nodes[0])


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422])
async def test_answers_of_4xx_and_clients_that_leave_never_count(status: int) -> None:
    manager, fleet, traffic = watched(4)
    for _ in range(200):
        traffic.good(fleet.nodes[0], status)
        traffic.abort(traffic.begin(fleet.nodes[0])[0])
    manager.ejection.compare()
    assert fleet.gets_work(fleet.nodes[0])
    assert fleet.nodes[0].health is Health.UP


@pytest.mark.parametrize(("wished_s", "pause_s"), [(3.0, 3.0), (500.0, 10.0), (0.0, 0.2)])
async def test_back_pressure_is_a_pause_and_no_fault(wished_s: float, pause_s: float) -> None:
    _, fleet, traffic = watched(1, max_requests=10)
    node = fleet.nodes[0]
    traffic.bad(node, Cause.BUSY, status=503)
    await asyncio.sleep(0.11)
    traffic.bad(node, Cause.BUSY, status=503, retry_after_s=wished_s)
    assert not fleet.gets_work(node)
    assert node.health is Health.UP
    await asyncio.sleep(pause_s - 0.01)
    assert not fleet.gets_work(node)
    await asyncio.sleep(0.02)
    assert fleet.gets_work(node)
    assert fleet.allowed_requests(node, fleet.loop.time()) == 10  # no trial, no ramp


async def test_a_burst_of_429_is_one_pause_and_pauses_in_a_row_grow() -> None:
    _, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    burst = [traffic.begin(node)[0] for _ in range(50)]
    await asyncio.sleep(0.01)
    for exchange in burst:
        traffic.lose(exchange, Cause.BUSY, status=429)
    pauses_s = [fleet.state(node).until_s[Hold.BUSY] - fleet.loop.time()]
    for _ in range(6):
        await asyncio.sleep(pauses_s[-1] + 0.01)
        traffic.bad(node, Cause.BUSY, status=503)
        pauses_s.append(fleet.state(node).until_s[Hold.BUSY] - fleet.loop.time())
    assert pauses_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    await asyncio.sleep(2.1)
    traffic.good(node)
    traffic.bad(node, Cause.BUSY, status=503)
    assert fleet.state(node).until_s[Hold.BUSY] - fleet.loop.time() == pytest.approx(0.1)


async def test_a_429_is_about_the_request_and_pauses_no_node() -> None:
    _, fleet, traffic = watched(2, max_requests=10, auto=True)
    for node in fleet.nodes:
        traffic.good(node)
    before = [node.max_requests for node in fleet.nodes]
    for _ in range(20):
        for node in fleet.nodes:
            traffic.bad(node, Cause.RATE_LIMITED, status=429, retry_after_s=600.0)
            traffic.good(node, status=429)  # handed on as a response
    assert all(fleet.gets_work(node) for node in fleet.nodes)
    assert [node.max_requests for node in fleet.nodes] == before


async def test_a_node_may_declare_that_its_429_is_about_itself() -> None:
    _, fleet, traffic = watched(1, is_429_its_own=True)
    node = fleet.nodes[0]
    traffic.good(node, status=429)
    assert Hold.BUSY in fleet.state(node).holds


async def test_one_request_that_every_node_refuses_pauses_the_first_for_a_moment_and_no_other() -> None:
    _, fleet, traffic = watched(3)
    first, *others = fleet.nodes
    exchange, _ = traffic.begin(first)
    traffic.fail(exchange, Cause.BUSY, status=503, retry_after_s=600.0)
    for node in others:
        traffic.send_on(exchange, node)
        traffic.fail(exchange, Cause.BUSY, status=503, retry_after_s=600.0)
    assert [fleet.gets_work(node) for node in fleet.nodes] == [False, True, True]
    await asyncio.sleep(0.11)
    assert fleet.gets_work(first)
    traffic.bad(first, Cause.BUSY, status=503, retry_after_s=3.0)  # of another request
    await asyncio.sleep(2.9)
    assert not fleet.gets_work(first)


async def test_a_503_that_was_handed_on_as_a_response_is_back_pressure_too() -> None:
    _, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    traffic.good(node, status=503)
    assert Hold.BUSY in fleet.state(node).holds
