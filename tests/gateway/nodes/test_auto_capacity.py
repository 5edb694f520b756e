"""Adaptive capacity on a simulated queue of known servers, and through the manager."""

import heapq
import random
import statistics
from dataclasses import dataclass, field

import pytest

from support.gateway.node_world import Traffic, VirtualLoop, fleet_of
from trimtab.gateway.model import Cause
from trimtab.gateway.nodes.auto_capacity import AdaptiveLimit, CapacityOptions
from trimtab.gateway.nodes.health_manager import HealthManager

pytestmark = pytest.mark.event_loop(factory=VirtualLoop)


@dataclass
class Queue:
    """First come first served at `servers`, with as many requests in flight as the limit allows, always."""

    limit: AdaptiveLimit
    servers: int
    draws: random.Random = field(default_factory=lambda: random.Random(1))
    now_s: float = 0.0
    served: int = 0
    in_flight: list[tuple[float, float, float]] = field(default_factory=list)  # end, begin, units
    free_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def run(self, until_s: float) -> None:
        self.free_s = (self.free_s + [self.now_s] * self.servers)[: self.servers]
        while self.now_s < until_s:
            while len(self.in_flight) < self.limit.limit:
                self._begin()
            end_s, begun_s, units = heapq.heappop(self.in_flight)
            self.now_s = max(self.now_s, end_s)
            self.served += 1
            self.latencies_s.append((end_s - begun_s) / units)
            self.limit.sample(end_s - begun_s, units, len(self.in_flight) + 1, begun_s, self.now_s)
            self.limits.append(self.limit.limit)

    def _begin(self) -> None:
        units = self.draws.expovariate(1) + 0.2
        heapq.heapify(self.free_s)
        starts_s = max(self.now_s, heapq.heappop(self.free_s))
        heapq.heappush(self.free_s, starts_s + units)
        heapq.heappush(self.in_flight, (starts_s + units, self.now_s, units))


@pytest.mark.parametrize("servers", [1, 4, 16, 64])
def test_it_finds_about_the_number_of_servers_without_a_long_queue(servers: int) -> None:
    queue = Queue(AdaptiveLimit(1000), servers)
    queue.run(1000)
    begun, at_s = queue.served, queue.now_s
    queue.run(2000)
    per_s = (queue.served - begun) / (queue.now_s - at_s)
    assert per_s > 0.92 * servers / 1.2  # a server does one request of 1.2 units in 1.2 s; probes cost some
    settled = statistics.median(queue.limits[begun:])
    assert servers <= settled <= 2.5 * servers + 3


def test_it_follows_a_node_that_shrinks_and_grows_again() -> None:
    queue = Queue(AdaptiveLimit(1000), 32)
    queue.run(1000)
    wide = queue.limit.limit
    queue.servers = 4
    queue.free_s = sorted(queue.free_s)[:4]
    queue.run(3000)
    narrow = statistics.median(queue.limits[-200:])
    queue.servers = 32
    queue.run(5000)
    assert narrow < wide / 2
    assert statistics.median(queue.limits[-200:]) > 2 * narrow


def test_it_stays_within_its_bounds() -> None:
    queue = Queue(AdaptiveLimit(10), 64)
    queue.run(500)
    assert max(queue.limits) == 10
    limit = AdaptiveLimit(10, CapacityOptions(least=2))
    for second in range(100):
        limit.lost(float(second), float(second))
    assert limit.limit == 2


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = AdaptiveLimit(1000)
    for i in range(2000):
        limit.sample(1.0, 1.0, 1, float(i), float(i))
    assert limit.limit == CapacityOptions().initial


def test_losses_of_one_burst_count_once() -> None:
    limit = AdaptiveLimit(100, CapacityOptions(initial=100))
    for _ in range(50):
        limit.lost(1.0, 2.0)
    assert limit.limit == 90


async def test_only_nodes_with_auto_have_one_and_listeners_hear_of_it() -> None:
    manager = HealthManager(fleet_of(1, auto=True, max_requests=50))
    plain = HealthManager(fleet_of(1, max_requests=50))
    for each in (manager, plain):
        traffic, node = Traffic(each.observer), each.fleet.nodes[0]
        traffic.good(node)
        traffic.bad(node, Cause.FIRST_BYTE)
    assert manager.fleet.nodes[0].max_requests == 3
    assert plain.fleet.nodes[0].max_requests == 50
    manager.fleet.close()
    plain.fleet.close()
