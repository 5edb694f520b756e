"""Outlier ejection: nodes that do worse than the others get no work for a growing time.

*Source*: Envoy's outlier detection (documentation, "Outlier detection": consecutive errors, success rate
against the mean less 1.9 standard deviations, ejection time × number of ejections, most ejected part).
*Deviations*: a node is compared with the others without itself, since one bad node among few widens the
deviation; latency is relative to the prediction for the request, so that a slow type of node is no outlier; a
node comes back on trial, with slow start; failures count by how much the tenant's requests fail elsewhere
(`tenant_failures`); what only one tenant has met ejects the node for this tenant (`tenant_holds`), and a
comparison that one tenant's requests decide does so too.

Ejection never withholds more than `max_ejected_frac` of the nodes for faults; a node beyond that gets work,
and the fleet reports it as a problem.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.gateway.model import Attempt, Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health_rule import HealthRule, Success
from trimtab.gateway.nodes.node_state import Hold
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.gateway.nodes.tenant_holds import TenantFailures, name_of, sole

_Found = tuple[str, str | None]  # a reason, and the tenant that alone has met it

_NO_FAULTS = (
    Cause.BUSY,
    Cause.CONNECT,
    Cause.RATE_LIMITED,
    Cause.LOAD,
    Cause.PREEMPTED,
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
class _Tally:
    """Attempts of a period."""

    good: int = 0
    bad: float = 0.0  # each failure counts by the part that the node is to blame for
    timed: int = 0
    ratio_sum: float = 0.0  # measured over predicted

    @property
    def attempts(self) -> float:
        return self.good + self.bad

    @property
    def good_frac(self) -> float:
        return self.good / self.attempts

    @property
    def ratio(self) -> float:
        return self.ratio_sum / self.timed


def _sum(tallies: Iterable[_Tally]) -> _Tally:
    total = _Tally()
    for tally in tallies:
        total.good += tally.good
        total.bad += tally.bad
        total.timed += tally.timed
        total.ratio_sum += tally.ratio_sum
    return total


@dataclass(slots=True)
class _Record:
    """The results of one node in this period, and its ejections."""

    tallies: dict[str, _Tally] = field(default_factory=dict)  # by tenant
    row: Counter[str] = field(default_factory=Counter)  # failures since its last good answer, by tenant
    ejections: Counter[str | None] = field(default_factory=Counter)  # of one tenant's requests; None = of all
    ejected_s: dict[str | None, float] = field(default_factory=dict)  # when last, by whom it holds for

    def tally(self, tenant: str) -> _Tally:
        """The attempts of a tenant."""
        found = self.tallies.get(tenant)
        if found is None:
            found = self.tallies[tenant] = _Tally()
        return found

    def last_ejected_s(self, tenant: str) -> float:
        """When the node was last ejected for this tenant or for all; −inf = never."""
        return max(self.ejected_s.get(name, float("-inf")) for name in (tenant, None))

    def total(self) -> _Tally:
        """The attempts of all tenants."""
        return _sum(self.tallies.values())

    def without_worst(self, badness: Callable[[_Tally], float]) -> tuple[_Tally, str]:
        """The attempts of all tenants but the worst one, and this one's name."""
        worst = max(self.tallies, key=lambda name: badness(self.tallies[name]))
        return _sum(tally for name, tally in self.tallies.items() if name != worst), worst


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
            tally = record.tally(succeeded(exchange.tenant))
            tally.good += 1
            if record.row:
                record.row.clear()
            estimate_s = exchange.estimate_s
            if estimate_s > 0.0:
                tally.timed += 1
                tally.ratio_sum += (attempt.ended_s - attempt.begun_s) / estimate_s

    def attempt_failed(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """A HealthRule method."""
        if cause in _NO_FAULTS:
            return
        record = self._record(attempt.node)
        if attempt.begun_s < record.last_ejected_s(name_of(exchange.tenant)):
            return
        node_idx, tenants = attempt.node.idx, self._tenants
        tenant = tenants.failed(exchange.tenant, node_idx)
        record.row[tenant] += 1
        record.tally(tenant).bad += 1.0 - tenants.failure_frac(tenant, node_idx)
        chance, length = tenants.chance_of(record.row, node_idx), record.row.total()
        options, is_trial = self._options, self._fleet.state(attempt.node).is_on_trial
        is_long = length >= options.consecutive and chance <= options.most_chance
        if is_long or (is_trial and chance <= options.most_trial_chance):
            reason = f"{length} failures in a row, the last: {cause.value}"
            self.eject(attempt.node, reason, sole(record.row))

    def node_removed(self, node: Node) -> None:
        """A HealthRule method."""
        self._records.pop(node.idx, None)

    def eject(self, node: Node, reason: str, tenant: str | None = None) -> bool:
        """Eject the node, unless too many are withheld; returns whether it was ejected.

        `tenant`: the one that alone has met the reason; None = several have.
        """
        options, fleet, record = self._options, self._fleet, self._record(node)
        if not options.is_on or Hold.OUTLIER in fleet.state(node).holds:
            return False
        holds = fleet.tenant_holds
        only_for = tenant if tenant is not None and holds.others_are_active(tenant) else None
        if only_for is None and self._are_too_many_withheld(node):
            fleet.report(f"ejection of {node.name}", f"not ejected, too many are withheld: {reason}")
            return False
        if only_for is not None and holds.until_s(node, Hold.OUTLIER, only_for) > fleet.loop.time():
            return False  # part of the burst that it is ejected for
        record.ejections[only_for] += 1
        record.ejected_s[only_for] = fleet.loop.time()
        for_s = min(options.max_ejection_s, options.base_ejection_s * record.ejections[only_for])
        fleet.report(f"ejection of {node.name}", "")
        fleet.hold_for(node, Hold.OUTLIER, f"ejected for {for_s:g} s: {reason}", for_s, tenant)
        return True

    def _are_too_many_withheld(self, node: Node) -> bool:
        fleet = self._fleet
        most = int(self._options.max_ejected_frac * fleet.n_staying())
        return not fleet.state(node).holds and fleet.n_withheld_for_faults() >= most

    def compare(self) -> None:
        """Eject the outliers of the period that ends now."""
        candidates = [node for node in self._fleet.present() if self._fleet.gets_work(node)]
        totals = {node: self._record(node).total() for node in candidates}
        rated = [node for node in candidates if totals[node].attempts >= self._options.least_attempts]
        timed = [node for node in candidates if totals[node].timed >= self._options.least_attempts]
        found = self._bad_rates(rated, totals) | self._bad_latencies(timed, totals)
        for node, (reason, tenant) in found.items():
            self.eject(node, reason, tenant)
        for node in candidates:
            record, total = self._record(node), totals[node]
            if node not in found and total.attempts and not total.bad:
                record.ejections -= Counter(dict.fromkeys(record.ejections, 1))
                self._fleet.report(f"ejection of {node.name}", "")
            record.tallies.clear()
        self._tenants.age()

    def _bad_rates(self, nodes: list[Node], totals: Mapping[Node, _Tally]) -> dict[Node, _Found]:
        found: dict[Node, _Found] = {}
        for node, others in self._each_against_others(nodes):
            rates = [totals[other].good_frac for other in others]
            allowance = max(self._options.least_gap_frac, self._options.deviations * statistics.pstdev(rates))
            least = statistics.fmean(rates) - allowance
            if totals[node].good_frac < least:
                reason = (
                    f"success rate {totals[node].good_frac:.3g}, the others' {statistics.fmean(rates):.3g}"
                )
                rest, worst = self._record(node).without_worst(lambda tally: tally.bad)
                is_so_for_all = rest.attempts >= self._options.least_attempts and rest.good_frac < least
                found[node] = reason, None if is_so_for_all else worst
        return found

    def _bad_latencies(self, nodes: list[Node], totals: Mapping[Node, _Tally]) -> dict[Node, _Found]:
        found: dict[Node, _Found] = {}
        for node, others in self._each_against_others(nodes):
            median = statistics.median(totals[other].ratio for other in others)
            most = self._options.latency_factor * median
            if totals[node].ratio > most:
                reason = f"takes {totals[node].ratio:.3g} × the prediction, the others {median:.3g} ×"
                rest, worst = self._record(node).without_worst(lambda tally: tally.ratio_sum)
                is_so_for_all = rest.timed >= self._options.least_attempts and rest.ratio > most
                found[node] = reason, None if is_so_for_all else worst
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
