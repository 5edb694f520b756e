"""Health checks, circuit breaker, outlier ejection, inactivity timeout and polling of one fleet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.auto_capacity import AutoCapacity, CapacityOptions
from trimtab.gateway.nodes.circuit_breaker import CircuitBreaker, CircuitBreakerOptions
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.fleet_listener import RemovalHook
from trimtab.gateway.nodes.health_checks import HealthChecker, HealthCheckOptions
from trimtab.gateway.nodes.health_rule import AttemptEvents
from trimtab.gateway.nodes.inactivity_timeout import InactivityOptions, InactivityTimeout
from trimtab.gateway.nodes.outlier_ejection import EjectionOptions, OutlierEjection
from trimtab.gateway.nodes.polling import Poller, PollingOptions


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
