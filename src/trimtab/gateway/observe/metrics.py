"""Counts metrics. Each event stores a tuple, and the tuples are counted in batches.

The number of labels is bounded: unknown models count as "other", and so do tenants, classes and codes beyond
a maximum. So clients cannot fill the gateway's memory with names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import inf
from operator import attrgetter, itemgetter
from platform import python_version
from typing import Any, Final

import numpy as np

from trimtab.gateway.decide.learning import LoadFigures
from trimtab.gateway.decide.registry import SignalFigures
from trimtab.gateway.decide.tenant_queues import QueueFigures
from trimtab.gateway.http.cached_answers import ResultCache
from trimtab.gateway.model import (
    Attempt,
    DecisionListener,
    Exchange,
    Health,
    LoadEvent,
    Node,
    Observer,
    Outcome,
    Tenant,
    Usage,
)
from trimtab.gateway.nodes.node_resources import ResourceUse
from trimtab.gateway.observe.metric_store import SAMPLE_S, SPAN_S, MetricStore
from trimtab.gateway.observe.private_counts import PrivateFigures
from trimtab.gateway.observe.timings import MOST_NOTED, Timings
from trimtab.gateway.observe.usage_observer import uncounted_reason
from trimtab.gateway.observe.window import Second
from trimtab.gateway.stalled_streams import StreamGaps
from trimtab.live.metric_family import Row
from trimtab.version import __version__

OTHER: Final = "other"
MOST_MODELS: Final = 500
MOST_TENANTS: Final = 200
MOST_CODES: Final = 64
MOST_KEPT: Final = 256  # ended requests per batch: bounds the time of one count
_How = tuple[str, str, str, int]  # model, kind, outcome and status: the labels of ended requests
_DONE, _REFUSED = Outcome.DONE, Outcome.REFUSED  # an enum looks its members up in Python
_FAILURES: Final = (Outcome.FAILED.value, Outcome.EXPIRED.value)
# attrgetter reads the columns in C; `_value_` is faster than `value`, which is a Python property.
_model_of, _kind_of, _value_of = attrgetter("model"), attrgetter("kind._value_"), attrgetter("_value_")
_last_of, _times_of = itemgetter(-1), attrgetter("begun_s", "first_byte_s", "ended_s")
_kept_of = attrgetter(  # the counted fields of an exchange, in one call, without its body
    "endpoint", "facts", "tenant", "usage", "outcome", "refusal", "response_status",
    "response_bytes", "streamed_chunks", "attempts", "arrived_s", "started_s", "estimate_s", "ended_s",
    "gaps",
)  # fmt: skip
_tokens_of = attrgetter("prompt_tokens", "completion_tokens", "cached_tokens")
_NODE_FAMILIES: Final = (
    "trimtab_in_flight",
    "trimtab_node_capacity",
    "trimtab_node_up",
    "trimtab_node_reported",
    "trimtab_node_served_total",
    "trimtab_node_failed_total",
)
_TENANT_QUEUE_FAMILIES: Final = {  # family → field of QueueFigures
    "trimtab_tenant_queue_held": "held",
    "trimtab_tenant_queue_at_nodes": "at_nodes",
    "trimtab_tenant_queue_share_ratio": "share_frac",
    "trimtab_tenant_queue_guarantee_ratio": "guarantee_frac",
    "trimtab_tenant_queue_limit_ratio": "limit_frac",
    "trimtab_tenant_queue_preempted_total": "preempted",
}
_SIGNAL_FAMILIES: Final = (
    "trimtab_node_foreign_requests",
    "trimtab_node_usd_per_hour",
    "trimtab_node_round_trip_seconds",
    "trimtab_node_link_gib_per_second",
    "trimtab_node_report_age_seconds",
    "trimtab_node_resource_capacity",
    "trimtab_node_resource_used",
    "trimtab_class_demand",
    "trimtab_item_load_seconds",
    "trimtab_node_item_resident",
)


def _each(of: Callable[[Any], str], them: Sequence[Any]) -> Iterable[str]:
    """The value for each item; OTHER for None."""
    return map(of, them) if all(them) else [OTHER if one is None else of(one) for one in them]


def _no_jobs() -> Mapping[str, int]:
    return {}


def _no_plans() -> Mapping[tuple[str, str], int]:
    return {}


def _nothing() -> Mapping[str, Any]:
    return {}


def _no_shadow() -> tuple[int, int]:
    return 0, 0


def _none() -> None:
    return None


def _zero() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of gauges. Read when metrics are read, or by `tick`."""

    nodes: Callable[[], Sequence[Node]] = tuple
    queue_length: Callable[[], int] = _zero
    jobs: Callable[[], Mapping[str, int]] = _no_jobs  # by state
    queue_by_model: Callable[[], Mapping[str, int]] = _nothing
    resources: Callable[[], Iterable[ResourceUse]] = tuple  # of nodes that are up and report
    recorder_dropped: Callable[[], int] = _zero
    results: Callable[[], ResultCache | None] = _none
    plans: Callable[[], Mapping[tuple[str, str], int]] = _no_plans  # by role and outcome
    signals: Callable[[], Mapping[str, SignalFigures]] = _nothing  # by node
    demand: Callable[[], Mapping[str, Mapping[str, float]]] = _nothing  # by class and resource
    loads: Callable[[], Sequence[LoadFigures]] = tuple
    private: Callable[[], Mapping[str, PrivateFigures]] = _nothing  # by tenant
    tenant_queues: Callable[[], Sequence[QueueFigures]] = tuple
    shadow: Callable[[], tuple[int, int]] = _no_shadow  # its decisions, and how many of them differ


