"""Why a request went where it went: the last decisions, in bounded memory, for `GET /admin/requests/ID`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from trimtab.mechanics.verdicts import candidates_of, read
from trimtab.runtime.gateway.api.units import BLOCK_TOKENS
from trimtab.runtime.gateway.model import Attempt, Exchange, Facts, Observer, Outcome, Refusal, Tenant

KEPT: Final = 4096


@dataclass(slots=True)
class Receipt:
    """What the dispatcher knew and decided, of the latest decision about a request.

    The tuples go together, the policy's first choice first; `prefix_tokens` may be empty: none has any.
    """

    policy: str
    candidates: tuple[str, ...] = ()  # names of nodes: positions may be used again after a reload
    predicted_s: tuple[float, ...] = ()  # service time there
    in_flight: tuple[int, ...] = ()  # other requests there
    prefix_tokens: tuple[float, ...] = ()  # of its prompt that the node seems to have in its cache
    queue_length: int = 0  # requests held when it was decided
    decisions: int = 1  # how often it was offered, to be sent first or again
    fallback: bool = False  # the policy failed: least connections decided
    shadow: str = ""  # the shadow policy's first choice; "" = it was not asked


class Decision(NamedTuple):
    """The same as it is noted for every request: `receipt` gives it names when somebody asks."""

    policy: str
    nodes: tuple[str, ...]  # names of all nodes, by position
    numbers: tuple[float, ...]  # as `verdicts.read` takes them
    matched: Mapping[int, int]  # node → blocks of its prompt that it seems to have
    fallback: bool

    @property
    def node_idx(self) -> tuple[int, ...]:
        """The candidates' positions, best first."""
        return candidates_of(self.numbers)

    @property
    def receipt(self) -> Receipt:
        """What it says."""
        told, names, matched = read(self.numbers), self.nodes, self.matched
        return Receipt(
            policy=self.policy,
            candidates=tuple(names[j] for j in told.candidates),
            predicted_s=told.predicted_s,
            in_flight=tuple(map(int, told.in_flight)),
            prefix_tokens=tuple(BLOCK_TOKENS * matched.get(j, 0) for j in told.candidates) if matched else (),
            queue_length=int(told.n_held),
            decisions=int(told.decisions),
            fallback=self.fallback,
            shadow=names[int(told.shadow_idx)] if told.shadow_idx >= 0 else "",
        )


class _Kept(NamedTuple):
    """A request that ended: all but its body."""

    id: str
    path: str
    facts: Facts | None
    tenant: Tenant | None
    priority: int
    arrived_s: float
    started_s: float
    ended_s: float
    estimate_s: float
    units: float
    outcome: Outcome | None
    response_status: int
    refusal: Refusal | None
    decision: Any
    attempts: list[Attempt]


class Receipts(Observer):
    """An Observer that remembers the last requests, and those under way. `clock` is the event loop's."""

    def __init__(self, clock: Callable[[], float], kept: int = KEPT) -> None:
        self._clock = clock
        self._ended: deque[tuple[Any, ...]] = deque(maxlen=kept)  # searched when asked: events are cheap
        self._under_way: dict[Exchange, None] = {}  # in the order of arrival

    def arrived(self, exchange: Exchange) -> None:
        """It can be asked for from now on."""
        self._under_way[exchange] = None

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Keep what matters of them, and forget the oldest."""
        forget = self._under_way.pop
        for exchange in exchanges:
            forget(exchange, None)
        self._ended.extend(map(_kept_of, exchanges))  # named when it is read: plain tuples cost half

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The receipt as JSON may hold it; None = unknown, or too long ago."""
        for exchange in reversed(self._under_way):
            if exchange.id == request_id:
                return _receipt(
                    _Kept._make(_kept_of(exchange))._replace(ended_s=self._clock()), under_way=True
                )
        for kept in reversed(self._ended):
            if kept[0] == request_id:
                return _receipt(_Kept._make(kept), under_way=False)
        return None


_kept_of = attrgetter(*_Kept._fields)


def _receipt(kept: _Kept, *, under_way: bool) -> dict[str, Any]:
    attempts, refusal, outcome = kept.attempts, kept.refusal, kept.outcome
    status = kept.response_status if refusal is None else refusal.status
    if under_way:
        state: str | None = "under way"
    else:
        state = None if outcome is None else outcome.value
    return {
        "id": kept.id,
        "path": kept.path.partition("?")[0],
        "model": "" if kept.facts is None else kept.facts.model,
        "tenant": "" if kept.tenant is None else kept.tenant.name,
        "priority": kept.priority,
        "state": state,
        "status": status or None,
        "refusal": None if refusal is None else refusal.code,
        "node": attempts[-1].node.name if attempts else None,
        "decision": _decision(kept.decision),
        "wait_s": _positive(kept.started_s - kept.arrived_s) if attempts else None,
        "units": kept.units,
        "predicted_s": kept.estimate_s or None,
        "actual_s": None if under_way or not attempts else _positive(kept.ended_s - attempts[-1].begun_s),
        "total_s": _positive(kept.ended_s - kept.arrived_s) if kept.arrived_s else None,
        "retries": max(0, sum(not attempt.hedge for attempt in attempts) - 1),
        "attempts": [_attempt(attempt, kept.arrived_s) for attempt in attempts],
    }


def _decision(decision: Any) -> dict[str, Any] | None:
    if isinstance(decision, Decision):
        decision = decision.receipt
    if not isinstance(decision, Receipt):
        return None
    candidates = [
        {
            "node": name,
            "scores": {
                "predicted_s": decision.predicted_s[i],
                "in_flight": decision.in_flight[i],
                "prefix_tokens": decision.prefix_tokens[i] if decision.prefix_tokens else 0.0,
            },
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
