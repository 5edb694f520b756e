"""Capacity `auto`: how many requests a node may have in flight, found from their latencies.

*Source*: the gradient limit of Netflix's concurrency-limits (E. Landau, W. Thurston, T. Bozarth,
"Performance Under Load", 2018): `limit ← limit × min(1, tolerance × no-load latency / latency) + headroom`,
smoothed, with the square root of the limit as headroom; a multiplicative decrease on losses, as AIMD (D.-M.
Chiu, R. Jain, 1989); the no-load latency is measured again from time to time under little load, after BBR's
ProbeRTT (N. Cardwell et al., ACM Queue 14(5), 2016); at first the limit doubles, as TCP's slow start.
*Deviations*: a sample is the mean of a window, since service times differ by orders of magnitude and the
least of them says nothing; latencies are per unit of the request's own work.

Where latency grows with the number in flight without any queue (batching), `tolerance` says how much of
that is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health_rule import HealthRule, Success
from trimtab.gateway.nodes.tenant_holds import name_of, sole


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """How the limit moves."""

    initial: int = 4
    least: int = 1
    tolerance: float = 2.0  # accepted latency, as a multiple of the no-load latency
    headroom: float = 0.5  # × the root of the limit
    smoothing: float = 0.3
    window_samples: int = 20
    window_s: float = 0.5  # and at least this long
    first_probe_s: float = 10.0  # the initial limit may have been too high
    probe_s: float = 120.0  # how often the no-load latency is measured again
    least_gradient: float = 0.5
    loss_factor: float = 0.9


class AdaptiveLimit:
    """The limit of one node: pure arithmetic; the caller gives the time."""

    def __init__(self, most: int, options: CapacityOptions | None = None, now_s: float = 0.0) -> None:
        self._options, self.most = options or CapacityOptions(), most
        self._limit = float(min(most, self._options.initial))
        self._resume_limit = 0.0  # > 0 while it probes
        self._is_exploring = True  # until latency first rises, or something is lost
        self._probe_at_s = now_s + self._options.first_probe_s
        self.no_load_s = math.inf  # per unit of work
        self._window_from_s, self._latency_s, self._units = now_s, 0.0, 0.0
        self._n = self._most_in_flight = 0

    @property
    def limit(self) -> int:
        """Requests in flight."""
        return max(self._options.least, int(self._limit + 1e-9))

    def sample(self, latency_s: float, units: float, in_flight: int, begun_s: float, now_s: float) -> None:
        """A successful answer to `units` of work; `in_flight` includes it."""
        if begun_s < self._window_from_s and self._resume_limit > 0:
            return  # it began under the load that the probe must avoid
        self._latency_s += latency_s
        self._units += units
        self._n += 1
        self._most_in_flight = max(self._most_in_flight, in_flight)
        is_long = now_s - self._window_from_s >= self._options.window_s
        if is_long and self._n >= self._options.window_samples and self._units > 0:
            self._end_window(now_s)

    def lost(self, begun_s: float, now_s: float) -> None:
        """A timeout or a refusal: the node is full. Attempts that began before the last one do not count."""
        if begun_s < self._window_from_s:
            return
        self._limit = max(self._options.least, self._limit * self._options.loss_factor)
        self._is_exploring = False
        self._begin_window(now_s)

    def _begin_window(self, now_s: float) -> None:
        self._window_from_s = now_s
        self._latency_s = self._units = 0.0
        self._n = self._most_in_flight = 0

    def _end_window(self, now_s: float) -> None:
        latency_s = self._latency_s / self._units
        if self._resume_limit > 0:
            self._limit, self._resume_limit = self._resume_limit, 0.0
            self.no_load_s, self._probe_at_s = latency_s, now_s + self._options.probe_s
        else:
            self.no_load_s = min(self.no_load_s, latency_s)
            self._move(latency_s)
            if now_s >= self._probe_at_s:
                self._resume_limit = self._limit
                # where the limit settles latency is `tolerance` times the least: this is half of no queue
                self._limit = max(self._options.least, self._limit / (2 * self._options.tolerance))
        self._begin_window(now_s)

    def _move(self, latency_s: float) -> None:
        options = self._options
        gradient = options.tolerance * self.no_load_s / latency_s if latency_s > 0 else 1.0
        gradient = min(1.0, max(options.least_gradient, gradient))
        wanted = self._limit * gradient + max(1.0, options.headroom * math.sqrt(self._limit))
        if wanted > self._limit and self._most_in_flight < self._limit / 2:
            return  # the limit was not used: the measurement says nothing about a higher one
        self._is_exploring &= gradient == 1.0
        if self._is_exploring:
            moved = self._limit * 2
        else:
            moved = self._limit + options.smoothing * (wanted - self._limit)
        self._limit = min(float(self.most), max(float(options.least), moved))


_FULL = frozenset({Cause.BUSY, Cause.FIRST_BYTE, Cause.IDLE, Cause.TOTAL})


class AutoCapacity(HealthRule):
    """Sets the capacity of the nodes where it is `auto`."""

    def __init__(self, fleet: Fleet, options: CapacityOptions | None = None) -> None:
        self._fleet, self._options = fleet, options or CapacityOptions()
        self._limits: dict[int, AdaptiveLimit | None] = {}  # None = the node's capacity is fixed
        self._lost: dict[int, set[str]] = {}  # by node: whose attempts were lost since its last good answer

    def limit(self, node: Node) -> AdaptiveLimit | None:
        """The limit of a node that is `auto`; else None."""
        if node.idx not in self._limits:
            self._limits[node.idx] = self._new(node)
        return self._limits[node.idx]

    def _new(self, node: Node) -> AdaptiveLimit | None:
        spec = self._fleet.state(node).spec  # a change of `auto` makes it another node
        if not spec.auto:
            return None
        limit = AdaptiveLimit(spec.max_requests, self._options, self._fleet.loop.time())
        self._fleet.set_capacity(node, limit.limit)
        return limit

    def attempt_started(self, exchange: Exchange, attempt: Attempt) -> None:
        """A HealthRule method."""
        if attempt.node.idx not in self._limits:
            self.limit(attempt.node)

    def attempts_succeeded(self, successes: Sequence[Success]) -> None:
        """A HealthRule method."""
        limits = self._limits
        for exchange, attempt in successes:
            limit = limits.get(attempt.node.idx)  # made when the attempt started
            if limit is None:
                continue
            self._lost.pop(attempt.node.idx, None)
            latency_s, units = attempt.ended_s - attempt.begun_s, exchange.units or 1.0
            in_flight = attempt.node.in_flight + 1  # this one has just ended
            limit.sample(latency_s, units, in_flight, attempt.begun_s, self._fleet.loop.time())
            self._fleet.set_capacity(attempt.node, limit.limit)

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A HealthRule method."""
        limit = self.limit(attempt.node)
        if limit is not None and cause in _FULL and self._is_for_all(exchange, attempt.node):
            limit.lost(attempt.begun_s, self._fleet.loop.time())
            self._fleet.set_capacity(attempt.node, limit.limit)

    def _is_for_all(self, exchange: Exchange, node: Node) -> bool:
        """Whether the loss is about the node: not one that only one of several tenants has met."""
        tenants = self._lost.setdefault(node.idx, set())
        tenants.add(name_of(exchange.tenant))
        tenant = sole(tenants)
        return tenant is None or not self._fleet.tenant_holds.others_are_active(tenant)

    def node_removed(self, node: Node) -> None:
        """A HealthRule method."""
        self._lost.pop(node.idx, None)
        self._limits.pop(node.idx, None)