class Metrics(Observer, DecisionListener):
    """The counts of this process. Call `tick` about four times a second.

    `clock` is the event loop's, in seconds: monotonic.
    """

    def __init__(self, clock: Callable[[], float], sources: Sources | None = None) -> None:
        self._clock = clock
        self._sources = sources or Sources()
        self._store = MetricStore()
        self._models: dict[str, str] = {}
        self._lines: dict[tuple[str, str], int] = {}  # model and kind → its place among the timings
        self._ends: dict[_How, tuple[int, Row]] = {}
        self._tenants: dict[str, tuple[Row, Row, Row, Row]] = {}
        self._codes: dict[str, Row] = {}
        self._bytes = self._store.row("trimtab_response_bytes_total")
        self._chunks = self._store.row("trimtab_stream_chunks_total")
        self._hedges = self._store.row("trimtab_hedges_total")
        self._timings = Timings()
        self._kept: list[tuple[Any, ...]] = []
        self._ticked_s = clock()
        self._second = self._store.seconds.setdefault(int(self._ticked_s), Second())

    def know_models(self, names: Iterable[str]) -> None:
        """Give these models (aliases and adapters too) their own labels. Call it again after a reload."""
        self._count()  # with the earlier labels
        self._models = {name: name for name in list(names)[:MOST_MODELS]}

    # --- events: called for every request; ends are kept and counted in batches

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count hedges and retries."""
        if attempt.hedge:
            self._hedges[0] += 1
        elif len(exchange.attempts) > 1:
            causes = [other.cause for other in exchange.attempts if other.cause is not None]
            if causes:
                self._store.row("trimtab_retries_total", causes[-1]._value_)[0] += 1

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count the cause."""
        if attempt.cause is not None:
            self._store.row("trimtab_attempts_lost_total", attempt.cause._value_)[0] += 1

    def loaded(self, event: LoadEvent) -> None:
        """Count a call that loads or unloads a model or adapter."""
        self._store.row("trimtab_loads_total", event.node.name, event.action, event.outcome)[0] += 1

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Keep the counted fields until the next tick or the next reading."""
        kept = self._kept
        kept.extend(map(_kept_of, exchanges))
        for exchange in exchanges:
            if exchange.usage is None and (reason := uncounted_reason(exchange)):
                node = exchange.attempts[-1].node.name
                self._store.row("trimtab_uncounted_answers_total", node, reason)[0] += 1
        if len(kept) >= MOST_KEPT:
            self._count()

    def _count(self) -> None:
        """Count the stored ends, in the current second."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        (
            endpoints, facts, tenants, usages, outcomes, refusals, answered, n_bytes, n_chunks,
            attempts, arrived_s, started_s, estimates_s, ended_s, gaps,
        ) = zip(*kept, strict=True)  # fmt: skip
        statuses = answered
        if any(refusals):
            statuses = tuple([s if r is None else r.status for s, r in zip(answered, refusals, strict=True)])
            for refusal in filter(None, refusals):
                self._code(refusal.code)[0] += 1
        models = map(self._models.get, _each(_model_of, facts), repeat(OTHER))
        kinds, hows = _each(_kind_of, endpoints), _each(_value_of, outcomes)
        lines = self._count_outcomes(list(zip(models, kinds, hows, statuses, strict=False)))
        self._count_tenants(tenants, usages)
        self._bytes[0] += sum(n_bytes)
        self._chunks[0] += sum(n_chunks)
        times_s = zip(arrived_s, started_s, estimates_s, ended_s, n_chunks, strict=True)
        self._note_times(list(zip(lines, outcomes, statuses, attempts, times_s, gaps, strict=True)))

    def _count_outcomes(self, hows: Sequence[_How]) -> list[int]:
        """Count outcomes. Returns the timings' line of each request."""
        ends, second = self._ends, self._second
        for how, count in Counter(hows).items():
            row = (ends.get(how) or self._new_end(*how))[1]
            row[0] += count
            outcome = how[2]
            second.requests += count
            if outcome == _REFUSED.value:
                second.refused += count
            elif outcome in _FAILURES:
                second.failed += count
        return [line for line, _ in map(ends.__getitem__, hows)]

    def _count_tenants(self, tenants: Sequence[Tenant | None], usages: Sequence[Usage | None]) -> None:
        used: defaultdict[str, list[Usage | None]] = defaultdict(list)
        for tenant, usage in zip(tenants, usages, strict=True):
            if tenant is not None:
                used[tenant.name].append(usage)
        for name, all_of_it in used.items():
            rows = self._tenants.get(name) or self._new_tenant(name)
            rows[0][0] += len(all_of_it)
            columns = map(_tokens_of, filter(None, all_of_it))
            for row, tokens in zip(rows[1:], zip(*columns, strict=True), strict=False):
                row[0] += sum(tokens)

    def _note_times(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """`rows`: line, outcome, status, attempts; arrival, start, estimate, end, and chunks; gaps."""
        rows = [row for row in rows if row[3] and row[1] is not _REFUSED]
        if not rows:
            return
        lines, outcomes, statuses, attempts, times_s, gaps = zip(*rows, strict=True)
        arrived_s, started_s, estimate_s, over_s, chunks = np.array(times_s).T
        begun_s, first_s, left_s = np.array(list(map(_times_of, map(_last_of, attempts)))).T
        ended_s = np.where(left_s, left_s, over_s)
        is_whole = np.array([one is _DONE for one in outcomes]) & (np.array(statuses) < 400)
        is_measured = is_whole & (estimate_s > 0.0)
        is_stream = is_whole & (first_s > 0.0)
        measured, measured_s = self._note_gaps(lines, gaps, is_stream)
        self._timings.note(
            lines,
            ended_s - arrived_s,
            started_s - arrived_s,
            np.where(first_s > 0.0, first_s - arrived_s, -1.0),
            np.where(is_measured, ended_s - begun_s, -1.0),
            estimate_s,
            np.where(is_stream, np.maximum(chunks - 1.0 - measured, 0.0), 0.0),
            np.maximum(ended_s - first_s - measured_s, 0.0),
        )
        if self._timings.n_noted >= MOST_NOTED:
            self._timings.count(self._second)

    def _note_gaps(
        self, lines: Sequence[int], gaps: Sequence[StreamGaps | None], is_stream: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Note the gaps that were measured one by one; returns their number and sum of each answer."""
        measured = np.zeros((2, len(lines)))
        for k, found in enumerate(gaps):
            if found is not None and is_stream[k]:
                self._timings.note_gaps(lines[k], found)
                measured[:, k] = found.number, found.sum_s
        return measured[0], measured[1]

    def policy_failed(self, policy: str) -> None:
        """A DecisionListener method."""
        self._store.row("trimtab_policy_failures_total", policy)[0] += 1

    # --- new labels

    def _new_end(self, model: str, kind: str, outcome: str, status: int) -> tuple[int, Row]:
        line = self._lines.get((model, kind))
        if line is None:
            line = self._lines[model, kind] = self._timings.new_line(model, kind)
        row = self._store.row("trimtab_requests_total", model, kind, outcome, f"{status // 100}xx")
        self._ends[model, kind, outcome, status] = line, row
        return line, row

    def _new_tenant(self, name: str) -> tuple[Row, Row, Row, Row]:
        if len(self._tenants) >= MOST_TENANTS and name != OTHER:
            return self._tenants.get(OTHER) or self._new_tenant(OTHER)
        row = self._store.row
        rows = self._tenants[name] = (
            row("trimtab_tenant_requests_total", name),
            row("trimtab_tokens_total", name, "prompt"),
            row("trimtab_tokens_total", name, "completion"),
            row("trimtab_tokens_total", name, "cached"),
        )
        return rows

    def _code(self, code: str) -> Row:
        found = self._codes.get(code)
        if found is None:
            label = code if len(self._codes) < MOST_CODES else OTHER
            found = self._store.row("trimtab_refusals_total", label)
            if label != OTHER:
                self._codes[code] = found
        return found

    # --- time and reading

    def tick(self) -> None:
        """Sample the use of the nodes, and begin a new second when it is due."""
        self._count()
        now_s = self._clock()
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        span = self._store.use.setdefault(int(now_s) // SPAN_S, {})
        for node in self._sources.nodes():
            use = span.get(node.name)
            if use is None:
                use = span[node.name] = [0.0, 0.0, 0.0]
            if node.health <= Health.SUSPECT and node.max_requests < inf:
                use[0] += min(node.in_flight, node.max_requests) * passed_s
                use[1] += passed_s if node.in_flight else 0.0
                use[2] += node.max_requests * passed_s
        self._timings.count(self._second)
        if int(now_s) not in self._store.seconds:
            self._second = Second(queue_length=self._sources.queue_length())
            self._store.seconds[int(now_s)] = self._second
            if int(now_s) % SAMPLE_S == 0:
                self._store.sample(int(now_s) // SPAN_S, self._sources.resources())
            self._store.forget(now_s)

    def store(self) -> MetricStore:
        """The counts with current gauges. This is the process's own store: do not change it."""
        self._count()
        store = self._store
        self._timings.count(self._second)
        self._timings.write(store)
        self._write_nodes()
        self._write_signals()
        store.set("trimtab_queue_length", self._sources.queue_length())
        self._write_queues()
        for state, count in self._sources.jobs().items():
            store.set("trimtab_jobs", count, state)
        for how, count in self._sources.plans().items():
            store.set("trimtab_plans_total", count, *how)
        for name, count in zip(("decisions", "disagreements"), self._sources.shadow(), strict=True):
            store.set(f"trimtab_shadow_{name}_total", count)
        self._write_private()
        store.set("trimtab_recorder_dropped_total", self._sources.recorder_dropped())
        if (results := self._sources.results()) is not None:
            store.set("trimtab_result_cache_requests_total", results.hits, "hit")
            store.set("trimtab_result_cache_requests_total", results.misses, "miss")
            store.set("trimtab_result_cache_entries", len(results))
            store.set("trimtab_result_cache_bytes", results.n_bytes)
        store.set("trimtab_build_info", 1, __version__, python_version())
        return store

    def _write_private(self) -> None:
        store = self._store
        for name, figures in self._sources.private().items():
            store.set("trimtab_tenant_requests_total", figures.requests, name)
            store.set("trimtab_tokens_total", figures.prompt_tokens, name, "prompt")
            store.set("trimtab_tokens_total", figures.output_tokens, name, "completion")
            store.set("trimtab_tenant_failed_total", figures.failed, name)
            store.set("trimtab_tenant_service_seconds_total", figures.service_s, name)
            store.set("trimtab_tenant_epsilon", figures.epsilon, name)

    def _write_nodes(self) -> None:
        store = self._store
        for family in _NODE_FAMILIES:
            store.table(family).clear()  # a node that was removed has no state
        for node in self._sources.nodes():
            store.set("trimtab_in_flight", node.in_flight, node.name)
            store.set("trimtab_node_capacity", node.max_requests, node.name)
            store.set("trimtab_node_up", float(node.health <= Health.SUSPECT), node.name)
            store.set("trimtab_node_served_total", node.served, node.name)
            store.set("trimtab_node_failed_total", node.failed, node.name)
            for figure, value in node.reported.items():
                store.set("trimtab_node_reported", value, node.name, figure)

    def _write_queues(self) -> None:
        table = self._store.table("trimtab_model_queue_length")
        for row in table.values():  # a model that has waited once stays, at 0
            row[0] = 0.0
        for model, count in self._sources.queue_by_model().items():
            self._store.row("trimtab_model_queue_length", self._models.get(model, OTHER))[0] += count

        queues = self._sources.tenant_queues()
        for family, field in _TENANT_QUEUE_FAMILIES.items():
            self._store.table(family).clear()  # a queue that was removed has no state
            for queue in queues:
                self._store.set(family, queue[field], queue["queue"])  # type: ignore[literal-required]

    def _write_signals(self) -> None:
        store = self._store
        for family in _SIGNAL_FAMILIES:
            store.table(family).clear()
        for node, figures in self._sources.signals().items():
            store.set("trimtab_node_foreign_requests", figures["foreign_requests"], node)
            store.set("trimtab_node_usd_per_hour", figures["usd_per_hour"], node)
            if figures["round_trip_s"] is not None:
                store.set("trimtab_node_round_trip_seconds", figures["round_trip_s"], node)
            if figures["nic_gib_per_s"] is not None:
                store.set("trimtab_node_link_gib_per_second", figures["nic_gib_per_s"], node)
            for source, age_s in figures["report_age_s"].items():
                store.set("trimtab_node_report_age_seconds", age_s, node, source)
            for resource, amounts in figures["resources"].items():
                store.set("trimtab_node_resource_capacity", amounts["capacity"], node, resource)
                store.set("trimtab_node_resource_used", amounts["used"], node, resource)
            for item in figures["resident"]:
                store.set("trimtab_node_item_resident", 1, node, item)
        for name, demand in self._sources.demand().items():
            for resource, amount in demand.items():
                store.set("trimtab_class_demand", amount, name, resource)
        for load in self._sources.loads():
            store.set("trimtab_item_load_seconds", load["load_s"], load["item"], load["type"])
