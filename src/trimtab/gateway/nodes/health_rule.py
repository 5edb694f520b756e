"""Reports the result of each attempt, once, to the rules that decide about a node's health.

An attempt succeeds, fails, or is inconclusive: the client left, another attempt won, or this process itself
was stalled meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.gateway.model import Attempt, Cause, Exchange, Node, Observer, Outcome
from trimtab.gateway.nodes.status_causes import RATE_LIMITED_STATUS, cause_of_status
from trimtab.gateway.stall_detector import StallDetector

Success = tuple[Exchange, Attempt]


class HealthRule:
    """Decides about nodes by their attempts. A rule overrides what it needs; calls must not raise or wait."""

    def attempt_started(self, exchange: Exchange, attempt: Attempt) -> None:
        """The request is on its way to `attempt.node`."""

    def attempts_succeeded(self, successes: Sequence[Success]) -> None:
        """Whole responses with a status below 500, 429 excepted: all of one turn of the event loop."""

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """The attempt failed, for this cause."""

    def attempt_inconclusive(self, exchange: Exchange, attempt: Attempt) -> None:
        """The attempt ended and says nothing about the node."""

    def node_removed(self, node: Node) -> None:
        """The node is gone. Later calls about it are about a new node."""


class AttemptEvents(Observer):
    """The Observer that reports to the rules. A final loss may come as `lost` too, or only as `ended`."""

    sees_inner = True

    def __init__(self, rules: Sequence[HealthRule], stall_detector: StallDetector) -> None:
        self._pulse = stall_detector
        self._ran_since_s = stall_detector.ran_since_s
        self._attempt_started = [rule.attempt_started for rule in _overriding(rules, "attempt_started")]
        self._attempts_succeeded = [
            rule.attempts_succeeded for rule in _overriding(rules, "attempts_succeeded")
        ]
        self._attempt_failed = [rule.attempt_failed for rule in _overriding(rules, "attempt_failed")]
        self._attempt_inconclusive = [
            rule.attempt_inconclusive for rule in _overriding(rules, "attempt_inconclusive")
        ]
        self._open: set[Attempt] = set()
        stall_detector.on_beat.append(lambda: bool(self._open))

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """An Observer method."""
        if not self._open:
            self._pulse.start()
        self._open.add(attempt)
        for notify in self._attempt_started:
            notify(exchange, attempt)

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """An Observer method."""
        if attempt in self._open:
            self._close(exchange, attempt)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """An Observer method."""
        is_open, successes, since_s = self._open, [], self._ran_since_s()
        for exchange in exchanges:
            for attempt in exchange.attempts:
                if attempt not in is_open:
                    continue
                status = attempt.status
                if (  # not where the client left, nor for a losing hedge, nor across a stall of this process
                    exchange.outcome is _DONE
                    and attempt.cause is None
                    and 0 < status < 500
                    and status != RATE_LIMITED_STATUS
                    and attempt.ended_s >= attempt.begun_s >= since_s
                ):
                    is_open.remove(attempt)
                    successes.append((exchange, attempt))
                    continue
                if successes:  # in the order of events
                    self._report_successes(successes)
                    successes = []
                self._close(exchange, attempt)
        if successes:
            self._report_successes(successes)

    def _report_successes(self, successes: Sequence[Success]) -> None:
        for notify in self._attempts_succeeded:
            notify(successes)

    def _close(self, exchange: Exchange, attempt: Attempt) -> None:
        """Report an attempt that failed or is inconclusive."""
        self._open.remove(attempt)
        cause = attempt.cause or cause_of_status(attempt.status, attempt.node)
        if cause is None or attempt.begun_s < self._ran_since_s():  # this process may be the cause
            for notify in self._attempt_inconclusive:
                notify(exchange, attempt)
        else:
            for notify_failed in self._attempt_failed:
                notify_failed(exchange, attempt, cause)


def _overriding(rules: Sequence[HealthRule], method: str) -> list[HealthRule]:
    """The rules that override this method: the others need no call."""
    return [rule for rule in rules if getattr(type(rule), method) is not getattr(HealthRule, method)]


_DONE: Final = Outcome.DONE  # an enum looks its members up in Python
