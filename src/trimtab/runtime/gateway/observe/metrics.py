"""Counting: an Observer whose events cost additions to plain numbers.

Every label is bounded: models that nobody configured count as "other", and so do tenants, classes and codes
beyond the first of their kind. So a client cannot make the gateway remember names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from platform import python_version
from typing import Final

from trimtab.runtime.gateway.model import Attempt, Exchange, Health, Node, Outcome, Tenant
from trimtab.runtime.gateway.observe.book import SPAN_S, Book, Row
from trimtab.runtime.gateway.observe.timings import MOST_NOTED, Timings
from trimtab.runtime.gateway.observe.window import Second
from trimtab.version import __version__

OTHER: Final = "other"
MOST_MODELS: Final = 500
MOST_TENANTS: Final = 200
MOST_CODES: Final = 64
_NODE_FAMILIES: Final = (
    "trimtab_in_flight",
    "trimtab_node_capacity",
    "trimtab_node_up",
    "trimtab_node_reported",
    "trimtab_node_served_total",
    "trimtab_node_failed_total",
)


def _no_jobs() -> Mapping[str, int]:
    return {}


def _zero() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom to ask for what is a state and not an event. Asked when somebody reads, or by `tick`."""

    nodes: Callable[[], Sequence[Node]] = tuple
    queue_length: Callable[[], int] = _zero
    jobs: Callable[[], Mapping[str, int]] = _no_jobs  # by state
    recorder_dropped: Callable[[], int] = _zero


@dataclass(slots=True)
class _Line:
    """One model and kind: its place among the timings, and its counts by outcome and status // 100."""

    idx: int
    model: str
    kind: str
    ended: dict[tuple[str, int], Row] = field(default_factory=dict)


