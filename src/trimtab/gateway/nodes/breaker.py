"""The breaker: a node to which nothing connects, and a node that asks for a pause.

*Source*: M. Nygard, Release It!, 2007, ch. 5 (circuit breaker: closed, open, half-open); RFC 9110 §10.2.3
(Retry-After). What a node answers, and answers it gives too late, are for the ejector to judge; an answer
below 500 closes the breaker whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.condition import Hold
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.signals import Answer, Judge


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    """When it opens, and for how long."""

    connect_failures: int = 2  # in a row
    open_s: float = 0.5  # doubled each time in a row
    most_open_s: float = 15.0
    pause_s: float = 0.1  # after a 429 or 503 that names no time; doubled each time in a row
    most_pause_s: float = 2.0
    most_retry_after_s: float = 10.0  # a node must not take itself out for long


@dataclass(slots=True)
class _Record:
    """What one node did lately."""

    failures: int = 0
    times_open: int = 0
    pauses: int = 0
    held_s: float = field(default=float("-inf"))  # when the latest hold or pause began


class Breaker(Judge):
    """Judges nodes by what connects, and lets busy ones rest."""

    def __init__(self, fleet: Fleet, options: BreakerOptions | None = None) -> None:
        self._fleet, self._options = fleet, options or BreakerOptions()
        self._records: dict[int, _Record] = {}

    def answered(self, answers: Sequence[Answer]) -> None:
        """A judge's call."""
        if not self._records and not self._fleet.on_trial:
            return  # nothing was ever wrong
        for node in {attempt.node for _, attempt in answers}:
            record = self._records.get(node.idx)
            if record is not None:
                record.failures = record.times_open = record.pauses = 0
            if self._fleet.condition(node).is_on_trial:
                self._fleet.warm(node)

    def lost(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A judge's call."""
        if cause is Cause.CONNECT:
            self._unreachable(attempt)
        elif cause is Cause.BUSY:
            self._busy(attempt)
        elif (record := self._records.get(attempt.node.idx)) is not None:  # it connected
            record.failures = 0

    def forget(self, node: Node) -> None:
        """A judge's call."""
        self._records.pop(node.idx, None)

    def reached(self, node: Node) -> None:
        """A health check came through: the breaker need not wait any longer to try."""
        self._fleet.release(node, Hold.BREAKER)

    def _unreachable(self, attempt: Attempt) -> None:
        node, record, options = attempt.node, self._record(attempt.node), self._options
        record.failures += 1
        is_trial = self._fleet.condition(node).is_on_trial
        if attempt.begun_s < record.held_s or not (is_trial or record.failures >= options.connect_failures):
            return  # begun before the breaker opened: no news
        open_s = min(options.most_open_s, options.open_s * 2.0 ** min(record.times_open, 30))
        record.times_open, record.held_s = record.times_open + 1, self._fleet.loop.time()
        self._fleet.hold(node, Hold.BREAKER, f"cannot be connected; tried again after {open_s:g} s", open_s)

    def _busy(self, attempt: Attempt) -> None:
        node, record, options = attempt.node, self._record(attempt.node), self._options
        record.failures = 0
        wished_s = min(options.most_retry_after_s, attempt.retry_after_s)
        if attempt.begun_s < record.held_s and wished_s <= 0:
            return  # one of a burst that was under way when the node began to rest
        pause_s = wished_s or min(options.most_pause_s, options.pause_s * 2.0 ** min(record.pauses, 30))
        now_s = self._fleet.loop.time()
        if now_s + pause_s <= self._fleet.condition(node).until_s.get(Hold.BUSY, now_s):
            return
        record.pauses, record.held_s = record.pauses + 1, now_s
        self._fleet.hold(node, Hold.BUSY, f"asked for a pause ({attempt.status}) of {pause_s:g} s", pause_s)

    def _record(self, node: Node) -> _Record:
        record = self._records.get(node.idx)
        if record is None:
            record = self._records[node.idx] = _Record()
        return record
