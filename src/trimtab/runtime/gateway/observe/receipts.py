"""Why a request went where it went: the last decisions, in bounded memory, for `GET /admin/requests/ID`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trimtab.runtime.gateway.model import Attempt, Exchange

KEPT: Final = 4096


@dataclass(slots=True)
class Receipt:
    """What the dispatcher knew and decided, of the latest decision about a request: `exchange.decision`.

    `candidates`, `estimates_s` and `scores` go together, best first; the last two may be empty.
    """

    policy: str
    candidates: tuple[str, ...] = ()  # names of nodes: positions may be used again after a reload
    estimates_s: tuple[float, ...] = ()  # predicted service time there
    scores: tuple[float, ...] = ()  # what the policy ranked by, where it says
    queue_length: int = 0  # requests held when it was decided
    decisions: int = 1  # offers until it was accepted
    fallback: bool = False  # the policy failed: least connections decided
    shadow: str = ""  # the shadow policy's first choice; "" = it was not asked


@dataclass(slots=True)
class _Kept:
    """A request that ended: all but its body and its facts' text."""

    id: str
    path: str
    model: str
    tenant: str
    priority: int
    arrived_s: float
    started_s: float
    ended_s: float
    estimate_s: float
    units: float
    outcome: str | None
    status: int
    refusal: str | None
    decision: Any
    attempts: list[Attempt]


class Receipts:
    """An Observer that remembers the last requests, and those under way. `clock` is the event loop's."""

    def __init__(self, clock: Callable[[], float], kept: int = KEPT) -> None:
        self._clock = clock
        self._most = kept
        self._order: deque[_Kept] = deque()
        self._ended: dict[str, _Kept] = {}
        self._under_way: dict[str, Exchange] = {}

    def arrived(self, exchange: Exchange) -> None:
        """It can be asked for from now on."""
        self._under_way[exchange.id] = exchange

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """Nothing: the exchange holds its attempts."""

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """Nothing: the exchange holds its attempts."""

    def ended(self, exchange: Exchange) -> None:
        """Keep what matters of it, and forget the oldest."""
        if self._under_way.get(exchange.id) is exchange:
            del self._under_way[exchange.id]
        kept = _keep(exchange, self._clock())
        self._ended[kept.id] = kept
        self._order.append(kept)
        if len(self._order) > self._most:
            oldest = self._order.popleft()
            if self._ended.get(oldest.id) is oldest:  # else a later request of the same id stands there
                del self._ended[oldest.id]

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The receipt as JSON may hold it; None = unknown, or too long ago."""
        exchange = self._under_way.get(request_id)
        kept = _keep(exchange, self._clock()) if exchange is not None else self._ended.get(request_id)
        return None if kept is None else _receipt(kept, under_way=exchange is not None)


def _keep(exchange: Exchange, now_s: float) -> _Kept:
    facts, tenant, refusal = exchange.facts, exchange.tenant, exchange.refusal
    return _Kept(
        exchange.id,
        exchange.path,
        facts.model if facts is not None else "",
        tenant.name if tenant is not None else "",
        exchange.priority,
        exchange.arrived_s,
        exchange.started_s,
        now_s,
        exchange.estimate_s,
        exchange.units,
        exchange.outcome._value_ if exchange.outcome is not None else None,
        exchange.response_status if refusal is None else refusal.status,
        None if refusal is None else refusal.code,
        exchange.decision,
        exchange.attempts,
    )


def _receipt(kept: _Kept, *, under_way: bool) -> dict[str, Any]:
    attempts = kept.attempts
    return {
        "id": kept.id,
        "path": kept.path.partition("?")[0],
        "model": kept.model,
        "tenant": kept.tenant,
        "priority": kept.priority,
        "state": "under way" if under_way else kept.outcome,
        "status": kept.status or None,
        "refusal": kept.refusal,
        "node": attempts[-1].node.name if attempts else None,
        "decision": _decision(kept.decision),
        "wait_s": _positive(kept.started_s - kept.arrived_s) if attempts else None,
        "units": kept.units,
        "predicted_s": kept.estimate_s or None,
        "actual_s": None if under_way or not attempts else _positive(kept.ended_s - attempts[-1].begun_s),
        "total_s": _positive(kept.ended_s - kept.arrived_s) if kept.arrived_s else None,
        "retries": sum(not attempt.hedge for attempt in attempts[1:]),
        "attempts": [_attempt(attempt, kept.arrived_s) for attempt in attempts],
    }


def _decision(decision: Any) -> dict[str, Any] | None:
    if not isinstance(decision, Receipt):
        return None
    candidates = [
        {
            "node": name,
            "estimate_s": decision.estimates_s[i] if i < len(decision.estimates_s) else None,
            "score": decision.scores[i] if i < len(decision.scores) else None,
        }
        for i, name in enumerate(decision.candidates)
    ]
    return {
        "policy": decision.policy,
        "candidates": candidates,
        "queue_length": decision.queue_length,
        "decisions": decision.decisions,
        "fallback": decision.fallback,
        "shadow": decision.shadow or None,
    }


def _attempt(attempt: Attempt, arrived_s: float) -> dict[str, Any]:
    def since(at_s: float) -> float | None:
        return _positive(at_s - arrived_s) if at_s > 0.0 else None

    return {
        "node": attempt.node.name,
        "begun_s": since(attempt.begun_s),
        "sent_s": since(attempt.sent_s),
        "head_s": since(attempt.head_s),
        "first_byte_s": since(attempt.first_byte_s),
        "ended_s": since(attempt.ended_s),
        "status": attempt.status or None,
        "lost_by": attempt.cause.value if attempt.cause is not None else None,
        "hedge": attempt.hedge,
    }


def _positive(duration_s: float) -> float:
    return max(0.0, duration_s)
