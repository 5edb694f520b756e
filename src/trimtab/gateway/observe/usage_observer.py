"""Reports the tenants' usage to the usage book."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from trimtab.gateway.model import Exchange, Observer, Usage


class Usages(Protocol):
    """Adds up the tenants' usage."""

    def add(
        self, tenant: str, model: str, prompt_tokens: int, completion_tokens: int, service_s: float
    ) -> None:
        """Add one served request."""


class UsageObserver(Observer):
    """Reports the usage of served requests."""

    def __init__(self, book: Usages) -> None:
        self._book = book

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Report requests that a node served. Errors, and clients that left before, do not count."""
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
                service_s if service_s > 0.0 else 0.0,  # an attempt may have no end time
            )


_NONE: Final = Usage()
