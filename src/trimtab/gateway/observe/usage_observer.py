"""What tenants use, told to whoever adds it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from trimtab.gateway.model import Exchange, Observer, Usage


class Usages(Protocol):
    """Who adds up what tenants use."""

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        """One more request that was served."""


class UsageObserver(Observer):
    """Books what tenants have used."""

    def __init__(self, book: Usages) -> None:
        self._book = book

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """MetricStore what a node has served; an error is no service, nor is a client that left before."""
        add = self._book.add
        for exchange in exchanges:
            tenant, attempts = exchange.tenant, exchange.attempts
            if tenant is None or not attempts or not 0 < exchange.response_status < 400:
                continue
            usage, last, facts = exchange.usage or _NONE, attempts[-1], exchange.facts
            service_s = last.ended_s - last.begun_s
            model = facts.model if facts is not None else ""
            add(
                tenant.name,
                model,
                usage.prompt_tokens,
                usage.completion_tokens,
                service_s if service_s > 0.0 else 0.0,  # it may have no end
            )


_NONE: Final = Usage()
