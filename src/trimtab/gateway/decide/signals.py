"""Reported and measured properties of nodes, as policies read them: resources, round trips, links, outages.

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
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import RESOURCES, Floats
from trimtab.domain.view import OUTAGE
from trimtab.gateway.decide.cluster_builder import ClusterShape, Surroundings
from trimtab.gateway.decide.dispatch_rules import Declared
from trimtab.gateway.decide.learning import ClassCounts, ClassKey, DemandFit
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.link_meter import LinkMeter
from trimtab.gateway.nodes.node_resources import capacity_of, said_by
from trimtab.gateway.nodes.node_spec import NodeSpec
from trimtab.gateway.nodes.node_state import FAULTS
from trimtab.gateway.nodes.planned_outages import Window

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


class Report(NamedTuple):
    """A page about a node."""

    source: str
    values: Mapping[str, float]  # what this page says
    used: Sequence[float | None]  # [resources], as all pages together say; None = no fresh report
    demand: Floats  # [classes, resources]


class NodeSignals:
    """Reports and measurements of all nodes, by index; and what the configuration declares."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.counts, self.fit = ClassCounts(), DemandFit()
        self.round_trips, self.links = RoundTrips(), LinkMeter()
        self.foreign: dict[int, int] = {}  # requests that others sent to a node
        self._capacity: dict[int, list[float]] = {}  # [resources] of a node, as last known; 0 = unknown
        self._read_s: dict[int, dict[str, float]] = {}  # node → source → when it spoke of resources last
        self._away_s: list[float] = []  # [nodes]
        self._others: dict[int, list[float]] = {}  # [resources] of a node; nan = no fresh report

    # --- what is learned

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

    def take_report(self, node: Node, report: Report, now_s: float) -> None:
        """Take a report of a node. `now_s`: on the clock of `counts`."""
        said = said_by(report.values)
        mean, present = self.counts.mean(node.idx, report.source, now_s), self.counts.now(node.idx)
        read_s = self._read_s.setdefault(node.idx, {})
        if said:
            read_s[report.source] = now_s
        elif not report.values:  # it is too old
            read_s.pop(report.source, None)
        others = self._others.setdefault(node.idx, [math.nan] * len(RESOURCES))
        for requests, of in ((mean, said - _AS_OF_NOW), (present, said & _AS_OF_NOW)):
            if of:
                self.fit.observe(node.idx, requests, [report.used[k] if k in of else None for k in _ALL])
        for k in _ALL:
            amount = report.used[k]
            if amount is None:
                others[k] = math.nan
            elif k in said:
                own = _taken(report.demand, present if k in _AS_OF_NOW else mean, k)
                others[k] = max(0.0, amount - own)
        self.foreign[node.idx] = self._foreign_requests(node)

    def forget(self, node_idx: int) -> None:
        """The node is gone."""
        self._capacity.pop(node_idx, None)
        self._others.pop(node_idx, None)
        self._read_s.pop(node_idx, None)
        self.foreign.pop(node_idx, None)
        self.counts.forget(node_idx)
        self.round_trips.forget(node_idx)

    def _foreign_requests(self, node: Node) -> int:
        reported = node.reported
        if "running" not in reported and "waiting" not in reported:
            return 0
        there = reported.get("running", 0.0) + reported.get("waiting", 0.0)
        return max(0, int(there) - self.counts.answers(node.idx))

    # --- what policies see

    def surroundings(self, shape: ClusterShape, classes: Sequence[ClassKey], rows: int) -> Surroundings:
        """The surroundings with which a new state begins."""
        of, declared = shape.modelled, self.declared
        zones = self.zones(shape)
        return Surroundings(
            resource_names=tuple(RESOURCES[k] for k in of),
            capacity=shape.capacity[:, of],
            demand=self.demand(shape, classes, rows),
            zones=zones,
            rtt_s=self.rtt_s(shape),
            zone_gib_per_s=np.array([declared.zone_gib_per_s.get(zone, np.inf) for zone in zones]),
            nic_gib_per_s=np.array([self.nic_gib_per_s(shape, j) for j in range(len(shape.members))]),
            model_gib=declared.model_gib,
        )

    def all_demand(self, shape: ClusterShape, classes: Sequence[ClassKey], rows: int) -> Floats:
        """The demand of one request of each class, [rows, resources]: declared, else learned.

        Learned demand fits every node: an error of the regression must not exclude a node.
        """
        demand = self.fit.demand(rows)
        for c, (model, _) in enumerate(classes):
            demand[c] = np.minimum(demand[c], shape.least_capacity(model))
            for name, amount in self.declared.demand.get(model, {}).items():
                demand[c, RESOURCES.index(name)] = amount
        return demand

    def demand(self, shape: ClusterShape, classes: Sequence[ClassKey], rows: int) -> Floats:
        """`all_demand` of the resources that are modelled, [rows, modelled resources]."""
        chosen: Floats = self.all_demand(shape, classes, rows)[:, shape.modelled]
        return chosen

    def used(self, shape: ClusterShape, classes: Sequence[ClassKey], rows: int) -> Floats:
        """The use of each node [nodes, modelled resources]: by others, and by requests from here."""
        used, n = self.used_by_others(shape), len(shape.members)
        demand = self.demand(shape, classes, rows)
        for j in self.counts.nodes():
            for c, requests in self.counts.now(j).items():
                if j < n and c < rows:
                    used[j] += requests * demand[c]
        return used

    def used_by_others(self, shape: ClusterShape) -> Floats:
        """The use by others of each node, [nodes, modelled resources]."""
        of, n = shape.modelled, len(shape.members)
        others = np.full((n, len(RESOURCES)), np.nan)
        for j, amounts in self._others.items():
            if j < n:
                others[j] = amounts
        return _filled(others[:, of], shape.capacity[:, of])

    def reported_s(self, shape: ClusterShape) -> Floats:
        """When each node reported its use of resources, the oldest of its sources; inf = none does."""
        sources = (self._read_s.get(j, {}) for j in range(len(shape.members)))
        return np.array([min(read_s.values(), default=np.inf) for read_s in sources])

    def zones(self, shape: ClusterShape) -> tuple[str, ...]:
        """All zones; the gateway's own first."""
        declared = self.declared
        names = (declared.zone, *declared.zones, *declared.zone_gib_per_s, *(m.zone for m in shape.members))
        return tuple(dict.fromkeys(names))

    def rtt_s(self, shape: ClusterShape) -> Floats:
        """Round trips between zones, [zones, zones]; those from here to nodes are `away_s` from now on."""
        zones, of_nodes = self.zones(shape), [m.zone for m in shape.members]
        found = self.round_trips.between(zones, of_nodes, self.declared)
        self._away_s = [float(found[0, zones.index(zone)]) for zone in of_nodes]
        return found

    def away_s(self, node_idx: int) -> float:
        """Round trip to a node's zone, as policies see it."""
        return self._away_s[node_idx] if node_idx < len(self._away_s) else 0.0

    def nic_gib_per_s(self, shape: ClusterShape, node_idx: int) -> float:
        """Bandwidth of the link to a node; inf = unknown."""
        return shape.members[node_idx].nic_gib_per_s or self.links.of_node(node_idx) or float("inf")


def _taken(demand: Floats, requests: Mapping[int, float], k: int) -> float:
    return sum(float(demand[c, k]) * count for c, count in requests.items())


def _filled(others: Floats, capacity: Floats) -> Floats:
    """Fill what no fresh report says with the mean share of the nodes with one; 0 where there is none."""
    share = np.divide(others, capacity, out=np.zeros(others.shape), where=capacity > 0.0)
    is_known = ~np.isnan(share)
    total = np.where(is_known, share, 0.0).sum(axis=0)
    mean = np.divide(total, is_known.sum(axis=0), out=np.zeros(len(total)), where=is_known.any(axis=0))
    return np.where(is_known, others, mean * capacity)


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
