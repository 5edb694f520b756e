"""Reports the tenants' usage to the usage book, and says which answers cannot be counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from trimtab.gateway.model import Exchange, Kind, Observer, Outcome, Usage

logger = logging.getLogger(__name__)

# Kinds of answers that are paid by the token.
_COUNTED: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.RESPONSE, Kind.MESSAGES, Kind.EMBEDDING))
_MOST_TOLD: Final = 1_000


def uncounted_reason(exchange: Exchange) -> str:
    """Why an answer of a node has no count of tokens; "" = it has one, or needs none."""
    endpoint = exchange.endpoint
    is_counted = exchange.usage is not None or endpoint is None or endpoint.kind not in _COUNTED
    if is_counted or exchange.method != "POST" or not 0 < exchange.response_status < 400:
        return ""
    if not exchange.attempts:
        return ""
    if exchange.unread_coding:
        return "coding"
    return "not_reported" if exchange.outcome is Outcome.DONE else "broken_off"


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
        self._told: set[tuple[str, str]] = set()  # nodes and reasons that the log has

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Report requests that a node served. Errors, and clients that left before, do not count."""
        add = self._book.add
        for exchange in exchanges:
            tenant, usage, facts = exchange.tenant, exchange.usage, exchange.facts
            if tenant is None or not 0 < exchange.response_status < 400:
                continue
            if usage is None:
                if not exchange.attempts:  # answered from the result cache, or by the gateway itself
                    continue
                self._tell_uncounted(exchange)
                usage = _NONE
            model = facts.model if facts is not None else ""
            service_s = _service_s(exchange)
            add(tenant.name, model, usage.prompt_tokens, usage.completion_tokens, service_s)

    def _tell_uncounted(self, exchange: Exchange) -> None:
        """Once for each node and reason; the metric counts every answer."""
        reason, node = uncounted_reason(exchange), exchange.attempts[-1].node.name
        why = {
            "coding": f"their content coding, {exchange.unread_coding[:40]}, cannot be read",
            "not_reported": "they have no usage",
        }.get(reason)
        if why is not None and (node, reason) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((node, reason))
            logger.warning("node %s: tokens of some answers are not counted: %s", node, why)


_NONE: Final = Usage()


def _service_s(exchange: Exchange) -> float:
    """How long a node, or the nodes of its parts or its batch, worked on it."""
    attempts = exchange.attempts
    begun_s, ended_s = (
        (attempts[-1].begun_s, attempts[-1].ended_s) if attempts else (exchange.started_s, exchange.ended_s)
    )
    return max(ended_s - begun_s, 0.0)  # an attempt may have no end time
