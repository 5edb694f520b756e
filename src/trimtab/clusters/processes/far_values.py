"""Values of workers that do not reach this machine's memory: they go along with attempts and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.clusters.processes.large_values import Spool
from trimtab.live.stage_backend import Argument, Attempt, Following, Outcome, Ref, in_one


def carried(attempt: Attempt, inputs: Sequence[Argument], spool: Spool) -> tuple[Attempt, list[Argument]]:
    """The same attempt with the bytes of its inputs. Raises ValueLost."""
    read = [replace(a, refs=tuple([_carried(ref, spool) for ref in a.refs])) for a in inputs]
    if attempt.then is not None:
        attempt = replace(attempt, then=Following(*carried(attempt.then.attempt, attempt.then.inputs, spool)))
    return attempt, read


def _carried(ref: Ref | None, spool: Spool) -> Ref | None:
    return ref if ref is None or not ref.place else replace(ref, data=bytes(spool.read(ref)), place="")


def kept(outcome: Outcome, spool: Spool) -> Outcome:
    """The same outcome with its large outputs on this machine. Raises OSError if there is no room."""
    return in_one(
        [
            replace(o, outputs=tuple([spool.keep(ref) for ref in o.outputs]), then=None)
            for o in outcome.in_turn
        ]
    )