class Metrics:
    """The counts of this process. `tick` is to be called about four times a second.

    `clock` is the event loop's, in seconds: monotonic, and one for all processes of the machine.
    """

    def __init__(self, clock: Callable[[], float], sources: Sources | None = None) -> None:
        self._clock = clock
        self._sources = sources or Sources()
        self._book = Book()
        self._models: dict[str, str] = {}
        self._lines: dict[tuple[str, str], _Line] = {}
        self._tenants: dict[str, tuple[Row, Row, Row, Row]] = {}
        self._codes: dict[str, Row] = {}
        self._bytes = self._book.row("trimtab_response_bytes_total")
        self._chunks = self._book.row("trimtab_stream_chunks_total")
        self._hedges = self._book.row("trimtab_hedges_total")
        self._shadow = self._book.row("trimtab_shadow_decisions_total")
        self._differs = self._book.row("trimtab_shadow_disagreements_total")
        self._timings = Timings()
        self._ticked_s = clock()
        self._second = self._book.seconds.setdefault(int(self._ticked_s), Second())

    def know_models(self, names: Iterable[str]) -> None:
        """These models (aliases and adapters too) get labels of their own; call it again after a reload."""
        self._models = {name: name for name in list(names)[:MOST_MODELS]}

    # --- events: called for every request, so no look-ups by family and no strings are made here

    def arrived(self, exchange: Exchange) -> None:
        """Nothing: what counts is how it ends."""

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count hedges and retries."""
        if attempt.hedge:
            self._hedges[0] += 1
            return
        cause = None
        for other in exchange.attempts:
            if other.cause is not None:
                cause = other.cause
        if cause is not None:
            self._book.row("trimtab_retries_total", cause._value_)[0] += 1

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count the cause."""
        if attempt.cause is not None:
            self._book.row("trimtab_attempts_lost_total", attempt.cause._value_)[0] += 1

    def ended(self, exchange: Exchange) -> None:
        """Count the outcome and the times of a request."""
        facts, endpoint, outcome = exchange.facts, exchange.endpoint, exchange.outcome
        model = self._models.get(facts.model, OTHER) if facts is not None else OTHER
        # `_value_`: `value` is a Python-level property, and enums hash in Python
        kind = endpoint.kind._value_ if endpoint is not None else OTHER
        line = self._lines.get((model, kind)) or self._new_line(model, kind)
        refusal, status = exchange.refusal, exchange.response_status
        if refusal is not None:
            status = refusal.status
            self._code(refusal.code)[0] += 1
        how = (outcome._value_ if outcome is not None else OTHER, status // 100)
        row = line.ended.get(how) or self._new_ended(line, *how)
        row[0] += 1
        second = self._second
        second.requests += 1
        if outcome is Outcome.REFUSED:
            second.refused += 1
        elif exchange.attempts:
            self._note_times(exchange, line, exchange.attempts[-1])
        if outcome is Outcome.FAILED or outcome is Outcome.EXPIRED:
            second.failed += 1
        if exchange.tenant is not None:
            self._count_tenant(exchange, exchange.tenant)
        self._bytes[0] += exchange.response_bytes
        self._chunks[0] += exchange.streamed_chunks

    def _note_times(self, exchange: Exchange, line: _Line, attempt: Attempt) -> None:
        arrived_s, first_byte_s, service_s = exchange.arrived_s, -1.0, -1.0
        ended_s = attempt.ended_s or self._clock()
        if attempt.first_byte_s > 0.0:
            first_byte_s = attempt.first_byte_s - arrived_s
        estimate_s = exchange.estimate_s
        if estimate_s > 0.0 and exchange.outcome is Outcome.DONE and exchange.response_status < 400:
            service_s = ended_s - attempt.begun_s
        wait_s = exchange.started_s - arrived_s
        noted = self._timings.noted
        noted.extend((line.idx, ended_s - arrived_s, wait_s, first_byte_s, service_s, estimate_s))
        if len(noted) >= MOST_NOTED:
            self._timings.count(self._second)

    def _count_tenant(self, exchange: Exchange, tenant: Tenant) -> None:
        rows = self._tenants.get(tenant.name) or self._new_tenant(tenant.name)
        rows[0][0] += 1
        usage = exchange.usage
        if usage is not None:
            rows[1][0] += usage.prompt_tokens
            rows[2][0] += usage.completion_tokens
            rows[3][0] += usage.cached_tokens

    def shadow_decided(self, agrees: bool) -> None:
        """The shadow policy decided about a request too."""
        self._shadow[0] += 1
        if not agrees:
            self._differs[0] += 1

    def policy_failed(self, policy: str) -> None:
        """The policy raised or returned nonsense, and least connections decided instead."""
        self._book.row("trimtab_policy_failures_total", policy)[0] += 1

    # --- first of their kind

    def _new_line(self, model: str, kind: str) -> _Line:
        line = self._lines[model, kind] = _Line(self._timings.new_line(model, kind), model, kind)
        return line

    def _new_ended(self, line: _Line, outcome: str, code_class: int) -> Row:
        row = self._book.row("trimtab_requests_total", line.model, line.kind, outcome, f"{code_class}xx")
        line.ended[outcome, code_class] = row
        return row

    def _new_tenant(self, name: str) -> tuple[Row, Row, Row, Row]:
        if len(self._tenants) >= MOST_TENANTS and name != OTHER:
            return self._tenants.get(OTHER) or self._new_tenant(OTHER)
        row = self._book.row
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
            found = self._book.row("trimtab_refusals_total", label)
            if label != OTHER:
                self._codes[code] = found
        return found

    # --- time and reading

    def tick(self) -> None:
        """Let time pass: sample the nodes' use and begin a new second where one has begun."""
        now_s = self._clock()
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        span = self._book.use.setdefault(int(now_s) // SPAN_S, {})
        for node in self._sources.nodes():
            use = span.get(node.name)
            if use is None:
                use = span[node.name] = [0.0, 0.0, 0.0]
            if node.health <= Health.SUSPECT and node.max_requests < inf:
                use[0] += min(node.in_flight, node.max_requests) * passed_s
                use[1] += passed_s if node.in_flight else 0.0
                use[2] += node.max_requests * passed_s
        self._timings.count(self._second)
        if int(now_s) not in self._book.seconds:
            self._second = Second(queue_length=self._sources.queue_length())
            self._book.seconds[int(now_s)] = self._second
            self._book.forget(now_s)

    def book(self) -> Book:
        """The counts with the gauges as they are now: this process's own, not to be changed."""
        book = self._book
        self._timings.count(self._second)
        self._timings.write(book)
        self._write_nodes()
        book.set("trimtab_queue_length", self._sources.queue_length())
        for state, count in self._sources.jobs().items():
            book.set("trimtab_jobs", count, state)
        book.set("trimtab_recorder_dropped_total", self._sources.recorder_dropped())
        book.set("trimtab_workers", 1)
        book.set("trimtab_build_info", 1, __version__, python_version())
        return book

    def _write_nodes(self) -> None:
        book = self._book
        for family in _NODE_FAMILIES:
            book.table(family).clear()  # a node that was removed has no state
        for node in self._sources.nodes():
            book.set("trimtab_in_flight", node.in_flight, node.name)
            book.set("trimtab_node_capacity", node.max_requests, node.name)
            book.set("trimtab_node_up", float(node.health <= Health.SUSPECT), node.name)
            book.set("trimtab_node_served_total", node.served, node.name)
            book.set("trimtab_node_failed_total", node.failed, node.name)
            for figure, value in node.reported.items():
                book.set("trimtab_node_reported", value, node.name, figure)

    def snapshot(self) -> bytes:
        """All counts, for the process that adds them up: `Book.from_bytes`, then `Book.merge`."""
        return self.book().to_bytes()
