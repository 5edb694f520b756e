"""Outlier ejection: nodes that do worse than the others get no work for a growing time.

*Source*: Envoy's outlier detection (documentation, "Outlier detection": consecutive errors, success rate
against the mean less 1.9 standard deviations, ejection time × number of ejections, most ejected part).
*Deviations*: a node is compared with the others without itself, since one bad node among few widens the
deviation; latency is relative to the prediction for the request, so that a slow type of node is no outlier; a
node comes back on trial, with slow start; failures count by how much the tenant's requests fail elsewhere
(`tenant_failures`), so that one tenant's bad requests eject no node for the others.

Ejection never withholds more than `max_ejected_frac` of the nodes for faults; a node beyond that gets work,
and the fleet reports it as a problem.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health_rule import HealthRule, Success
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.gateway.nodes.tenant_failures import TenantFailures

_NO_FAULTS = (
    Cause.BUSY,
    Cause.CONNECT,
    Cause.RATE_LIMITED,
    Cause.LOAD,
)  # the first two are the circuit breaker's


@dataclass(frozen=True, slots=True)
class EjectionOptions:
    """When nodes are ejected, and for how long."""

    is_on: bool = True
    consecutive: int = 5  # failures in a row
    most_chance: float = (
        0.01  # of such a row by the tenants' own failure rates, else the node is not to blame
    )
    most_trial_chance: float = 0.5  # the same for a node on trial
    period_s: float = 5.0  # how often nodes are compared
    least_attempts: int = 20  # of a node in a period, to be compared
    least_nodes: int = 3  # with that many attempts
    deviations: float = 1.9
    least_gap_frac: float = 0.1  # a success rate that close to the others' is no outlier
    latency_factor: float = 3.0  # so many times the others' median of measured over predicted
    base_ejection_s: float = 5.0  # times the number of ejections in a row
    max_ejection_s: float = 120.0
    max_ejected_frac: float = 0.5


@dataclass(slots=True)
class _Record:
    """The results of one node in this period, and its ejections."""

    good: int = 0
    bad: float = 0.0  # each failure counts by the part that the node is to blame for
    timed: int = 0
    ratio_sum: float = 0.0
    row: Counter[str] = field(default_factory=Counter)  # failures in a row, by tenant
    ejections: int = 0
    ejected_s: float = float("-inf")

    @property
    def attempts(self) -> float:
        return self.good + self.bad

    @property
    def good_frac(self) -> float:
        return self.good / self.attempts

    @property
    def ratio(self) -> float:
        return self.ratio_sum / self.timed

    def begin_period(self) -> None:
        self.good = self.timed = 0
        self.bad = self.ratio_sum = 0.0


class OutlierEjection(HealthRule):
    """Compares the success rates and latencies of nodes."""

    def __init__(self, fleet: Fleet, options: EjectionOptions | None = None) -> None:
        self._fleet, self._options = fleet, options or EjectionOptions()
        self._records: dict[int, _Record] = {}
        self._tenants = TenantFailures()
        self._task = PeriodicTask(
            "ejection", self._compare_all, self._options.period_s, first_after_s=self._options.period_s
        )

    def start(self) -> None:
        """Compare nodes from now on."""
        if self._options.is_on:
            self._task.start()

    async def close(self) -> None:
        """Stop comparing. `start` begins again."""
        await self._task.close()

    def attempts_succeeded(self, successes: Sequence[Success]) -> None:
        """A HealthRule method."""
        records, succeeded = self._records, self._tenants.succeeded
        for exchange, attempt in successes:
            record = records.get(attempt.node.idx) or self._record(attempt.node)
            record.good += 1
            if record.row:
                record.row.clear()
            succeeded(exchange.tenant)
            estimate_s = exchange.estimate_s
            if estimate_s > 0.0:
                record.timed += 1
                record.ratio_sum += (attempt.ended_s - attempt.begun_s) / estimate_s

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A HealthRule method."""
        if cause in _NO_FAULTS:
            return
        record = self._record(attempt.node)
        if attempt.begun_s < record.ejected_s:  # it began before the ejection
            return
        node_idx, tenants = attempt.node.idx, self._tenants
        tenant = tenants.failed(exchange.tenant, node_idx)
        record.row[tenant] += 1
        record.bad += 1.0 - tenants.failure_frac(tenant, node_idx)
        chance, length = tenants.chance_of(record.row, node_idx), record.row.total()
        options, is_trial = self._options, self._fleet.state(attempt.node).is_on_trial
        is_long = length >= options.consecutive and chance <= options.most_chance
        if is_long or (is_trial and chance <= options.most_trial_chance):
            self.eject(attempt.node, f"{length} failures in a row, the last: {cause.value}")

    def node_removed(self, node: Node) -> None:
        """A HealthRule method."""
        self._records.pop(node.idx, None)

    def eject(self, node: Node, reason: str) -> bool:
        """Eject the node, unless too many are withheld; returns whether it was ejected."""
        options, fleet = self._options, self._fleet
        if not options.is_on or Hold.OUTLIER in fleet.state(node).holds:
            return False
        most = int(options.max_ejected_frac * fleet.n_staying())
        is_counted = bool(fleet.state(node).holds)
        if not is_counted and fleet.n_withheld_for_faults() >= most:
            fleet.report(f"ejection of {node.name}", f"not ejected, too many are withheld: {reason}")
            return False
        record = self._record(node)
        record.ejections += 1
        record.row.clear()
        record.ejected_s = fleet.loop.time()
        for_s = min(options.max_ejection_s, options.base_ejection_s * record.ejections)
        fleet.report(f"ejection of {node.name}", "")
        fleet.hold(node, Hold.OUTLIER, f"ejected for {for_s:g} s: {reason}", for_s)
        return True

    def compare(self) -> None:
        """Eject the outliers of the period that ends now."""
        candidates = [node for node in self._fleet.present() if self._fleet.gets_work(node)]
        rated = [node for node in candidates if self._record(node).attempts >= self._options.least_attempts]
        timed = [node for node in candidates if self._record(node).timed >= self._options.least_attempts]
        found = self._bad_rates(rated) | self._bad_latencies(timed)
        for node, reason in found.items():
            self.eject(node, reason)
        for node in candidates:
            record = self._record(node)
            if node not in found and record.attempts and not record.bad:
                record.ejections = max(0, record.ejections - 1)
                self._fleet.report(f"ejection of {node.name}", "")
            record.begin_period()
        self._tenants.age()

    def _bad_rates(self, nodes: list[Node]) -> dict[Node, str]:
        found: dict[Node, str] = {}
        for node, others in self._each_against_others(nodes):
            rates = [self._record(other).good_frac for other in others]
            allowance = max(self._options.least_gap_frac, self._options.deviations * statistics.pstdev(rates))
            rate, least = self._record(node).good_frac, statistics.fmean(rates) - allowance
            if rate < least:
                found[node] = f"success rate {rate:.3g}, the others' {statistics.fmean(rates):.3g}"
        return found

    def _bad_latencies(self, nodes: list[Node]) -> dict[Node, str]:
        found: dict[Node, str] = {}
        for node, others in self._each_against_others(nodes):
            ratio = self._record(node).ratio
            median = statistics.median(self._record(other).ratio for other in others)
            if ratio > self._options.latency_factor * median:
                found[node] = f"takes {ratio:.3g} × the prediction, the others {median:.3g} ×"
        return found

    def _each_against_others(self, nodes: list[Node]) -> list[tuple[Node, list[Node]]]:
        if len(nodes) < self._options.least_nodes:
            return []
        return [(node, [other for other in nodes if other is not node]) for node in nodes]

    def _record(self, node: Node) -> _Record:
        record = self._records.get(node.idx)
        if record is None:
            record = self._records[node.idx] = _Record()
        return record

    async def _compare_all(self) -> None:
        self.compare()
