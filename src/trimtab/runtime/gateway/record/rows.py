"""The format of recordings: JSON Lines, each line whole in itself.

A line without `record` is a request that has ended, in the names of `trimtab.traces.columns` where one fits.
What is absent is zero, none or unknown. Times are seconds from the start of the recording; `deadline_s` is
relative to the arrival. Other lines say in `record` what they are: `head`, `state`, `estimates`, `node`,
`plan` or `dropped`. The reader is `trimtab.traces.gateway`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from trimtab.runtime.gateway.model import (
    Attempt,
    Endpoint,
    Exchange,
    Facts,
    Node,
    Outcome,
    Refusal,
    Tenant,
    Usage,
)
from trimtab.runtime.gateway.record.pseudonyms import Pseudonyms

FORMAT_VERSION: Final = 1
NODE_EVENTS: Final = ("up", "down", "drained", "added", "removed", "capacity")

UnitsOf = Callable[[Endpoint, Facts, Usage], float]
"""Work units from what a backend says it has used; 0 = it does not say."""

CandidatesOf = Callable[[Any], Sequence[int]]
"""Node positions that a decision named, best first."""


@dataclass(frozen=True, slots=True)
class ClassEstimate:
    """A class of requests, as it is estimated now: (fixed_s + unit_s × units) seconds on each node type."""

    name: str  # MODEL/KIND
    fixed_s: Mapping[str, float]  # node type → seconds
    unit_s: Mapping[str, float]  # node type → seconds per unit
    unit: str = "unit"
    served_by: tuple[int, ...] | None = None  # node positions; None = all of the types above


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a recording must know besides the requests; taken at the start and at every rotation."""

    policy: str  # as `--policy` takes it
    nodes: Sequence[Node]
    classes: Sequence[ClassEstimate]  # by Exchange.class_idx
    seed: int = 0
    shadow: str = ""
    options: Mapping[str, int] = field(default_factory=dict)  # held_max, lookahead, max_retries, dispatchers
    in_flight: Sequence[Exchange] = ()  # at nodes
    queued: Sequence[Exchange] = ()


class Ended(NamedTuple):
    """What is kept of an exchange until it is written; no body, no identifier."""

    ended_s: float
    arrived_s: float
    class_idx: int
    endpoint: Endpoint | None
    facts: Facts | None
    tenant: Tenant | None
    session: str
    priority: int
    deadline_s: float
    units: float
    estimate_s: float
    decision: Any
    started_s: float
    attempts: list[Attempt]
    usage: Usage | None
    outcome: Outcome | None
    refusal: Refusal | None


def line(record: str, at_s: float, **said: Any) -> bytes:
    """A line that is no request."""
    return orjson.dumps({"record": record, "at_s": round(at_s, 6), **said}) + b"\n"


def head_line(snapshot: Snapshot, at_s: float, recording: str, worker: int, started_utc: str) -> bytes:
    """The first line of every file."""
    return line(
        "head",
        at_s,
        format=FORMAT_VERSION,
        recording=recording,
        worker=worker,
        started_utc=started_utc,
        policy=snapshot.policy,
        shadow=snapshot.shadow,
        seed=snapshot.seed,
        nodes=[node_row(node) for node in snapshot.nodes],
        classes=class_rows(snapshot.classes),
        options=dict(snapshot.options),
    )


def node_row(node: Node) -> dict[str, Any]:
    """A node without its address and its credentials."""
    row = {
        "idx": node.idx,
        "name": node.name,
        "type": node.type_name or node.name,
        "slots": node.max_requests,
    }
    return {**row, "max_tokens": node.max_tokens, "health": node.health.name.lower()}


def class_rows(classes: Sequence[ClassEstimate]) -> list[dict[str, Any]]:
    """Classes with their present estimates."""
    return [
        {
            "name": c.name,
            "unit": c.unit,
            "fixed_s": dict(c.fixed_s),
            "unit_s": dict(c.unit_s),
            "served_by": c.served_by,
        }
        for c in classes
    ]


def state_line(snapshot: Snapshot, at_s: float, begun_s: float) -> bytes:
    """What is in flight and queued; the requests themselves get a line of their own when they end."""
    return line(
        "state",
        at_s,
        in_flight=[_waiting(exchange, begun_s) for exchange in snapshot.in_flight],
        queued=[_waiting(exchange, begun_s) for exchange in snapshot.queued],
    )


