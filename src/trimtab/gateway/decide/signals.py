"""Reported and measured properties of nodes: resources, round trips, links, outages.

use of a resource on a node, as policies see it = what others use + demand × requests in flight from here.
What others use is what the node reported, less demand × the requests that it had from here meanwhile; so a
report may be old, and what was sent since counts nevertheless. A node without a fresh report of a resource
counts as the mean of those with one.

Round trips between zones are declared, or measured by health checks. A node's round trip is the shortest of
its last checks: what a check takes longer than that is the server's own time, or this process's. A zone's is
the median of its nodes. All requests pass this gateway, so between two zones of which neither is its own, the
times of both from here add up, unless they are declared.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import RESOURCES, Floats
from trimtab.domain.view import OUTAGE
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.decide.engine_reports import EngineReports
from trimtab.gateway.decide.learning import ClassCounts, DemandFit
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_resources import capacity_of, said_by
from trimtab.gateway.nodes.node_state import FAULTS, NodeSpec
from trimtab.gateway.nodes.planned_outages import LinkMeter, Window

KEPT: Final = 16  # checks of a node
SAME_FRAC: Final = 0.01  # capacities that differ by less are the same
_ALL: Final = range(len(RESOURCES))
_AS_OF_NOW: Final = frozenset(RESOURCES.index(name) for name in ("ram_gib", "gpu_gib"))  # not means of a time


class RoundTrips:
    """Measured round trips from this gateway to nodes."""

    def __init__(self) -> None:
        self._of_node: dict[int, deque[float]] = {}

    def note(self, node_idx: int, seconds: float) -> None:
        """A check of the node took this long."""
        self._of_node.setdefault(node_idx, deque(maxlen=KEPT)).append(seconds)

    def forget(self, node_idx: int) -> None:
        """The node is gone; another may have its index later."""
        self._of_node.pop(node_idx, None)

    def of_node(self, node_idx: int) -> float | None:
        """Seconds of a round trip to a node; None = not measured."""
        kept = self._of_node.get(node_idx)
        return min(kept) if kept else None

    def between(self, zones: Sequence[str], node_zones: Sequence[str], declared: Declared) -> Floats:
        """Seconds of a round trip [zones, zones]. `node_zones`: of each node, by index."""
        from_here = [self._to_zone(zone, node_zones, declared) for zone in zones]
        is_own = [zone == declared.zone for zone in zones]
        out = np.zeros((len(zones), len(zones)))
        for a, first in enumerate(zones):
            for b, second in enumerate(zones):
                known = _declared(first, second, declared)
                via_here = (0.0 if is_own[a] else from_here[a]) + from_here[b]
                out[a, b] = via_here if known is None else known
        return out

    def _to_zone(self, zone: str, node_zones: Sequence[str], declared: Declared) -> float:
        known = _declared(declared.zone, zone, declared)
        if known is not None:
            return known
        measured = [
            seconds
            for j, of in enumerate(node_zones)
            if of == zone and (seconds := self.of_node(j)) is not None
        ]
        return median(measured) if measured else 0.0


def _declared(a: str, b: str, declared: Declared) -> float | None:
    known = declared.rtt_s.get((a, b))
    return declared.rtt_s.get((b, a)) if known is None else known


class NodeSignals:
    """Reports and measurements of all nodes, by index; and what the configuration declares."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.counts, self.fit = ClassCounts(), DemandFit()
        self.round_trips, self.links = RoundTrips(), LinkMeter()
        self.engines = EngineReports()
        self.foreign: dict[int, int] = {}  # requests that others sent to a node
        self._capacity: dict[int, list[float]] = {}  # [resources] of a node, as last known; 0 = unknown
        self.read_s: dict[int, dict[str, float]] = {}  # node → source → when it spoke of resources last
        self.others: dict[int, list[float]] = {}  # use of others of a node [resources]; nan = no fresh report

    def take_capacity(self, node: Node, spec: NodeSpec) -> bool:
        """Note what the node has, as declared or reported; returns whether that is news."""
        before = self._capacity.get(node.idx, [0.0] * len(RESOURCES))
        now = capacity_of(spec.resources, node.reported)
        self._capacity[node.idx] = merged = [new or old for new, old in zip(now, before, strict=True)]
        return any(abs(a - b) > SAME_FRAC * a for a, b in zip(merged, before, strict=True))

    def capacity_of(self, node: Node, spec: NodeSpec) -> tuple[float, ...]:
        """The node's total of each resource, as last known; 0 = unknown."""
        self.take_capacity(node, spec)
        return tuple(self._capacity[node.idx])

    def take_report(
        self,
        node: Node,
        source: str,
        values: Mapping[str, float],
        used: Sequence[float | None],
        demand: Floats,
        now_s: float,
    ) -> None:
        """A page about a node says these values.

        `used`: of each resource, as all pages together say; None = no fresh  `demand`: [classes,
        resources]. `now_s`: on the clock of `counts`.
        """
        said = said_by(values)
        mean, present = self.counts.mean(node.idx, source, now_s), self.counts.now(node.idx)
        read_s = self.read_s.setdefault(node.idx, {})
        if said:
            read_s[source] = now_s
        elif not values:  # it is too old
            read_s.pop(source, None)
        others = self.others.setdefault(node.idx, [math.nan] * len(RESOURCES))
        for requests, of in ((mean, said - _AS_OF_NOW), (present, said & _AS_OF_NOW)):
            if of:
                self.fit.observe(node.idx, requests, [used[k] if k in of else None for k in _ALL])
        for k in _ALL:
            amount = used[k]
            if amount is None:
                others[k] = math.nan
            elif k in said:
                own = _taken(demand, present if k in _AS_OF_NOW else mean, k)
                others[k] = max(0.0, amount - own)
        self.foreign[node.idx] = self._foreign_requests(node)
        self.engines.take(node, values, now_s)

    def forget(self, node_idx: int) -> None:
        """The node is gone."""
        self._capacity.pop(node_idx, None)
        self.others.pop(node_idx, None)
        self.read_s.pop(node_idx, None)
        self.foreign.pop(node_idx, None)
        self.engines.forget(node_idx)
        self.counts.forget(node_idx)
        self.round_trips.forget(node_idx)

    def _foreign_requests(self, node: Node) -> int:
        reported = node.reported
        if "running" not in reported and "waiting" not in reported:
            return 0
        there = reported.get("running", 0.0) + reported.get("waiting", 0.0)
        return max(0, int(there) - self.counts.answers(node.idx))


def _taken(demand: Floats, requests: Mapping[int, float], k: int) -> float:
    return sum(float(demand[c, k]) * count for c, count in requests.items())


def outage_rows(fleet: Fleet, windows: Sequence[Window], now_s: float, utc_s: float) -> NDArray[Any]:
    """Planned outages as policies see them, OUTAGE [outages], in the time of the pools.

    The first rows are one for each node, for what withholds it now and is no fault: an operator's drain, a
    pause that it asked for. So policies that count failures count none. The calendar's windows follow.
    `now_s` and `utc_s`: the same time for the pools, and since 1970.
    """
    since_1970_s = utc_s - now_s
    rows: list[tuple[float, float, int]] = []
    for node in fleet.nodes:
        holds = fleet.state(node).holds.keys()
        is_withheld = bool(holds) and not holds & FAULTS
        rows.append((now_s, np.inf if is_withheld else now_s, node.idx))
    for window in windows:
        found = fleet.find(window.node)
        if found is not None:
            rows += [(a - since_1970_s, b - since_1970_s, found.idx) for a, b in window.next(utc_s)]
    return np.array(rows, OUTAGE)
