"""Rows of loads in shared memory: one writer each, the same node under any index, zeroed after a death."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from typing import Any

import pytest

from trimtab.gateway.decide.dispatcher import Decider
from trimtab.gateway.decide.loads import Change, Loads, SharedLoads
from trimtab.gateway.decide.pool import chosen
from trimtab.gateway.decide.rules import Rules
from trimtab.gateway.model import Attempt, Endpoint, Exchange, Facts, Kind, Node, Refusal
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.spec import NodeSpec

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT)


def made(name: str, idx: int, port: int = 1) -> Node:
    return Node(name, f"http://127.0.0.1:{port}", idx, "127.0.0.1", port, False, (), 4)


def test_others_loads_are_found_under_ones_own_index() -> None:
    shared = SharedLoads(3, slots=8)
    one, two, three = (Loads(shared, row) for row in range(3))
    one.know(made("a", 0))
    one.know(made("b", 1))
    two.know(made("b", 0))  # elsewhere the nodes came in another order
    two.know(made("a", 1))
    three.know(made("a", 0))
    one.add(0, 1, 0.5)
    one.add(1, 2, 3.0)
    assert two.changes() == [Change(1, 1, 0.5), Change(0, 2, 3.0)]
    assert two.changes() == []  # nothing was written since
    for change in (Change(1, 1, 0.5), Change(0, 2, 3.0)):
        two.take(change)
    one.add(1, -1, -3.0)
    assert two.changes() == [Change(0, -1, -3.0)]
    assert three.changes() == [Change(0, 1, 0.5)]
    assert one.changes() == []


def test_a_node_that_is_known_late_shows_what_others_have_there() -> None:
    shared = SharedLoads(2, slots=8)
    one, two = Loads(shared, 0), Loads(shared, 1)
    one.know(made("a", 0))
    one.add(0, 3, 1.0)
    assert two.changes() == []
    two.know(made("a", 5))
    assert two.changes() == [Change(5, 3, 1.0)]


def test_a_row_without_requests_has_no_seconds() -> None:
    shared = SharedLoads(2, slots=2)
    one = Loads(shared, 0)
    one.know(made("a", 0))
    for _ in range(3):
        one.add(0, 1, 0.1)
    for _ in range(3):
        one.add(0, -1, -0.1)
    assert not shared.loads.any()


def test_slots_are_used_again_and_a_full_table_shares_nothing() -> None:
    shared = SharedLoads(2, slots=2)
    one, two = Loads(shared, 0), Loads(shared, 1)
    nodes = [made(name, idx) for idx, name in enumerate("abc")]
    for node in nodes:
        one.know(node)
    one.add(2, 1, 1.0)  # there was no slot for it: no harm
    two.know(nodes[1])
    assert two.changes() == []
    one.forget(nodes[0])
    two.know(nodes[2])
    two.add(2, 1, 1.0)
    one.know(nodes[2])
    assert one.changes() == [Change(2, 1, 1.0)]


def test_another_node_of_the_same_name_has_a_slot_of_its_own() -> None:
    shared = SharedLoads(2, slots=4)
    one, two = Loads(shared, 0), Loads(shared, 1)
    one.know(made("a", 0, port=1))
    two.know(made("a", 0, port=2))
    one.add(0, 1, 1.0)
    assert two.changes() == []


def test_a_killed_process_leaves_no_load() -> None:
    shared = SharedLoads(2, slots=4)
    mine = Loads(shared, 0)
    mine.know(made("a", 0))
    pid = os.fork()
    if pid == 0:
        try:
            its = Loads(shared, 1)
            its.know(made("a", 0))
            its.add(0, 2, 8.0)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (change,) = mine.changes()
    assert change == Change(0, 2, 8.0)
    mine.take(change)
    shared.zero(1)
    assert mine.changes() == [Change(0, -2, -8.0)]


class RequestSpec(Exchange):
    """Notes where it is sent."""

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.endpoint, self.facts = CHAT, Facts("m", max_tokens=8.0)
        self.arrived_s = now_s
        self.node: Node | None = None

    def start(self, node: Node) -> None:
        self.node = node
        self.attempts.append(Attempt(node, self.arrived_s))

    def refuse(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)


def decider_of(loop: asyncio.AbstractEventLoop, shared: SharedLoads, row: int, names: str) -> Decider:
    fleet = Fleet(loop)
    for name in names:
        fleet.add(NodeSpec(name, f"http://127.0.0.1:{ord(name)}", models=("m",), max_requests=2))
    rules = Rules(chosen("least-connections"), max_wait_s=1e6, hold_s=1e6)
    return Decider(loop, fleet, rules, inline_plans=True, loads=Loads(shared, row))


@pytest.mark.parametrize("seed", range(3))
def test_dispatchers_that_take_turns_never_send_a_node_too_much(seed: int) -> None:
    asyncio.run(_taking_turns(random.Random(seed)))


async def _taking_turns(draw: random.Random) -> None:
    """One process, so one step at a time: what the others did is always seen, and nothing is too much."""
    loop = asyncio.get_running_loop()
    shared = SharedLoads(3, slots=8)
    deciders = [decider_of(loop, shared, row, names) for row, names in enumerate(("ab", "ba", "ab"))]
    under_way: list[tuple[Decider, RequestSpec]] = []
    asked: list[RequestSpec] = []

    def running() -> dict[str, int]:
        each = [node for decider in deciders for node in decider.fleet.nodes]
        return {name: sum(n.in_flight for n in each if n.name == name) for name in "ab"}

    def finish() -> None:
        started = [pair for pair in under_way if pair[1].node is not None]
        pair = decider, exchange = draw.choice(started)
        under_way.remove(pair)
        exchange.attempts[-1].ended_s, exchange.response_status = loop.time(), 200
        decider.done((exchange,))

    for _ in range(400):
        if draw.random() < 0.55 or not under_way:
            exchange = RequestSpec(loop.time())
            asked.append(exchange)
            decider = draw.choice(deciders)
            under_way.append((decider, exchange))
            decider.submit(exchange)
        else:
            finish()
        if draw.random() < 0.05:
            await asyncio.sleep(0.003)  # queues look for what the others have left
        assert max(running().values()) <= 2
    while under_way:
        if any(exchange.node is not None for _, exchange in under_way):
            finish()
        else:
            await asyncio.sleep(0.001)
        assert max(running().values()) <= 2
    assert all(exchange.node is not None for exchange in asked)
    assert not shared.loads.any()
    _close(deciders)


def test_room_that_is_new_is_offered_a_place_at_a_time() -> None:
    asyncio.run(_coming_up())


async def _coming_up() -> None:
    """A node comes up while two processes have queues for it."""
    loop = asyncio.get_running_loop()
    shared = SharedLoads(2, slots=8)
    deciders = [decider_of(loop, shared, row, "a") for row in range(2)]
    folds: list[int] = []
    for decider in deciders:
        decider.fleet.drain("a")
    waiting: list[RequestSpec] = [RequestSpec(loop.time()) for _ in range(6)]
    for i, exchange in enumerate(waiting):
        deciders[i % 2].submit(exchange)
    first: Any = deciders[0]._others
    fold = first.fold
    first.fold = lambda now_s: (folds.append(sum(e.node is not None for e in waiting)), fold(now_s))
    for decider in deciders:
        decider.fleet.undrain("a")
    assert sum(exchange.node is not None for exchange in waiting) == 2
    assert folds[:2] == [0, 1]  # it has looked before each start
    _close(deciders)


def test_room_of_ones_own_and_room_that_others_left_are_looked_at_apart() -> None:
    asyncio.run(_twofold())


async def _twofold() -> None:
    """A request ends here at the moment at which another process, without a queue, has left room too."""
    loop = asyncio.get_running_loop()
    shared = SharedLoads(2, slots=8)
    mine, other = (decider_of(loop, shared, row, "a") for row in range(2))
    ours, theirs = RequestSpec(loop.time()), RequestSpec(loop.time())
    mine.submit(ours)
    other.submit(theirs)
    waiting = [RequestSpec(loop.time()) for _ in range(4)]
    for exchange in waiting:
        mine.submit(exchange)
    assert not any(exchange.node for exchange in waiting)
    looks: list[int] = []
    others: Any = mine._others
    loads = others._loads
    changes = loads.changes
    loads.changes = lambda: (looks.append(sum(e.node is not None for e in waiting)), changes())[1]
    for decider, exchange in ((other, theirs), (mine, ours)):
        exchange.attempts[-1].ended_s, exchange.response_status = loop.time(), 200
        decider.done((exchange,))
    assert sum(exchange.node is not None for exchange in waiting) == 2
    started = [*looks, 2]
    assert max(b - a for a, b in itertools.pairwise(started)) == 1  # a look before each start
    _close([mine, other])


def _close(deciders: list[Decider]) -> None:
    for decider in deciders:
        decider.close()
        decider.fleet.close()
