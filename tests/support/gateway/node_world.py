"""What the tests of nodes share: a loop whose time jumps, made-up attempts, a backend on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from support.gateway.app_backend import AppBackend
from trimtab.clusters import simulated_workers
from trimtab.gateway.model import Attempt, Cause, Exchange, Facts, Node, Outcome, Tenant
from trimtab.gateway.nodes.fleet import Fleet, FleetListener, FleetOptions
from trimtab.gateway.nodes.health_manager import HealthManager, HealthManagerOptions
from trimtab.gateway.nodes.health_rule import AttemptEvents
from trimtab.gateway.nodes.node_state import NodeSpec


class VirtualLoop(simulated_workers.VirtualLoop):
    """It begins at 1000 s: a time of 0 means never."""

    def time(self) -> float:
        return 1000.0 + super().time()

    def stand_still(self, seconds: float) -> None:
        """Time passes, and nothing that is due is called."""
        self._leap(seconds)


def spec(name: str = "a", **fields: Any) -> NodeSpec:
    return NodeSpec(name, fields.pop("url", "http://127.0.0.1:9"), **fields)


def fleet_of(n: int, options: FleetOptions | None = None, **fields: Any) -> Fleet:
    fleet = Fleet(asyncio.get_running_loop(), options)
    for i in range(n):
        fleet.add(spec(f"n{i}", **fields))
    return fleet


class Heard(FleetListener):
    """A listener that writes everything down."""

    def __init__(self, fleet: Fleet) -> None:
        self.events: list[tuple[str, str]] = []
        fleet.listeners.append(self)

    def on_added(self, node: Node) -> None:
        self.events.append(("added", node.name))

    def on_removed(self, node: Node) -> None:
        self.events.append(("removed", node.name))

    def on_switch(self, node: Node) -> None:
        self.events.append(("switch", node.name))

    def on_models(self, node: Node) -> None:
        self.events.append(("models", node.name))

    def on_adapters(self, node: Node) -> None:
        self.events.append(("adapters", node.name))

    def on_capacity(self, node: Node) -> None:
        self.events.append(("capacity", node.name))


class Moving(Exchange):
    """Notes which of its attempts are asked to move; none does."""

    __slots__ = ("asked",)

    def __init__(self, asked: list[Attempt]) -> None:
        super().__init__()
        self.asked = asked

    def move(self, attempt: Attempt) -> bool:
        self.asked.append(attempt)
        return False


class Traffic:
    """Attempts as the data plane tells of them."""

    def __init__(self, events: AttemptEvents) -> None:
        self.events, self.loop = events, asyncio.get_running_loop()
        self.count = 0

    def begin(
        self,
        node: Node,
        estimate_s: float = 1.0,
        stream: bool = False,
        moves: list[Attempt] | None = None,
        tenant: Tenant | None = None,
    ) -> tuple[Exchange, Attempt]:
        exchange = Exchange() if moves is None else Moving(moves)
        self.count += 1
        exchange.id = f"request-{self.count}"
        exchange.tenant = tenant
        exchange.facts, exchange.estimate_s, exchange.units = Facts("m", stream=stream), estimate_s, 1.0
        now_s = self.loop.time()
        attempt = Attempt(node, begun_s=now_s, sent_s=now_s)
        exchange.attempts.append(attempt)
        node.in_flight += 1
        self.events.started(exchange, attempt)
        return exchange, attempt

    def byte(self, attempt: Attempt) -> None:
        attempt.head_s = attempt.head_s or self.loop.time()
        attempt.first_byte_s = attempt.first_byte_s or self.loop.time()
        attempt.node.last_byte_s = self.loop.time()

    def finish(self, exchange: Exchange, status: int = 200) -> None:
        attempt = exchange.attempts[-1]
        self.byte(attempt)
        attempt.status, attempt.ended_s = status, self.loop.time()
        self._end(exchange, Outcome.DONE)

    def lose(self, exchange: Exchange, cause: Cause, status: int = 0, retry_after_s: float = 0.0) -> None:
        attempt = exchange.attempts[-1]
        attempt.cause, attempt.status, attempt.retry_after_s = cause, status, retry_after_s
        self.events.lost(exchange, attempt)
        self._end(exchange, Outcome.FAILED)

    def abort(self, exchange: Exchange) -> None:
        self._end(exchange, Outcome.CANCELLED)

    def good(self, node: Node, status: int = 200, tenant: Tenant | None = None) -> None:
        self.finish(self.begin(node, tenant=tenant)[0], status)

    def bad(self, node: Node, cause: Cause, tenant: Tenant | None = None, **fields: Any) -> None:
        self.lose(self.begin(node, tenant=tenant)[0], cause, **fields)

    def send_on(self, exchange: Exchange, node: Node) -> None:
        """A further attempt of a request that was lost."""
        now_s = self.loop.time()
        attempt = Attempt(node, begun_s=now_s, sent_s=now_s)
        exchange.attempts.append(attempt)
        self.events.started(exchange, attempt)

    def fail(self, exchange: Exchange, cause: Cause, status: int = 0, retry_after_s: float = 0.0) -> None:
        """The last attempt is lost; the request goes on."""
        attempt = exchange.attempts[-1]
        attempt.cause, attempt.status, attempt.retry_after_s = cause, status, retry_after_s
        attempt.ended_s = self.loop.time()
        self.events.lost(exchange, attempt)

    def _end(self, exchange: Exchange, outcome: Outcome) -> None:
        exchange.outcome = outcome
        exchange.attempts[-1].node.in_flight -= 1
        self.events.ended([exchange])


def watched(
    n: int, options: HealthManagerOptions | None = None, **fields: Any
) -> tuple[HealthManager, Fleet, Traffic]:
    """The health of a fleet of `n` nodes, and attempts that are told to it."""
    manager = HealthManager(fleet_of(n, **fields), options)
    return manager, manager.fleet, Traffic(manager.observer)


class Backend(AppBackend):
    """A server on a free port of 127.0.0.1, whose answers a test may change at any time."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {
            "/health": (200, "ok"),
            "/v1/models": (200, '{"data": [{"id": "m"}]}'),
        }
        self.seen: list[tuple[str, str, str]] = []  # path, Host, Authorization
        self.headers: dict[str, str] = {}
        self.is_silent = False

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [web.route("*", "/{rest:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        headers = request.headers
        self.seen.append((request.path, headers.get("Host", ""), headers.get("Authorization", "")))
        while self.is_silent:
            await asyncio.sleep(0.01)
        status, text = self.answers.get(request.path, (404, ""))
        return web.Response(status=status, text=text, headers=self.headers)
