"""A dispatcher on its own in virtual time: exchanges note what becomes of them, tests make up reports."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import Signature, signature
from typing import Any

from support.gateway.virtual import run_virtual
from trimtab.domain.cluster import ResourceName
from trimtab.gateway.decide.dispatch_rules import DispatchRules, PolicyChoice, policy_choice
from trimtab.gateway.decide.dispatcher import REFRESH_S, SETTLE_S, PolicyDispatcher
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.model import Attempt, Endpoint, Exchange, Facts, Kind, Node, Refusal, Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import NodeSpec

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT, replayable=True)
EMBEDDING = Endpoint("/v1/embeddings", ("POST",), Kind.EMBEDDING, replayable=True)
TENANT = Tenant("t", 0)
MACHINE: Mapping[ResourceName, float] = {
    "cpu_cores": 16.0,
    "ram_gib": 64.0,
    "io_gib_per_s": 1.0,
    "network_gib_per_s": 1.0,
    "gpu_milli": 1000.0,
    "gpu_gib": 80.0,
}


def busy(frac: float) -> dict[str, float]:
    """A report of a machine with this share of everything in use."""
    return {
        "cpu_busy_frac": frac,
        "memory_used_frac": frac,
        "disk_busy_frac": frac,
        "net_receive_bytes_per_s": frac * 2.0**30,
        "gpu_busy_frac": frac,
        "gpu_memory_used_frac": frac,
    }


class Asked(Exchange):
    """Notes where it was started, and its refusal."""

    def __init__(
        self, model: str = "m", tenant: Tenant = TENANT, body_bytes: int = 0, route: str = "", **facts: Any
    ) -> None:
        super().__init__()
        self.endpoint, self.tenant, self.route, self._body_bytes = CHAT, tenant, route, body_bytes
        self.facts = Facts(model, prompt_tokens=100.0, max_tokens=10.0, **facts)
        self.response_status, self.response_id = 200, ""

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    @property
    def nodes(self) -> list[str]:
        """Each node that it was sent to."""
        return [attempt.node.name for attempt in self.attempts]

    @property
    def node(self) -> str:
        """The last node; "" = none yet."""
        return self.nodes[-1] if self.attempts else ""

    def start(self, node: Node) -> None:
        self.attempts.append(Attempt(node, 1.0))

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Bench:
    """Nodes n0, n1, …: `entries` are the fields of each; without them, `nodes` equal ones."""

    def __init__(
        self,
        policy: str = "least-connections",
        *entries: Mapping[str, Any],
        slots: int = 8,
        nodes: int = 2,
        type_name: str = "same",
        utc_s: Callable[[], float] = time.time,
        tenants: int = 1,
        **rules: Any,
    ) -> None:
        self.loop, self._utc_s, self._tenants = asyncio.get_running_loop(), utc_s, tenants
        self.fleet = Fleet(self.loop)
        for k, fields in enumerate(entries or [{}] * nodes):
            entry = {"models": ("m",), "max_requests": slots, "type_name": type_name, **fields}
            self.fleet.add(NodeSpec(f"n{k}", f"http://n{k}:1", **entry))
        self.dispatcher = self.decides(policy_choice(policy), **rules)

    def add(self, name: str, slots: int = 1, models: tuple[str, ...] = ("m",)) -> Node:
        return self.fleet.add(NodeSpec(name, f"http://{name}:1", models, slots))

    def decides(self, choice: PolicyChoice, **rules: Any) -> PolicyDispatcher:
        return PolicyDispatcher(
            self.loop,
            self.fleet,
            DispatchRules(choice, **rules),
            tenants=self._tenants,
            inline_plans=True,
            mode="interpreted",
            utc_s=self._utc_s,
        )

    async def report(self, node_idx: int, values: Mapping[str, float], source: str = "machine") -> None:
        """A page of a node was read; returns when policies see it."""
        node = self.fleet.nodes[node_idx]
        node.reported |= values
        self.fleet.reports(node, source, values)
        await asyncio.sleep(REFRESH_S + 1e-3)

    async def settle(self) -> None:
        """Wait until new capacities are known."""
        await asyncio.sleep(SETTLE_S + REFRESH_S)

    def submit(self, asked: Asked | None = None) -> Asked:
        asked = asked or Asked()
        asked.arrived_s = self.loop.time()
        self.dispatcher.submit(asked)
        self.dispatcher.decide()
        return asked

    def done(self, asked: Asked, seconds: float = 1.0) -> None:
        asked.attempts[-1].ended_s = asked.attempts[-1].begun_s + seconds
        self.dispatcher.done((asked,))

    def one_by_one(self, count: int, **asked: Any) -> Counter[str]:
        """Where requests go of which each ends before the next comes."""
        found: Counter[str] = Counter()
        for _ in range(count):
            exchange = self.submit(Asked(**asked))
            found[exchange.node] += 1
            if exchange.node:
                self.done(exchange)
        return found

    def in_flight(self) -> dict[str, int]:
        """As the fleet counts them; every pool must agree."""
        self.dispatcher.catch_up()
        counts = {node.name: node.in_flight for node in self.fleet.nodes}
        for pool in self.dispatcher.pools.values():
            assert list(pool.live.nodes.in_flight) == list(counts.values())
        return counts

    @property
    def pool(self) -> PolicyPool:
        """The only pool."""
        (pool,) = self.dispatcher.pools.values()
        return pool

    def view(self) -> Any:
        """What the only policy sees."""
        self.dispatcher.catch_up()
        return self.pool.live.view()

    def close(self) -> None:
        self.dispatcher.close()
        self.fleet.close()


def on_bench(test: Callable[[Bench], Awaitable[None]], *how: Any, **options: Any) -> None:
    """Run a test on a bench in virtual time."""

    async def main() -> None:
        bench = Bench(*how, **options)
        await bench.dispatcher.open()
        try:
            await test(bench)
        finally:
            bench.close()

    run_virtual(main())


def benched(*how: Any, **options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a coroutine a test on such a bench, its first argument; the others are pytest's."""

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(**given: Any) -> None:
            on_bench(lambda bench: test(bench, **given), *how, **options)

        run.__signature__ = Signature([*signature(test).parameters.values()][1:])  # type: ignore[attr-defined]
        return run

    return decorated
