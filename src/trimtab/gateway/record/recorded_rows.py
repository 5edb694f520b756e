"""Converts traffic to lines of the recording format that `trimtab.traces.gateway_format` defines."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from trimtab.gateway.model import Attempt, Exchange, Facts, Node, Usage
from trimtab.gateway.nodes.planned_outages import LARGE_BYTES
from trimtab.gateway.record.pseudonyms import Pseudonyms
from trimtab.gateway.record.redaction import HOUR_S, PROFILES, Profile, coarse, two_digits
from trimtab.traces.gateway_format import VERSION, ClassRow, NodeRow, RecordName, Redaction, RequestRow

if TYPE_CHECKING:
    from trimtab.domain.view import Plan  # which loads kernels

TICKS_PER_S: Final = 1e6  # times are written in whole microseconds
_NEVER_S: Final = float("inf")
LEAST_CHANGE_FRAC: Final = 0.02  # of a capacity: smaller changes of its use are not recorded
MOST_PLANNED: Final = 4096  # largest recorded field of a plan, in numbers

CandidatesOf = Callable[[Any], Sequence[int]]
"""A decision's node positions, best first."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that a recording needs besides the requests; taken at the start and at every rotation."""

    policy: str  # as `--policy` takes it
    nodes: Sequence[Node]
    classes: Sequence[ClassRow]  # by Exchange.class_idx
    seed: int = 0
    shadow: str = ""
    options: Mapping[str, int] = field(default_factory=dict)  # held_max, lookahead, max_retries, dispatchers
    in_flight: Sequence[Exchange] = ()  # at nodes
    queued: Sequence[Exchange] = ()


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals of all nodes, by position, and what is declared or learned of classes and tenants."""

    resources: Sequence[str] = ()  # of which some node's capacity is known
    capacity: Sequence[Sequence[float]] = ()  # [nodes, resources]
    used_by_others_frac: Sequence[Sequence[float]] = ()  # [nodes, resources], of the capacity
    demand: Mapping[str, Sequence[float]] = field(default_factory=dict)  # class → [resources]
    holding_cost: Mapping[str, float] = field(default_factory=dict)  # class → where it is not 1
    weight: Sequence[float] = ()  # [nodes], of a slot
    usd_per_hour: Sequence[float] = ()  # [nodes]
    zone: Sequence[str] = ()  # [nodes]
    zones: Sequence[str] = ()  # all; the gateway's own first
    rtt_s: Sequence[Sequence[float]] = ()  # [zones, zones]
    nic_gib_per_s: Sequence[float] = ()  # [nodes]; inf = unknown
    zone_gib_per_s: Sequence[float] = ()  # [zones], of the link into each; inf = no limit
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # tenant → where it is not 1


KEPT: Final = (  # of an exchange, until it is written; no body, no identifier
    "ended_s", "arrived_s", "class_idx", "endpoint", "facts", "tenant", "session", "priority", "deadline_s",
    "units", "actual_units", "estimate_s", "decision", "started_s", "attempts", "body_bytes", "usage",
    "outcome", "refusal",
)  # fmt: skip
_ENDPOINT, _FACTS = KEPT.index("endpoint"), KEPT.index("facts")


def line(record: RecordName, at_s: float, **fields: Any) -> bytes:
    """A line that is not a request."""
    return orjson.dumps({"record": record, "at_s": round(at_s, 6), **fields}) + b"\n"


def head_line(
    snapshot: Snapshot, at_s: float, recording: str, started_at_s: float, redact: Redaction
) -> bytes:
    """The first line of every file. `started_at_s`: seconds since 1970."""
    if not PROFILES[redact].is_exact:
        started_at_s = started_at_s // HOUR_S * HOUR_S
    return line(
        "head",
        at_s,
        format=VERSION,
        recording=recording,
        worker=0,  # several processes may have written one recording: readers tell them apart by it
        process=os.getpid(),
        started_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_at_s)),
        redact=redact,
        policy=snapshot.policy,
        shadow=snapshot.shadow,
        seed=snapshot.seed,
        nodes=[node_row(node) for node in snapshot.nodes],
        classes=snapshot.classes,
        options=dict(snapshot.options),
    )


def node_row(node: Node) -> NodeRow:
    """A node without its address and credentials."""
    return {
        "idx": node.idx,
        "name": node.name,
        "type": node.type_name or node.name,
        "slots": node.max_requests,
        "max_tokens": node.max_tokens,
        "health": node.health.name.lower(),
    }


def plan_row(plan: Plan) -> dict[str, Any]:
    """A plan without unused fields. Of large fields only the shape is recorded."""
    used = {name: values for name, values in plan._asdict().items() if values.size}
    return {
        name: values.tolist() if values.size <= MOST_PLANNED else {"shape": values.shape}
        for name, values in used.items()
    }


def state_line(snapshot: Snapshot, at_s: float, begun_s: float, *, is_exact: bool = True) -> bytes:
    """Requests in flight and in the queue. Each request gets its own line when it ends."""
    return line(
        "state",
        at_s,
        in_flight=[_waiting(exchange, begun_s, is_exact=is_exact) for exchange in snapshot.in_flight],
        queued=[_waiting(exchange, begun_s, is_exact=is_exact) for exchange in snapshot.queued],
    )


def _waiting(exchange: Exchange, begun_s: float, *, is_exact: bool) -> dict[str, Any]:
    arrival_s = exchange.arrived_s - begun_s
    return {
        "arrival_s": round(arrival_s, 6) if is_exact else float(math.floor(arrival_s)),
        "units": exchange.units if is_exact else two_digits(exchange.units),
        "class_idx": exchange.class_idx,
        "node": exchange.attempts[-1].node.idx if exchange.attempts else -1,
    }


def signals_row(signals: Signals, tenant_weights: Mapping[str, float]) -> dict[str, Any]:
    """All signals but use. `tenant_weights`: by the names that the recording gives to tenants."""
    row = asdict(signals)
    del row["used_by_others_frac"]
    row |= {name: _finite(row[name]) for name in ("nic_gib_per_s", "zone_gib_per_s")}
    return row | {"tenant_weights": dict(tenant_weights)}


def _finite(amounts: Sequence[float]) -> list[float | None]:
    """JSON has no infinity."""
    return [amount if math.isfinite(amount) else None for amount in amounts]


class UseThinning:
    """Leaves out use that has hardly changed since it was recorded last."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, str], float] = {}

    def forget(self) -> None:
        """A new file begins: it holds everything once more."""
        self._written = dict.fromkeys(self._written, math.inf)

    def changed(self, signals: Signals) -> dict[str, dict[str, float]]:
        """Node position → resource → fraction of the capacity that others use, where it is news."""
        news: dict[str, dict[str, float]] = {}
        for j, row in enumerate(signals.used_by_others_frac):
            for name, frac in zip(signals.resources, row, strict=True):
                if abs(frac - self._written.get((j, name), 0.0)) >= LEAST_CHANGE_FRAC:
                    self._written[j, name] = frac
                    news.setdefault(str(j), {})[name] = round(float(frac), 4)
        return news


