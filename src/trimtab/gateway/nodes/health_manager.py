"""Health checks, circuit breaker, outlier ejection, inactivity timeout and polling of one fleet.

Circuit breaker: holds a node that refuses connections, or that asks for a pause.

*Source*: M. Nygard, Release It!, 2007, ch. 5 (circuit breaker: closed, open, half-open); RFC 9110 §10.2.3
(Retry-After). Outlier ejection handles error responses and slow ones; a response below 500 closes the
breaker.

One request never pauses several nodes, and never one for long: it may itself be what they refuse. Only the
first node that is too busy for a request is paused for it, and `Retry-After` is obeyed once another request
in a row was refused too. What only one tenant was refused is a pause for this tenant (`nodes.tenant_holds`).
A 429 pauses nothing, unless the node says that it is about itself (`nodes.node_state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.auto_capacity import AutoCapacity, CapacityOptions
from trimtab.gateway.nodes.fleet import Fleet, RemovalHook
from trimtab.gateway.nodes.health_checks import HealthChecker, HealthCheckOptions
from trimtab.gateway.nodes.health_rule import AttemptEvents, HealthRule, Success
from trimtab.gateway.nodes.inactivity_timeout import InactivityOptions, InactivityTimeout
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.outlier_ejection import EjectionOptions, OutlierEjection
from trimtab.gateway.nodes.polling import Poller, PollingOptions
from trimtab.gateway.nodes.tenant_holds import name_of, sole


@dataclass(frozen=True, slots=True)
class CircuitBreakerOptions:
    """When the breaker opens, and for how long."""

    connect_failures: int = 2  # in a row
    open_s: float = 0.5  # doubled each time in a row
    most_open_s: float = 15.0
    pause_s: float = 0.1  # after the first refusal, or one that names no time; doubled each time in a row
    most_pause_s: float = 2.0
    most_retry_after_s: float = 10.0  # a node must not take itself out for long


@dataclass(slots=True)
class _Pauses:
    """Pauses in a row."""

    number: int = 0
    since_s: float = float("-inf")  # when the latest began


@dataclass(slots=True)
class _Record:
    """The recent failures of one node."""

    failures: int = 0
    times_open: int = 0
    held_s: float = float("-inf")  # when the breaker opened last
    # Since its last good answer: the request that it last refused for lack of room, by tenant; and the pauses
    # for each tenant, None = for all.
    refused: dict[str, str] = field(default_factory=dict)
    pauses: dict[str | None, _Pauses] = field(default_factory=dict)


class CircuitBreaker(HealthRule):
    """Holds nodes that fail to connect, and pauses busy ones."""

    def __init__(
        self,
        fleet: Fleet,
        options: CircuitBreakerOptions | None = None,
        request_check: Callable[[Node], None] = lambda node: None,
    ) -> None:
        """`request_check(node)` starts a health check at once."""
        self._fleet, self._options, self._request_check = (
            fleet,
            options or CircuitBreakerOptions(),
            request_check,
        )
        self._records: dict[int, _Record] = {}

    def attempts_succeeded(self, successes: Sequence[Success]) -> None:
        """A HealthRule method."""
        if not self._records and not self._fleet.on_trial:
            return  # no node has failed
        for node in {attempt.node for _, attempt in successes}:
            record = self._records.get(node.idx)
            if record is not None:
                record.failures = record.times_open = 0
                record.refused.clear()
                record.pauses.clear()
            if self._fleet.state(node).is_on_trial:
                self._fleet.end_trial(node)

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A HealthRule method."""
        if cause is Cause.CONNECT:
            self._unreachable(attempt)
        elif cause is Cause.BUSY:
            self._busy(exchange, attempt)
        elif cause is not Cause.LOAD and (record := self._records.get(attempt.node.idx)) is not None:
            record.failures = 0  # it connected

    def node_removed(self, node: Node) -> None:
        """A HealthRule method."""
        self._records.pop(node.idx, None)

    def check_passed(self, node: Node) -> None:
        """A health check passed: the node may be tried at once."""
        self._fleet.release(node, Hold.BREAKER)

    def _unreachable(self, attempt: Attempt) -> None:
        node, record, options = attempt.node, self._record(attempt.node), self._options
        record.failures += 1
        is_trial = self._fleet.state(node).is_on_trial
        if attempt.begun_s < record.held_s or not (is_trial or record.failures >= options.connect_failures):
            return  # it began before the breaker opened
        open_s = min(options.most_open_s, options.open_s * 2.0 ** min(record.times_open, 30))
        is_first = record.times_open == 0
        record.times_open, record.held_s = record.times_open + 1, self._fleet.loop.time()
        self._fleet.hold(node, Hold.BREAKER, f"refuses connections; tried again after {open_s:g} s", open_s)
        if is_first:  # a check that passes closes the breaker: not each time
            self._request_check(node)

    def _busy(self, exchange: Exchange, attempt: Attempt) -> None:
        node, record, options = attempt.node, self._record(attempt.node), self._options
        record.failures = 0
        if any(one.cause is Cause.BUSY and one.node is not node for one in exchange.attempts):
            return
        tenant = name_of(exchange.tenant)
        is_confirmed = any(one != exchange.id for one in record.refused.values())
        record.refused[tenant] = exchange.id
        only_for = sole(record.refused)
        pauses = record.pauses.setdefault(only_for, _Pauses())
        requested_s = min(options.most_retry_after_s, attempt.retry_after_s) if is_confirmed else 0.0
        if attempt.begun_s < pauses.since_s and requested_s <= 0:
            return  # part of a burst that began before the pause
        pause_s = requested_s or min(options.most_pause_s, options.pause_s * 2.0 ** min(pauses.number, 30))
        now_s = self._fleet.loop.time()
        if now_s + pause_s <= self._paused_until_s(node, only_for):
            return
        pauses.number, pauses.since_s = pauses.number + 1, now_s
        reason = f"asked for a pause ({attempt.status}) of {pause_s:g} s"
        self._fleet.hold_for(node, Hold.BUSY, reason, pause_s, only_for)

    def _paused_until_s(self, node: Node, tenant: str | None) -> float:
        for_all_s = self._fleet.state(node).until_s.get(Hold.BUSY, float("-inf"))
        if tenant is None:
            return for_all_s
        return max(for_all_s, self._fleet.tenant_holds.until_s(node, Hold.BUSY, tenant))

    def _record(self, node: Node) -> _Record:
        record = self._records.get(node.idx)
        if record is None:
            record = self._records[node.idx] = _Record()
        return record


