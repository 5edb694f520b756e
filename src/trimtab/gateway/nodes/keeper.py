"""All that looks after the nodes, started and closed together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.breaker import Breaker, BreakerOptions
from trimtab.gateway.nodes.capacity import AutoCapacity, CapacityOptions
from trimtab.gateway.nodes.departures import Departures
from trimtab.gateway.nodes.ejection import EjectionOptions, Ejector
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health import Checker, HealthOptions
from trimtab.gateway.nodes.polling import Poller, PollingOptions
from trimtab.gateway.nodes.signals import Signals
from trimtab.gateway.nodes.silence import Silence, SilenceOptions


@dataclass(frozen=True, slots=True)
class KeeperOptions:
    """How nodes are looked after."""

    health: HealthOptions = field(default_factory=HealthOptions)
    breaker: BreakerOptions = field(default_factory=BreakerOptions)
    ejection: EjectionOptions = field(default_factory=EjectionOptions)
    silence: SilenceOptions = field(default_factory=SilenceOptions)
    polling: PollingOptions = field(default_factory=PollingOptions)
    capacity: CapacityOptions = field(default_factory=CapacityOptions)


class Keeper:
    """Looks after a fleet. Its `observer` must be among the exchange's observers."""

    def __init__(self, fleet: Fleet, options: KeeperOptions | None = None) -> None:
        options = options or KeeperOptions()
        self.fleet = fleet
        self.breaker = Breaker(fleet, options.breaker)
        self.ejector = Ejector(fleet, options.ejection)
        self.silence = Silence(fleet, options.silence, doubt=self._doubt)
        self.capacity = AutoCapacity(fleet, options.capacity)
        is_excused = self.silence.is_within_prediction
        self.checker = Checker(fleet, options.health, is_excused, answered=self._answered)
        self.poller = Poller(fleet, options.polling)
        self._judges = (self.breaker, self.ejector, self.silence, self.capacity)
        self.observer = Signals(self._judges, fleet.pulse)
        fleet.listeners.append(Departures(self._forget))

    def start(self) -> None:
        """Look after them from now on. Nothing is waited for: a node that cannot be reached shows later."""
        self.checker.start()
        self.ejector.start()
        self.silence.start()
        self.poller.start()

    async def close(self) -> None:
        """Look after them no more. It can be started again."""
        self.fleet.pulse.close()
        self.silence.close()
        await asyncio.gather(self.checker.close(), self.ejector.close(), self.poller.close())

    def _forget(self, node: Node) -> None:
        for judge in self._judges:
            judge.forget(node)

    def _doubt(self, node: Node) -> None:
        self.checker.check_now(node)

    def _answered(self, node: Node) -> None:
        self.silence.reached(node)
        self.breaker.reached(node)