def _waiting(exchange: Exchange, begun_s: float) -> dict[str, Any]:
    row = {"arrival_s": round(exchange.arrived_s - begun_s, 6), "units": exchange.units}
    node = exchange.attempts[-1].node.idx if exchange.attempts else -1
    return {**row, "class_idx": exchange.class_idx, "node": node}


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Makes the lines of one recording that are requests."""

    begun_s: float
    class_names: Sequence[str]
    names: Pseudonyms
    candidates_of: CandidatesOf
    units_of: UnitsOf
    adapter_of: Callable[[str], str]
    digits: int = 6  # of seconds

    def line(self, ended: Ended) -> bytes:
        """The line of one request; b"" where it was no work for a node."""
        facts, endpoint = ended.facts, ended.endpoint
        if facts is None or endpoint is None or endpoint.local:
            return b""
        row = {"arrival_s": self._since(ended.arrived_s or ended.ended_s), "kind": endpoint.kind.value}
        row |= self._class(ended.class_idx, facts)
        row |= self._sizes(ended, endpoint, facts)
        row |= self._who(ended, facts)
        row |= self._course(ended)
        return orjson.dumps(row) + b"\n"

    def _since(self, time_s: float) -> float:
        return round(time_s - self.begun_s, self.digits)

    def _class(self, class_idx: int, facts: Facts) -> dict[str, Any]:
        row: dict[str, Any] = {"model": facts.model}
        if 0 <= class_idx < len(self.class_names):
            row["class"] = self.class_names[class_idx]
        if adapter := self.adapter_of(facts.model):
            row["adapter"] = adapter
        return row

    def _sizes(self, ended: Ended, endpoint: Endpoint, facts: Facts) -> dict[str, Any]:
        usage = ended.usage
        said = {
            "units": ended.units,
            "prompt_tokens": round(facts.prompt_tokens),
            "max_tokens": round(facts.max_tokens),
            "images": facts.images,
            "steps": facts.steps,
            "megapixels": facts.megapixels,
            "audio_s": facts.audio_s,
            "video_s": facts.video_s,
        }
        if usage is not None:
            said["actual_units"] = self.units_of(endpoint, facts, usage)
            said["prompt_tokens"] = usage.prompt_tokens or said["prompt_tokens"]
            said["output_tokens"] = usage.completion_tokens
            said["cached_tokens"] = usage.cached_tokens
        return {name: value for name, value in said.items() if value}

    def _who(self, ended: Ended, facts: Facts) -> dict[str, Any]:
        row: dict[str, Any] = {}
        if ended.tenant is not None:
            row["tenant"] = self.names.tenant(ended.tenant.name)
        if ended.priority:
            row["priority"] = ended.priority
        if ended.deadline_s < float("inf"):
            row["deadline_s"] = max(
                0.0, round(ended.deadline_s - (ended.arrived_s or ended.ended_s), self.digits)
            )
        if session := ended.session or facts.session:
            row["session"] = self.names.sessions.of(session)
        if facts.prefix_blocks:
            row["prefix_blocks"] = self.names.blocks.of_all(facts.prefix_blocks)
        return row

    def _course(self, ended: Ended) -> dict[str, Any]:
        outcome = ended.outcome
        row: dict[str, Any] = {
            "outcome": "unknown" if outcome is None else outcome.value,
            "finish_s": self._since(ended.ended_s),
        }
        if ended.refusal is not None:
            row["refusal"] = ended.refusal.code
        if candidates := self.candidates_of(ended.decision):
            row["candidates"] = list(candidates)
        return row | (self._attempt(ended) if ended.attempts else {})

    def _attempt(self, ended: Ended) -> dict[str, Any]:
        last = max(ended.attempts, key=_answered)
        done_s = last.ended_s or ended.ended_s
        row = {
            "node": last.node.idx,
            "estimate_s": round(ended.estimate_s, self.digits),
            "wait_s": round((ended.started_s or last.begun_s) - ended.arrived_s, self.digits),
            "started_s": self._since(last.begun_s),
            "service_s": round(done_s - last.begun_s, self.digits),
        }
        if last.first_byte_s:
            row["first_byte_s"] = self._since(last.first_byte_s)
        if retries := sum(attempt.cause is not None for attempt in ended.attempts if attempt is not last):
            row["retries"] = retries
        return row


def _answered(attempt: Attempt) -> tuple[bool, bool, float]:
    """Orders the attempts of an exchange: the greatest is the one that was answered, or else the last."""
    return attempt.cause is None, attempt.first_byte_s > 0.0, attempt.begun_s
