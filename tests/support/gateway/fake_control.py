"""A gateway that only pretends: real counting of made-up traffic, for the admin port's tests."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from support.decisions import make_decision
from trimtab.errors import UsageError
from trimtab.gateway.admin.control import Status
from trimtab.gateway.config.keys import run_time_key
from trimtab.gateway.model import (
    Attempt,
    Cause,
    Endpoint,
    Exchange,
    Facts,
    Health,
    Kind,
    Node,
    Outcome,
    Refusal,
    Tenant,
    Usage,
)
from trimtab.gateway.observe.decision_records import DecisionRecords
from trimtab.gateway.observe.exposition import exposition
from trimtab.gateway.observe.metrics import Metrics, Sources
from trimtab.gateway.observe.status import NodeFigures, node_figures, observed
from trimtab.jobs import StoreUnavailable

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT, replayable=True)
IMAGE = Endpoint("/v1/images/generations", ("POST",), Kind.IMAGE, replayable=True)
MODELS = ("llama-3.3-70b", "qwen3-32b", "flux-dev")


def make_node(idx: int, name: str, models: tuple[str, ...] = MODELS[:1], capacity: int = 16) -> Node:
    return Node(name, f"http://127.0.0.1:{9000 + idx}", idx, "127.0.0.1", 9000 + idx, False, models, capacity)


class FakeControl:
    """Ten minutes of traffic pass when it is made (`lived_s`); each status adds a second."""

    def __init__(self, nodes: int = 8, lived_s: int = 120) -> None:
        self.random = random.Random(7)
        self.now_s = 10_000.0
        self.node_list = [self._node(i) for i in range(nodes)]
        self.queue = self.shadow_decisions = self.shadow_differs = 0
        shadow = lambda: (self.shadow_decisions, self.shadow_differs)  # noqa: E731
        self.metrics_ = Metrics(
            lambda: self.now_s,
            Sources(lambda: self.node_list, lambda: self.queue, self._jobs, shadow=shadow),
        )
        self.metrics_.know_models(MODELS)
        self.decision_records = DecisionRecords(lambda: self.now_s)
        self.tenants = [
            Tenant(name, i) for i, name in enumerate(("search", "assistant", "batch-eval", "design"))
        ]
        self.serial = 0
        self.reloads = 0
        self.made_keys: list[dict[str, Any]] = []
        self.candidates: dict[str, Any] | None = None  # as ActiveCandidate.summary gives them
        for _ in range(lived_s):
            self.live_a_second()

    def _node(self, i: int) -> Node:
        node = make_node(i, f"gpu-{i:02d}", (MODELS[i % 3],) if i % 4 else MODELS[:2], (8, 16, 32)[i % 3])
        node.reported = {
            "waiting": float(i % 3),
            "cpu_busy_frac": 0.2 + 0.05 * (i % 5),
            "kv_used_frac": 0.3 + 0.06 * (i % 9),
        }
        if i % 17 == 5:
            node.health, node.reason = Health.SUSPECT, "health check timed out once"
        if i % 29 == 6:
            node.health, node.reason = Health.DOWN, "connection refused"
        return node

    def _jobs(self) -> dict[str, int]:
        return {"queued": 3, "dispatched": 2, "done": 41, "failed": 1}

    def live_a_second(self) -> None:
        wave = 1.0 + 0.35 * math.sin(self.now_s / 17.0) + 0.2 * self.random.random()
        self.queue = max(0, int(18 * (wave - 1.15)))
        for node in self.node_list:
            share = min(1.0, wave * (0.35 + 0.11 * (node.idx % 5)) + 0.1 * self.random.random())
            node.in_flight = int(share * node.max_requests) if node.health <= Health.SUSPECT else 0
            node.last_byte_s = self.now_s - 0.3 * self.random.random()
        for _ in range(4):
            self.now_s += 0.25
            self.metrics_.tick()
        for _ in range(int(42 * wave)):
            self.end_one(wave)

    def end_one(self, wave: float = 1.0) -> Exchange:
        pick, self.serial = self.random, self.serial + 1
        up = [node for node in self.node_list if node.health <= Health.SUSPECT]
        node = pick.choice(up)
        exchange = Exchange()
        exchange.id = f"req-{self.serial}"
        exchange.method, exchange.path, exchange.endpoint = "POST", CHAT.path, CHAT
        exchange.facts, exchange.tenant = (
            Facts(pick.choice(MODELS[:2])),
            pick.choice(self.tenants[: pick.randint(1, 4)]),
        )
        service_s = pick.lognormvariate(-0.3, 0.45) * wave
        exchange.arrived_s = self.now_s - service_s - 0.02 * wave
        exchange.started_s = exchange.arrived_s + 0.004 * pick.random() + (0.1 if self.queue else 0.0)
        exchange.estimate_s = service_s * pick.uniform(0.8, 1.15)
        exchange.usage = Usage(pick.randint(50, 900), pick.randint(20, 400), 30)
        names = tuple(one.name for one in pick.sample(up, min(3, len(up))) if one is not node)
        predicted_s = tuple(exchange.estimate_s * (1 + 0.2 * i) for i in range(1 + len(names)))
        in_flight = tuple(range(1 + len(names)))
        exchange.decision = make_decision("least-expected-wait", (node.name, *names), predicted_s, in_flight)
        if pick.random() < 0.02:
            lost = Attempt(
                pick.choice(up), exchange.started_s, cause=pick.choice((Cause.CONNECT, Cause.BUSY))
            )
            exchange.attempts.append(lost)
            self.metrics_.lost(exchange, lost)
            lost.node.failed += 1
        first_s = exchange.started_s + service_s * 0.2
        attempt = Attempt(
            node, exchange.started_s, exchange.started_s, first_s, first_s, self.now_s, status=200
        )
        exchange.attempts.append(attempt)
        exchange.response_status, exchange.outcome = 200, Outcome.DONE
        exchange.response_bytes, exchange.streamed_chunks = 2048, 64
        exchange.ended_s = self.now_s
        self.metrics_.started(exchange, attempt)
        node.served += 1
        if pick.random() < 0.01:
            exchange.refusal, exchange.outcome = Refusal(429, "rate_limit", "too many"), Outcome.REFUSED
        self.decision_records.arrived(exchange)
        self.decision_records.ended([exchange])
        self.metrics_.ended([exchange])
        self.shadow_decisions += 1
        self.shadow_differs += pick.random() <= 0.18
        return exchange

    async def nodes(self) -> list[NodeFigures]:
        return node_figures(self.metrics_.store(), self.node_list, self.now_s)

    async def add_node(self, spec: dict[str, Any]) -> NodeFigures:
        if "url" not in spec:
            raise UsageError("a node needs an address", field="nodes[0].url", expected="http://HOST:PORT")
        self.node_list.append(make_node(len(self.node_list), spec["name"]))
        return (await self.nodes())[-1]

    def _find(self, name: str) -> Node | None:
        return next((node for node in self.node_list if node.name == name), None)

    async def drain(self, name: str) -> bool:
        node = self._find(name)
        if node is not None:
            node.health = Health.DRAINING
        return node is not None

    async def undrain(self, name: str) -> bool:
        node = self._find(name)
        if node is not None:
            node.health = Health.UP
        return node is not None

    async def remove(self, name: str) -> bool:
        node = self._find(name)
        if node is not None:
            self.node_list.remove(node)
        return node is not None

    def keys(self) -> list[dict[str, Any]]:
        return self.made_keys

    async def make_key(self, spec: dict[str, Any]) -> dict[str, Any]:
        made = run_time_key(spec).model_dump(include={"name"})
        self.made_keys.append(made)
        return made | {"key": "tt-new"}

    async def revoke_key(self, name: str) -> bool:
        before = len(self.made_keys)
        self.made_keys = [key for key in self.made_keys if key["name"] != name]
        return len(self.made_keys) < before

    def node_changes(self) -> list[dict[str, Any]]:
        return []

    async def reload(self) -> dict[str, Any]:
        self.reloads += 1
        return {"changed": ["limits"]}

    async def receipt(self, request_id: str) -> dict[str, Any] | None:
        return self.decision_records.find(request_id)

    async def usage(self, tenant: str | None) -> list[dict[str, Any]]:
        if tenant == "gone":
            raise StoreUnavailable("no answer from the database")
        return [{"tenant": tenant or "search", "model": MODELS[0], "requests": 3}]

    async def status(self) -> Status:
        self.live_a_second()
        store = self.metrics_.store()
        seen: Any = observed(store)
        for tenant in seen["tenants"]:
            tenant["in_flight"] = self.random.randint(0, 9)
        return Status(
            version="0.1.0",
            started_at=time.time() - 7380,
            listen="http://127.0.0.1:8080",
            ready=True,
            draining=False,
            nodes=node_figures(store, self.node_list, self.now_s),
            queue={"length": self.queue, "most": 256, "oldest_s": 0.4 if self.queue else None},
            policy={
                "name": "least-expected-wait",
                "decisions": self.serial,
                "failures": 0,
                "decision_us": 2.8,
                "candidates": self.candidates,
            },
            shadow={
                "name": "join-idle-queue",
                "disagreement_frac": 0.182,
                "predicted_difference_frac": 0.031,
            },
            jobs=self._jobs(),
            notes=["gpu-06 is down: connection refused"] if len(self.node_list) > 6 else [],
            **seen,
        )

    async def metrics(self) -> bytes:
        return exposition(self.metrics_.store())