@dataclass(frozen=True, slots=True)
class HealthManagerOptions:
    """Options of every part."""

    health: HealthCheckOptions = field(default_factory=HealthCheckOptions)
    breaker: CircuitBreakerOptions = field(default_factory=CircuitBreakerOptions)
    ejection: EjectionOptions = field(default_factory=EjectionOptions)
    inactivity: InactivityOptions = field(default_factory=InactivityOptions)
    polling: PollingOptions = field(default_factory=PollingOptions)
    capacity: CapacityOptions = field(default_factory=CapacityOptions)


class HealthManager:
    """Manages the health of a fleet. Its `observer` must be among the exchanges' observers."""

    def __init__(self, fleet: Fleet, options: HealthManagerOptions | None = None) -> None:
        options = options or HealthManagerOptions()
        self.fleet = fleet
        self.breaker = CircuitBreaker(fleet, options.breaker, self._request_check)
        self.ejection = OutlierEjection(fleet, options.ejection)
        self.inactivity = InactivityTimeout(fleet, options.inactivity, self._request_check)
        self.capacity = AutoCapacity(fleet, options.capacity)
        is_excused = self.inactivity.is_within_prediction
        self.checker = HealthChecker(fleet, options.health, is_excused, passed=self._check_passed)
        self.poller = Poller(fleet, options.polling)
        self._rules = (self.breaker, self.ejection, self.inactivity, self.capacity)
        self.observer = AttemptEvents(self._rules, fleet.stall_detector)
        fleet.listeners.append(RemovalHook(self._node_removed))

    def start(self) -> None:
        """Start every part. Returns at once: an unreachable node shows later."""
        self.checker.start()
        self.ejection.start()
        self.inactivity.start()
        self.poller.start()

    async def close(self) -> None:
        """Stop every part. `start` begins again."""
        self.fleet.stall_detector.close()
        self.inactivity.close()
        await asyncio.gather(self.checker.close(), self.ejection.close(), self.poller.close())

    def _node_removed(self, node: Node) -> None:
        for rule in self._rules:
            rule.node_removed(node)

    def _request_check(self, node: Node) -> None:
        self.checker.check_now(node)

    def _check_passed(self, node: Node) -> None:
        self.inactivity.check_passed(node)
        self.breaker.check_passed(node)
