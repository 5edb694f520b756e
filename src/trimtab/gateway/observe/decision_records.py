"""Records of the latest decisions, in bounded memory, for `GET /admin/requests/ID`.

An ended request is kept as one bytes object. Thousands of requests with many objects each would displace the
objects of new requests from the processor's caches.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from trimtab.gateway.api.units import BLOCK_TOKENS
from trimtab.gateway.decide.decision_log import Decision
from trimtab.gateway.model import Exchange, Observer

KEPT: Final = 4096


class _Kept(NamedTuple):
    """The kept values of a request."""

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
    state: str | None
    status: int
    refusal: str | None
    decision: tuple[str, bytes, Mapping[int, int], bool] | None  # a Decision without the nodes
    attempts: list[tuple[Any, ...]]  # the fields of `_Try`


class _Try(NamedTuple):
    """The kept values of an attempt."""

    node: str
    begun_s: float
    sent_s: float
    head_s: float
    first_byte_s: float
    ended_s: float
    status: int
    lost_by: str | None
    hedge: bool


class DecisionRecords(Observer):
    """Keeps the open requests and the latest ended ones. `clock` is the event loop's."""

    sees_inner = True

    def __init__(self, clock: Callable[[], float], kept: int = KEPT) -> None:
        self._clock = clock
        self._ended: deque[tuple[_Names, bytes]] = deque(maxlen=kept)  # searched on demand: events stay cheap
        self._under_way: dict[Exchange, None] = {}  # in order of arrival

    def arrived(self, exchange: Exchange) -> None:
        """An Observer method."""
        self._under_way[exchange] = None

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """An Observer method: keep the records, drop the oldest."""
        forget, keep = self._under_way.pop, self._ended.append
        for exchange in exchanges:
            forget(exchange, None)
            keep((_names_of(exchange), pickle.dumps(_kept_of(exchange), _PROTOCOL)))

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The record as plain data for JSON; None = unknown, or too old."""
        for exchange in reversed(self._under_way):
            if exchange.id == request_id:
                kept = _Kept(*_kept_of(exchange))._replace(ended_s=self._clock(), state="under way")
                return _record(kept, _names_of(exchange), under_way=True)
        wanted = request_id.encode(errors="surrogatepass")
        for names, packed in reversed(self._ended):
            if wanted in packed:  # a first filter: the id may be part of another one
                kept = _Kept(*pickle.loads(packed))
                if kept.id == request_id:
                    return _record(kept, names, under_way=False)
        return None


_PROTOCOL: Final = pickle.HIGHEST_PROTOCOL  # a global is faster than an attribute
_Names = tuple[str, ...]


def _names_of(exchange: Exchange) -> _Names:
    decision = exchange.decision
    return () if decision is None else decision.nodes  # shared by all records


def _kept_of(exchange: Exchange) -> tuple[Any, ...]:
    """The values in the order of `_Kept`. `_value_` is faster: `value` is a Python property."""
    facts, tenant, refusal, outcome = exchange.facts, exchange.tenant, exchange.refusal, exchange.outcome
    decision: Decision | None = exchange.decision
    return (
        exchange.id,
        exchange.path,
        "" if facts is None else facts.model,
        "" if tenant is None else tenant.name,
        exchange.priority,
        exchange.arrived_s,
        exchange.started_s,
        exchange.ended_s,
        exchange.estimate_s,
        exchange.units,
        None if outcome is None else outcome._value_,
        exchange.response_status if refusal is None else refusal.status,
        None if refusal is None else refusal.code,
        None if decision is None else (decision.policy, decision.packed, decision.matched, decision.fallback),
        [
            (
                attempt.node.name,
                attempt.begun_s,
                attempt.sent_s,
                attempt.head_s,
                attempt.first_byte_s,
                attempt.ended_s,
                attempt.status,
                None if attempt.cause is None else attempt.cause._value_,
                attempt.hedge,
            )
            for attempt in exchange.attempts
        ],
    )


def _record(kept: _Kept, names: _Names, *, under_way: bool) -> dict[str, Any]:
    attempts = [_Try(*one) for one in kept.attempts]
    return {
        "id": kept.id,
        "path": kept.path.partition("?")[0],
        "model": kept.model,
        "tenant": kept.tenant,
        "priority": kept.priority,
        "state": kept.state,
        "status": kept.status or None,
        "refusal": kept.refusal,
        "node": attempts[-1].node if attempts else None,
        "decision": None if kept.decision is None else _decision(kept.decision, names),
        "wait_s": _positive(kept.started_s - kept.arrived_s) if attempts else None,
        "units": kept.units,
        "predicted_s": kept.estimate_s or None,
        "actual_s": None if under_way or not attempts else _positive(kept.ended_s - attempts[-1].begun_s),
        "total_s": _positive(kept.ended_s - kept.arrived_s) if kept.arrived_s else None,
        "retries": max(0, sum(not attempt.hedge for attempt in attempts) - 1),
        "attempts": [_attempt(attempt, kept.arrived_s) for attempt in attempts],
    }


def _decision(kept: tuple[str, bytes, Mapping[int, int], bool], names: _Names) -> dict[str, Any]:
    policy, packed, matched, fallback = kept
    decision = Decision(policy, names, packed, matched, fallback)
    record = decision.record
    candidates = [
        {
            "node": names[j],
            "scores": {
                "predicted_s": float(record["predicted_s"][i]),
                "in_flight": int(record["in_flight"][i]),
                "prefix_tokens": BLOCK_TOKENS * matched.get(j, 0),
            },
        }
        for i, j in enumerate(decision.node_idx)
    ]
    return {
        "policy": policy,
        "candidates": candidates,
        "queue_length": int(record["n_held"]),
        "decisions": int(record["decisions"]),
        "fallback": fallback,
        "shadow": names[record["shadow_idx"]] if record["shadow_idx"] >= 0 else None,
    }


def _attempt(attempt: _Try, arrived_s: float) -> dict[str, Any]:
    def since(at_s: float) -> float | None:
        return _positive(at_s - arrived_s) if at_s > 0.0 else None

    return {
        "node": attempt.node,
        "begun_s": since(attempt.begun_s),
        "sent_s": since(attempt.sent_s),
        "head_s": since(attempt.head_s),
        "first_byte_s": since(attempt.first_byte_s),
        "ended_s": since(attempt.ended_s),
        "status": attempt.status or None,
        "lost_by": attempt.lost_by,
        "hedge": attempt.hedge,
    }


def _positive(duration_s: float) -> float:
    return max(0.0, duration_s)
