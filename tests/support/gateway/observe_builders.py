"""Exchanges that ended, made by hand."""

from __future__ import annotations

from typing import Any

from trimtab.gateway.model import Attempt, Endpoint, Exchange, Facts, Kind, Node, Outcome, Tenant

CHAT = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT, replayable=True)


def make_node(name: str = "a", capacity: int = 4) -> Node:
    return Node(name, f"http://127.0.0.1:9000/{name}", 0, "127.0.0.1", 9000, False, ("llama",), capacity)


def make_exchange(
    node: Node | None = None, model: str = "llama", tenant: str | None = "t", **changes: Any
) -> Exchange:
    """Arrived at 100 s, sent at 100.5, first byte at 101, over at 102.5: two seconds of service."""
    exchange = Exchange()
    exchange.id, exchange.method, exchange.path, exchange.endpoint = "r-1", "POST", CHAT.path, CHAT
    exchange.facts, exchange.tenant = Facts(model), Tenant(tenant, 0) if tenant else None
    exchange.arrived_s, exchange.started_s = 100.0, 100.5
    exchange.attempts = [Attempt(node or make_node(), 100.5, 100.6, 100.9, 101.0, 102.5, status=200)]
    exchange.ended_s, exchange.outcome, exchange.response_status = 102.5, Outcome.DONE, 200
    for name, value in changes.items():
        setattr(exchange, name, value)
    return exchange
