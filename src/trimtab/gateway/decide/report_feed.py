"""Takes reports and measurements of nodes as they come, and writes them to the pools' states.

Reports are gathered and written at most every `REFRESH_S`, into arrays of the states. Only a capacity that
was unknown or has changed needs new states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from trimtab.gateway.decide.node_signals import NodeSignals, Report
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.fleet_listener import FleetListener
from trimtab.gateway.nodes.node_resources import use_of

REFRESH_S: Final = 0.25
SETTLE_S: Final = 2.0  # how long new capacities are gathered before states are rebuilt
UNKNOWN_S: Final = 1.0  # a request from elsewhere on a node without requests of ours


class ReportFeed(FleetListener):
    """Follows the fleet. `catch_up` brings all pools up to date."""

    def __init__(
        self, fleet: Fleet, registry: Registry, pools: PolicyPools, catch_up: Callable[[], None]
    ) -> None:
        self._fleet, self._registry, self._pools, self._catch_up = fleet, registry, pools, catch_up
        self.signals: NodeSignals = registry.signals
        self.signals.links.changed = self._link_changed
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        pools.informer = self

    def close(self) -> None:
        """Write nothing more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # --- FleetListener

    def on_report(self, node: Node, source: str, values: Mapping[str, float]) -> None:
        """A FleetListener method."""
        registry, signals = self._registry, self.signals
        spec = self._fleet.state(node).spec
        if signals.take_capacity(node, spec):
            self._later(SETTLE_S, self._pools.rebuild)
        demand = signals.all_demand(registry.shape, registry.class_keys, registry.rows)
        report = Report(source, values, use_of(spec.resources, node.reported), demand)
        signals.take_report(node, report, self._pools.now_s())
        self._later(REFRESH_S, self.refresh)

    def on_round_trip(self, node: Node, seconds: float) -> None:
        """A FleetListener method."""
        self.signals.round_trips.note(node.idx, seconds)
        self._later(REFRESH_S, self.refresh)

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self.signals.forget(node.idx)

    # --- writing

    def refresh(self) -> None:
        """Write everything to all pools."""
        self._catch_up()  # counts of requests then agree with the states
        for pool in self._pools.by_spec.values():
            self.write(pool)
        self._catch_up()

    def write(self, pool: PolicyPool) -> None:
        """Write everything to the state of a pool, which is up to date."""
        registry, signals, reports, now_s = (
            self._registry,
            self.signals,
            pool.live.reports,
            self._pools.now_s(),
        )
        shape, keys, rows = registry.shape, registry.class_keys, registry.rows
        reports.set_round_trips(signals.rtt_s(shape), now_s)
        demand = signals.demand(shape, keys, rows)
        if demand.shape[1]:
            reports.set_demand(demand, now_s)
            used, reported_s = signals.used(shape, keys, rows), signals.reported_s(shape)
            reports.set_used(used, reported_s, now_s)
        for node_idx, requests in signals.foreign.items():
            if node_idx < len(shape.members):
                self._write_foreign(pool, node_idx, requests, now_s)
        for node_idx, active in signals.links.active.items():
            if active and node_idx < len(shape.members):
                reports.set_link(node_idx, active, signals.nic_gib_per_s(shape, node_idx))

    def write_class(self, pool: PolicyPool, class_idx: int) -> None:
        """Write the demand of a class that is new, of which no request runs."""
        demand = self.signals.demand(self._registry.shape, self._registry.class_keys, self._registry.rows)
        if demand.shape[1]:
            pool.live.reports.set_class_demand(class_idx, demand[class_idx])

    def _write_foreign(self, pool: PolicyPool, node_idx: int, requests: int, now_s: float) -> None:
        """Requests of others count as so many of the mean estimate of those on the node."""
        known, known_s = pool.foreign.get(node_idx, (0, 0.0))
        if requests == known:
            return
        nodes = pool.live.nodes
        in_flight = nodes.in_flight[node_idx]
        each_s = nodes.outstanding_s[node_idx] / in_flight if in_flight else UNKNOWN_S
        pool.foreign[node_idx] = requests, requests * each_s
        pool.live.reports.add_requests(node_idx, requests - known, requests * each_s - known_s, now_s)

    def _link_changed(self, node_idx: int) -> None:
        links, members = self.signals.links, self._registry.shape.members
        if node_idx < len(members):
            gib_per_s = self.signals.nic_gib_per_s(self._registry.shape, node_idx)
            for pool in self._pools.by_spec.values():
                pool.live.reports.set_link(node_idx, links.active[node_idx], gib_per_s)

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        """Call `what` once, after this time or sooner."""
        if what not in self._timers:
            self._timers[what] = self._fleet.loop.call_later(after_s, self._run, what)

    def _run(self, what: Callable[[], None]) -> None:
        del self._timers[what]
        what()