class RowWriter:
    """Makes the request lines of one recording.

    All requests pass through it on the event loop, so it uses few calls.
    """

    def __init__(
        self,
        begun_s: float,
        class_names: Callable[[], Sequence[str]],
        names: Pseudonyms,
        candidates_of: CandidatesOf,
        adapter_of: Callable[[str], str],
        lists: Callable[[str], bool],
        ticks_per_s: float = TICKS_PER_S,
        profile: Profile = PROFILES["pseudonyms"],
    ) -> None:
        """`class_names` is called whenever an unknown class appears; `lists`: whether a model is known."""
        self._class_names, self._names = class_names, names
        self._classes: Sequence[str] = ()
        self._candidates_of, self._adapter_of, self._lists = candidates_of, adapter_of, lists
        self._has_links, self._is_exact = profile.has_links, profile.is_exact
        self._tenant_of: Callable[[str], str] | None = names.tenant
        if profile.tenants != "pseudonym":
            self._tenant_of = str if profile.tenants == "name" else None
        self._ticks_per_s, self._begun_ticks = ticks_per_s, begun_s * ticks_per_s

    def tenant_weights(self, signals: Signals) -> dict[str, float]:
        """Weights of tenants, by the names that the recording gives to them; none if it gives none."""
        name_of = self._tenant_of
        return {} if name_of is None else {name_of(name): w for name, w in signals.tenant_weights.items()}

    def lines(self, ended: Iterable[tuple[Any, ...]]) -> tuple[bytes, int]:
        """The lines of these requests, and their number. Requests that were no work for a node have no line.

        One call of the encoder handles all of them, which is faster than one call per request.
        """
        rows = [
            self._row(one)
            for one in ended
            if one[_FACTS] is not None and (endpoint := one[_ENDPOINT]) is not None and not endpoint.local
        ]
        if not rows:
            return b"", 0
        # quotes within strings are escaped, so this text occurs only between two rows
        if not self._is_exact:
            rows = list(map(coarse, rows))
        whole = orjson.dumps(rows).replace(b'},{"arrival_s":', b'}\n{"arrival_s":')
        return whole[1:-1] + b"\n", len(rows)

    def _row(self, one: tuple[Any, ...]) -> RequestRow:
        """The row of a request. Unpacking is faster than access by name. Times are whole ticks."""
        (
            ended_s, arrived_s, class_idx, endpoint, facts, tenant, session, priority, deadline_s, units,
            actual_units, estimate_s, decision, started_s, attempts, body_bytes, usage, outcome, refusal,
        ) = one  # fmt: skip
        ticks, begun_ticks = self._ticks_per_s, self._begun_ticks
        came_s = arrived_s or ended_s
        row: RequestRow = {  # `_value_`: faster, `value` is a Python property
            "arrival_s": round(ticks * came_s - begun_ticks) / ticks,
            "finish_s": round(ticks * ended_s - begun_ticks) / ticks,
            "kind": endpoint.kind._value_,
            "model": facts.model if self._lists(facts.model) else "",
            "units": units,
            "outcome": "unknown" if outcome is None else outcome._value_,
        }
        if class_idx >= len(self._classes):
            self._classes = self._class_names()
        if 0 <= class_idx < len(self._classes):
            row["class"] = self._classes[class_idx]
        if refusal is not None:
            row["refusal"], row["status"] = refusal.code, refusal.status
        if candidates := self._candidates_of(decision):
            row["candidates"] = candidates
        if actual_units:
            row["actual_units"] = actual_units
        self._add_sizes(row, facts, usage)
        if tenant is not None and self._tenant_of is not None:
            row["tenant"] = self._tenant_of(tenant.name)
        if priority:
            row["priority"] = priority
        if deadline_s < _NEVER_S:
            row["deadline_s"] = round(ticks * max(0.0, deadline_s - came_s)) / ticks
        self._add_names(row, facts, session)
        last = _last_of(attempts)
        if last is not None:
            if len(attempts) > 1 and (lost := sum(a.cause is not None for a in attempts if a is not last)):
                row["retries"] = lost
            begun_s = last.begun_s
            row["node"] = last.node.idx
            row["estimate_s"] = round(ticks * estimate_s) / ticks if estimate_s < _NEVER_S else None
            row["wait_s"] = round(ticks * ((started_s or begun_s) - arrived_s)) / ticks
            row["started_s"] = round(ticks * begun_s - begun_ticks) / ticks
            row["service_s"] = round(ticks * ((last.ended_s or ended_s) - begun_s)) / ticks
            if body_bytes >= LARGE_BYTES:
                row["payload_bytes"] = body_bytes
                row["transfer_s"] = round(ticks * max(0.0, last.sent_s - begun_s)) / ticks
            if last.first_byte_s:
                row["first_byte_s"] = round(ticks * last.first_byte_s - begun_ticks) / ticks
        return row

    def _add_sizes(self, row: RequestRow, facts: Facts, usage: Usage | None) -> None:
        prompt_tokens: float = facts.prompt_tokens
        if facts.max_tokens:
            row["max_tokens"] = int(facts.max_tokens)
        if facts.images or facts.audio_s or facts.video_s:
            _add_media(row, facts)
        if usage is not None:
            prompt_tokens = usage.prompt_tokens or prompt_tokens
            row["output_tokens"] = usage.completion_tokens
            if usage.cached_tokens:
                row["cached_tokens"] = usage.cached_tokens
        if prompt_tokens:
            row["prompt_tokens"] = int(prompt_tokens)

    def _add_names(self, row: RequestRow, facts: Facts, session: str) -> None:
        if adapter := self._adapter_of(facts.model):
            row["adapter"] = adapter
        if not self._has_links:
            return
        if session := session or facts.session:
            row["session"] = self._names.sessions.of(session)
        if facts.prefix_blocks:
            row["prefix_blocks"] = self._names.blocks.of_all(facts.prefix_blocks)


def _last_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt with a response, else the last attempt; None = no attempts."""
    if len(attempts) == 1:
        return attempts[0]
    return max(attempts, key=_answered, default=None)


def _add_media(row: RequestRow, facts: Facts) -> None:
    if facts.images:
        row["images"] = facts.images
    if facts.steps:
        row["steps"] = facts.steps
    if facts.megapixels:
        row["megapixels"] = facts.megapixels
    if facts.audio_s:
        row["audio_s"] = facts.audio_s
    if facts.video_s:
        row["video_s"] = facts.video_s


def _answered(attempt: Attempt) -> tuple[bool, bool, float]:
    """Sort key of an exchange's attempts: the attempt with a response is the greatest, else the last."""
    return attempt.cause is None, attempt.first_byte_s > 0.0, attempt.begun_s
