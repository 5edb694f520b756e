"""Reports the result of each attempt, once, to the rules that decide about a node's health.

An attempt succeeds, fails, or is inconclusive: the client left, another attempt won, or this process itself
was stalled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.gateway.model import Attempt, Cause, Exchange, Node, Observer, Outcome
from trimtab.gateway.nodes.node_state import (
    RATE_LIMITED_STATUS,
    TRANSITIONS,
    Effect,
    HealthEvent,
    NodeState,
    Phase,
    cause_of_status,
)
from trimtab.gateway.stalled_streams import StallDetector

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


@dataclass(frozen=True, slots=True)
class SlowStartOptions:
    """How fast a node ramps up."""

    slow_start_s: float = 10.0  # from trial to full capacity
    ramp_steps: int = 10  # updates of the capacity on the way
    least_ramp_frac: float = 0.1
    trial_s: float = 5.0  # a trial without a failure ends after this, or with the first good answer


class SlowStart:
    """Carries out the transitions of nodes' health: trials and ramps.

    `changed(node)` is called whenever a node may take more or fewer requests.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: SlowStartOptions, changed: Callable[[Node], None]
    ) -> None:
        self._loop, self._options, self._changed = loop, options, changed
        self.on_trial: set[int] = set()  # positions of nodes

    def ramp_frac(self, state: NodeState, now_s: float) -> float:
        """The part of its capacity that a node may use, 0..1; 0 = one request, on trial."""
        if state.is_on_trial:
            return 0.0
        if state.phase is not Phase.RAMP or self._options.slow_start_s <= 0:
            return 1.0
        part = (now_s - state.ramp_from_s) / self._options.slow_start_s
        return min(1.0, max(self._options.least_ramp_frac, part))

    def happened(self, event: HealthEvent, node: Node, state: NodeState) -> None:
        """Follow the table of transitions."""
        state.phase, effect = TRANSITIONS[state.phase][event]
        if effect is Effect.NONE:
            return
        state.cancel_slow_start()
        self.on_trial.discard(node.idx)
        if effect is Effect.BEGIN_RAMP:
            state.ramp_from_s = self._loop.time()
            self._step(node, state, 0)
        elif effect is Effect.BEGIN_TRIAL:
            self.on_trial.add(node.idx)
            wait_s = self._options.trial_s
            state.ramp_timer = self._loop.call_later(wait_s, self.happened, HealthEvent.ANSWERED, node, state)
        if effect in (Effect.BEGIN_TRIAL, Effect.STOP_AND_TELL):
            self._changed(node)

    def _step(self, node: Node, state: NodeState, step: int) -> None:
        state.cancel_slow_start()
        is_last = step >= self._options.ramp_steps or self._options.slow_start_s <= 0
        if is_last:
            self.happened(HealthEvent.RAMPED, node, state)
        else:
            wait_s = self._options.slow_start_s / self._options.ramp_steps
            state.ramp_timer = self._loop.call_later(wait_s, self._step, node, state, step + 1)
        self._changed(node)
