"""A dispatcher over nodes whose reports and measurements a test makes up, in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from support.gateway.virtual import run_virtual
from trimtab.domain.cluster import ResourceName
from trimtab.gateway.decide.dispatch_rules import Declared, DispatchRules, policy_choice
from trimtab.gateway.decide.dispatcher import REFRESH_S, SETTLE_S, PolicyDispatcher
from trimtab.gateway.model import Attempt, Endpoint, Exchange, Facts, Kind, Node, Refusal, Tenant
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_spec import NodeSpec

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

    def __init__(self, model: str = "m", tenant: Tenant = TENANT, body_bytes: int = 0, **facts: Any) -> None:
        super().__init__()
        self.endpoint, self.tenant, self._body_bytes = CHAT, tenant, body_bytes
        self.facts = Facts(model, prompt_tokens=100.0, max_tokens=10.0, **facts)
        self.response_status = 200

    @property
    def body_bytes(self) -> int:
        return self._body_bytes

    @property
    def node(self) -> str:
        """The last node; "" = none yet."""
        return self.attempts[-1].node.name if self.attempts else ""

    def start(self, node: Node) -> None:
        self.attempts.append(Attempt(node, 1.0))

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


class SignalBench:
    """Equal nodes n0, n1, … unless told otherwise: `nodes` are the fields of each one's entry."""

    def __init__(
        self,
        policy: str,
        *nodes: Mapping[str, Any],
        declared: Declared | None = None,
        utc_s: Callable[[], float] = time.time,
        **rules: Any,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.fleet = Fleet(self.loop)
        for k, fields in enumerate(nodes or ({}, {})):
            entry = {"models": ("m",), "max_requests": 8, "type_name": "same", **fields}
            self.fleet.add(NodeSpec(f"n{k}", f"http://n{k}:1", **entry))
        self.dispatcher = PolicyDispatcher(
            self.loop,
            self.fleet,
            DispatchRules(policy_choice(policy), declared=declared or Declared(), **rules),
            inline_plans=True,
            mode="interpreted",
            utc_s=utc_s,
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

    def view(self) -> Any:
        """What the only policy sees."""
        self.dispatcher.catch_up()
        (pool,) = self.dispatcher.pools.values()
        return pool.live.view()


def on_bench(test: Callable[[SignalBench], Awaitable[None]], *how: Any, **options: Any) -> None:
    """Run a test on a bench in virtual time."""

    async def main() -> None:
        bench = SignalBench(*how, **options)
        await bench.dispatcher.open()
        try:
            await test(bench)
        finally:
            bench.dispatcher.close()
            bench.fleet.close()

    run_virtual(main())
