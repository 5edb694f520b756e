"""The format of recordings: JSON Lines, each line whole in itself.

A line without `record` is a request that has ended, in the names of `trimtab.traces.columns` where one fits.
What is absent is zero, none or unknown. Times are seconds from the start of the recording; `deadline_s` is
relative to the arrival. Other lines say in `record` what they are: `head`, `state`, `estimates`, `node`,
`plan` or `dropped`. The reader is `trimtab.traces.gateway`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
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

if TYPE_CHECKING:
    from trimtab.domain.view import Plan  # which loads kernels

FORMAT_VERSION: Final = 1
TICKS_PER_S: Final = 1e6  # times are written in whole microseconds
_NEVER_S: Final = float("inf")
MOST_PLANNED: Final = 4096  # numbers of one field of a plan
NODE_EVENTS: Final = ("up", "down", "drained", "added", "removed", "capacity")

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
    actual_units: float
    estimate_s: float
    decision: Any
    started_s: float
    attempts: list[Attempt]
    usage: Usage | None
    outcome: Outcome | None
    refusal: Refusal | None


_at = Ended._fields.index
_ENDPOINT, _FACTS, _ATTEMPTS = _at("endpoint"), _at("facts"), _at("attempts")
_request_times_of = itemgetter(*map(_at, ("ended_s", "arrived_s", "deadline_s", "estimate_s", "started_s")))
_NO_TIMES: Final = (0.0, 0.0, 0.0)
_SINCE_BEGUN: Final = [0, 1, 5, 7]  # of what `RowWriter._times` tells: since the recording began
_times_of = attrgetter("begun_s", "first_byte_s", "ended_s")


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
        process=os.getpid(),
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


def plan_row(plan: Plan) -> dict[str, Any]:
    """What a plan says, without the fields that it does not use; of large ones their shape only."""
    used = {name: values for name, values in plan._asdict().items() if values.size}
    return {
        name: values.tolist() if values.size <= MOST_PLANNED else {"shape": values.shape}
        for name, values in used.items()
    }


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


class RowWriter:
    """Makes the lines of one recording that are requests.

    All of them pass here, on the loop: hence few calls, and times are worked out for many requests at once.
    """

    def __init__(
        self,
        begun_s: float,
        class_names: Sequence[str],
        names: Pseudonyms,
        candidates_of: CandidatesOf,
        adapter_of: Callable[[str], str],
        ticks_per_s: float = TICKS_PER_S,
    ) -> None:
        self._class_names, self._names = class_names, names
        self._candidates_of, self._adapter_of = candidates_of, adapter_of
        self._ticks_per_s, self._begun_ticks = ticks_per_s, begun_s * ticks_per_s

    def lines(self, ended: Iterable[tuple[Any, ...]]) -> tuple[bytes, int]:
        """The lines of these requests, and how many they are; what was no work for a node has none.

        One call of the encoder for all of them: a call for each takes three times as long in all.
        """
        work = [
            one
            for one in ended
            if one[_FACTS] is not None and (endpoint := one[_ENDPOINT]) is not None and not endpoint.local
        ]
        if not work:
            return b"", 0
        lasts = [_last_of(one[_ATTEMPTS]) for one in work]
        times = self._times(work, lasts)
        rows = [self._row(last, told, one) for one, last, told in zip(work, lasts, times, strict=True)]
        # a quote within a string is escaped: so this stands between two rows, and nowhere else
        whole = orjson.dumps(rows).replace(b'},{"arrival_s":', b'}\n{"arrival_s":')
        return whole[1:-1] + b"\n", len(rows)

    def _times(self, work: Sequence[tuple[Any, ...]], lasts: Sequence[Attempt | None]) -> list[list[float]]:
        """Of each, in seconds: arrival, end, deadline after the arrival; then of the last attempt what was
        predicted, the wait before it, its begin, its duration and its first byte. All in whole ticks."""
        of_attempts = [_NO_TIMES if last is None else _times_of(last) for last in lasts]
        ended, arrived, due, estimate, started = np.array(list(map(_request_times_of, work))).T
        begun, first, left = np.array(of_attempts).T
        came = np.where(arrived, arrived, ended)
        ticks = self._ticks_per_s * np.array(
            (
                came,
                ended,
                due - came,
                estimate,
                np.where(started, started, begun) - arrived,
                begun,
                np.where(left, left, ended) - begun,
                first,
            )
        )
        ticks[_SINCE_BEGUN] -= self._begun_ticks
        told: list[list[float]] = (np.rint(ticks) / self._ticks_per_s).T.tolist()
        return told

    def _row(self, last: Attempt | None, told: Sequence[float], one: tuple[Any, ...]) -> dict[str, Any]:
        """`told` by `_times`. All is unpacked in one go: to look fields up by name takes longer."""
        arrival_s, finish_s, due_s, estimate_s, wait_s, started_s, service_s, first_byte_s = told
        (
            _, _, class_idx, endpoint, facts, tenant, session, priority, _, units, actual_units, _, decision,
            _, attempts, usage, outcome, refusal,
        ) = one  # fmt: skip
        row: dict[str, Any] = {  # `_value_`: `value` is a Python-level property
            "arrival_s": arrival_s,
            "finish_s": finish_s,
            "kind": endpoint.kind._value_,
            "model": facts.model,
            "units": units,
            "outcome": "unknown" if outcome is None else outcome._value_,
        }
        if 0 <= class_idx < len(self._class_names):
            row["class"] = self._class_names[class_idx]
        if refusal is not None:
            row["refusal"], row["status"] = refusal.code, refusal.status
        if candidates := self._candidates_of(decision):
            row["candidates"] = candidates
        if actual_units:
            row["actual_units"] = actual_units
        self._add_sizes(row, facts, usage)
        if tenant is not None:
            row["tenant"] = self._names.tenant(tenant.name)
        if priority:
            row["priority"] = priority
        if due_s < _NEVER_S:
            row["deadline_s"] = due_s if due_s > 0.0 else 0.0
        self._add_names(row, facts, session)
        if last is not None:
            if len(attempts) > 1 and (lost := sum(a.cause is not None for a in attempts if a is not last)):
                row["retries"] = lost
            row["node"] = last.node.idx
            row["estimate_s"] = estimate_s
            row["wait_s"] = wait_s
            row["started_s"] = started_s
            row["service_s"] = service_s
            if last.first_byte_s:
                row["first_byte_s"] = first_byte_s
        return row

    def _add_sizes(self, row: dict[str, Any], facts: Facts, usage: Usage | None) -> None:
        prompt_tokens: float = facts.prompt_tokens
        if facts.max_tokens:
            row["max_tokens"] = int(facts.max_tokens)
        if facts.images or facts.audio_s or facts.video_s:
            row |= _media(facts)
        if usage is not None:
            prompt_tokens = usage.prompt_tokens or prompt_tokens
            row["output_tokens"] = usage.completion_tokens
            if usage.cached_tokens:
                row["cached_tokens"] = usage.cached_tokens
        if prompt_tokens:
            row["prompt_tokens"] = int(prompt_tokens)

    def _add_names(self, row: dict[str, Any], facts: Facts, session: str) -> None:
        if adapter := self._adapter_of(facts.model):
            row["adapter"] = adapter
        if session := session or facts.session:
            row["session"] = self._names.sessions.of(session)
        if facts.prefix_blocks:
            row["prefix_blocks"] = self._names.blocks.of_all(facts.prefix_blocks)


def _last_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that was answered, or else the last; None where there was none."""
    if len(attempts) == 1:
        return attempts[0]
    return max(attempts, key=_answered, default=None)


def _media(facts: Facts) -> dict[str, Any]:
    said = {"images": facts.images, "steps": facts.steps, "megapixels": facts.megapixels}
    said |= {"audio_s": facts.audio_s, "video_s": facts.video_s}
    return {name: value for name, value in said.items() if value}


def _answered(attempt: Attempt) -> tuple[bool, bool, float]:
    """Orders the attempts of an exchange: the greatest is the one that was answered, or else the last."""
    return attempt.cause is None, attempt.first_byte_s > 0.0, attempt.begun_s
