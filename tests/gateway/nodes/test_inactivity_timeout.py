"""Silence: a freeze is noticed, a long prefill is none."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from support.gateway.node_world import Heard, Traffic, VirtualLoop, fleet_of, watched
from support.waiting import until
from trimtab.gateway.model import Attempt, Health, Node
from trimtab.gateway.nodes.health_checks import HealthCheckOptions
from trimtab.gateway.nodes.health_manager import HealthManagerOptions
from trimtab.gateway.nodes.health_rule import AttemptEvents
from trimtab.gateway.nodes.inactivity_timeout import InactivityOptions, InactivityTimeout
from trimtab.gateway.nodes.node_state import Hold

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)


async def test_a_long_prefill_is_no_freeze() -> None:
    manager, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    manager.inactivity.start()
    exchange, attempt = traffic.begin(node, estimate_s=20, stream=True)
    await asyncio.sleep(40)
    assert fleet.gets_work(node)
    assert manager.inactivity.is_within_prediction(node)
    assert manager.inactivity.age_s(node, fleet.loop.time()) == pytest.approx(40)
    traffic.byte(attempt)
    traffic.finish(exchange)
    assert manager.inactivity.age_s(node, fleet.loop.time()) == 0
    manager.inactivity.close()


async def test_a_first_byte_that_is_overdue_makes_a_suspect_and_a_byte_clears_it() -> None:
    manager, fleet, traffic = watched(1, max_requests=10)
    node = fleet.nodes[0]
    manager.inactivity.start()
    for _ in range(20):  # it learns that the first byte comes after a tenth of the prediction
        exchange, attempt = traffic.begin(node, estimate_s=10)
        await asyncio.sleep(1)
        traffic.finish(exchange)
    exchange, attempt = traffic.begin(node, estimate_s=10)
    await asyncio.sleep(0.9)
    assert fleet.gets_work(node)
    await asyncio.sleep(2)
    assert node.health is Health.SUSPECT
    assert "1 in flight" in node.reason
    assert not manager.inactivity.is_within_prediction(node)
    traffic.byte(attempt)
    await asyncio.sleep(0.2)
    assert fleet.gets_work(node)
    assert fleet.allowed_requests(node, fleet.loop.time()) == 10
    manager.inactivity.close()


async def test_a_stream_that_stops_makes_a_suspect_after_its_usual_gaps() -> None:
    manager, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    manager.inactivity.start()
    for _ in range(3):
        exchange, attempt = traffic.begin(node, estimate_s=5, stream=True)
        for _ in range(50):
            await asyncio.sleep(0.1)
            traffic.byte(attempt)
            exchange.streamed_chunks += 1
        traffic.finish(exchange)
    exchange, attempt = traffic.begin(node, estimate_s=5, stream=True)
    await asyncio.sleep(0.1)
    traffic.byte(attempt)
    await asyncio.sleep(0.9)
    assert fleet.gets_work(node)
    await asyncio.sleep(4)
    assert node.health is Health.SUSPECT
    manager.inactivity.close()


async def test_one_stuck_request_beside_others_that_flow_is_no_freeze() -> None:
    manager, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    manager.inactivity.start()
    traffic.begin(node, estimate_s=0.1)
    _, other = traffic.begin(node, estimate_s=100, stream=True)
    for _ in range(100):
        await asyncio.sleep(0.3)
        traffic.byte(other)
        assert fleet.gets_work(node)
    manager.inactivity.close()


async def test_an_answered_check_clears_a_suspect_and_doubles_the_patience() -> None:
    manager, fleet, traffic = watched(1)
    node = fleet.nodes[0]
    manager.inactivity.start()
    traffic.begin(node, estimate_s=1)  # nothing is known of its class: three times the prediction
    await asyncio.sleep(3.3)
    assert Hold.INACTIVE in fleet.state(node).holds
    manager.inactivity.check_passed(node)
    assert fleet.gets_work(node)
    await asyncio.sleep(2.4)
    assert fleet.gets_work(node)
    await asyncio.sleep(0.8)
    assert not fleet.gets_work(node)
    manager.inactivity.close()


async def test_a_healthy_node_is_not_withheld_for_a_request_that_takes_longer_than_any_before() -> None:
    fleet = fleet_of(1)
    (node,), heard = fleet.nodes, Heard(fleet)
    asked: list[float] = []

    def check(of: Node) -> None:  # it passes after two milliseconds
        asked.append(fleet.loop.time())
        fleet.loop.call_later(0.002, rule.check_passed, of)

    rule = InactivityTimeout(fleet, request_check=check)
    traffic = Traffic(AttemptEvents([rule], fleet.stall_detector))
    rule.start()
    begun_s = fleet.loop.time()
    exchange, _ = traffic.begin(node, estimate_s=1)
    await asyncio.sleep(13)
    assert [at_s - begun_s for at_s in asked] == pytest.approx([3, 6, 12], abs=0.11)  # its allowance doubles
    assert heard.events == []
    traffic.finish(exchange)
    await asyncio.sleep(1)
    assert len(asked) == 3
    rule.close()


async def test_what_a_frozen_node_has_not_begun_to_answer_moves_after_a_second_without_a_sign() -> None:
    manager, fleet, traffic = watched(1, max_requests=10)
    node = fleet.nodes[0]
    asked: list[Attempt] = []
    _, silent = traffic.begin(node, estimate_s=1, moves=asked)
    _, streams = traffic.begin(node, estimate_s=1, stream=True, moves=asked)
    traffic.byte(streams)
    manager.inactivity.start()
    await asyncio.sleep(3.3)
    assert node.health is Health.SUSPECT
    assert not asked
    await asyncio.sleep(1)
    assert set(asked) == {silent}  # again and again, until it may
    asked.clear()
    manager.inactivity.check_passed(node)
    await asyncio.sleep(1)
    assert not asked  # it was only slow
    manager.inactivity.close()


SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b'{"data": [{"id": "m"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.mark.event_loop(factory=None)
async def test_a_stopped_process_with_many_in_flight_is_suspect_until_it_goes_on(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    try:
        await stop_and_go_on(process)
    finally:
        process.kill()
        await process.communicate()


async def stop_and_go_on(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    options = HealthManagerOptions(
        health=HealthCheckOptions(period_s=0.05, timeout_s=0.2, unhealthy_threshold=100_000),
        inactivity=InactivityOptions(min_s=0.1),
    )
    manager, fleet, traffic = watched(1, options, url=f"http://127.0.0.1:{port}")
    node = fleet.nodes[0]
    manager.start()
    await until(lambda: fleet.state(node).was_up)
    os.kill(process.pid, signal.SIGSTOP)
    begun = [traffic.begin(node, estimate_s=0.05)[0] for _ in range(40)]
    await until(lambda: node.health is Health.SUSPECT)
    await asyncio.sleep(0.5)
    assert not fleet.gets_work(node)  # no check comes through
    os.kill(process.pid, signal.SIGCONT)
    await until(lambda: fleet.gets_work(node))
    for exchange in begun:
        traffic.finish(exchange)
    await manager.close()
