"""What tenants use, told to whoever adds it up."""

from __future__ import annotations

from typing import Protocol

from trimtab.runtime.gateway.model import Attempt, Exchange, Usage


class Usages(Protocol):
    """Who adds up what tenants use."""

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        """One more request that was served."""


class UsageObserver:
    """Books what tenants have used."""

    def __init__(self, book: Usages) -> None:
        self._book = book

    def arrived(self, exchange: Exchange) -> None:
        """Nothing yet."""

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """Nothing yet."""

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """What is lost is not booked."""

    def ended(self, exchange: Exchange) -> None:
        """Book a request that a node has served; an error is no service, nor is a client that left before."""
        tenant, attempts = exchange.tenant, exchange.attempts
        if tenant is None or not attempts or not 0 < exchange.response_status < 400:
            return
        usage, last = exchange.usage or Usage(), attempts[-1]
        service_s = max(0.0, (last.ended_s or last.begun_s) - last.begun_s)
        model = exchange.facts.model if exchange.facts is not None else ""
        self._book.add(tenant.name, model, usage.prompt_tokens, usage.completion_tokens, service_s)
