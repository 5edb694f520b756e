"""Attempts and their outcomes as plain tuples: records of classes take longer to serialise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trimtab.live.model_scope import ModelRecord
from trimtab.live.stage_backend import Argument, Attempt, Cause, Following, Outcome, Ref, StageError

NODE_VARIABLE: Final = "TRIMTAB_NODE"  # environment variable of workers: the name of their node


def attempt_fields(attempt: Attempt, inputs: Sequence[Argument]) -> Any:
    """An attempt and its arguments."""
    members = [_told(member) for member in attempt.members]
    following = None if attempt.then is None else attempt_fields(attempt.then.attempt, attempt.then.inputs)
    listed = [(a.name, _packed(a.refs), a.is_list, a.path) for a in inputs]
    return _told(attempt), members, listed, following


def _told(attempt: Attempt) -> tuple[str, str, int, int, str]:
    return attempt.run, attempt.stage, attempt.index, attempt.attempt, attempt.idempotency_key


def read_attempt(fields: Any) -> tuple[Attempt, list[Argument]]:
    """The other end of `attempt_fields`."""
    (run, stage, index, number, key), members, inputs, following = fields
    then = None if following is None else Following(*read_attempt(following))
    read = [Argument(n, _unpacked(refs), is_list, p) for n, refs, is_list, p in inputs]
    return Attempt(run, stage, index, number, key, then, tuple([Attempt(*told) for told in members])), read


def outcome_fields(outcome: Outcome) -> Any:
    """An outcome."""
    e = outcome.error
    error = None if e is None else (e.cause.value, e.kind, e.message, e.trace, e.where)
    told = (
        outcome.service_s,
        outcome.load_s,
        outcome.peak_gib,
        outcome.fan_out,
        outcome.tests,
        outcome.worker,
        outcome.profile,
        [tuple(record) for record in outcome.models],
    )
    then = None if outcome.then is None else outcome_fields(outcome.then)
    return _packed(outcome.outputs), told, error, then


def read_outcome_fields(fields: Any) -> Outcome:
    """The other end of `outcome_fields`."""
    refs, told, error, following = fields
    failed = None if error is None else StageError(Cause(error[0]), *error[1:])
    outputs = tuple(ref for ref in _unpacked(refs) if ref is not None)
    service_s, load_s, peak_gib, fan_out, tests, worker, profile, models = told
    then = None if following is None else read_outcome_fields(following)
    records = tuple(ModelRecord(*record) for record in models)
    return Outcome(
        outputs, service_s, load_s, peak_gib, fan_out, tests, failed, worker, profile, then, records
    )


def _packed(refs: Sequence[Ref | None]) -> list[Any]:
    return [None if r is None else (r.digest, r.size_bytes, r.data, r.place) for r in refs]


def _unpacked(refs: Sequence[Any]) -> tuple[Ref | None, ...]:
    return tuple(None if r is None else Ref(*r) for r in refs)
