"""Status and reason of a request: the values in every record (see GLOSSARY.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from numbers import Integral
from typing import Final


class Status(IntEnum):
    """State of a request, or how it ended. Values below FINISHED are in flight."""

    PENDING = 0  # has not arrived
    HELD = 1  # in the central queue
    TRANSFER = 2  # its payload is on the way to a node
    QUEUED = 3  # in a node's queue
    RUNNING = 4  # occupies a slot (loading its model included)
    RETRYING = 5  # lost its node, about to be dispatched again
    FINISHED = 6
    REJECTED = 7
    CANCELLED = 8  # its deadline passed and the scenario cancels then
    LOST = 9  # its node failed and no retries were left


class Reason(IntEnum):
    """Reason for a rejection, cancellation or loss. Policies may return -r for POLICY and above."""

    NONE = 0
    FITS_NO_NODE = 1  # no node type can hold its model or serve its class
    REFUSED = 2  # every candidate refused and the scenario rejects on refusal
    QUEUE_FULL = 3  # the policy held it and the central queue had no room
    DEADLINE = 4  # cancelled at its deadline
    RETRIES = 5  # lost to node failures more often than the scenario retries
    POLICY = 6  # the policy rejected it; a policy's own reasons count up from here
    ABORTED = 32  # no client waits for it


MAX_REASON = 31  # a policy's own reasons lie in POLICY..MAX_REASON


class Hold(Enum):
    """Type of HOLD."""

    HOLD = "hold"

    def __repr__(self) -> str:
        """The name that users write."""
        return "tt.HOLD"


HOLD: Final = Hold.HOLD  # what `choose` returns to hold a request in the central queue


@dataclass(frozen=True, slots=True)
class Reject:
    """The return value of `choose` that rejects a request; `reject` makes it."""

    reason: int


def reject(reason: int = Reason.POLICY) -> Reject:
    """Reject the request for a reason of the policy's own: a number from Reason.POLICY (6) to 31."""
    if not isinstance(reason, Integral) or not Reason.POLICY <= reason <= MAX_REASON:
        raise ValueError(f"reject({reason!r}): expected a reason from {Reason.POLICY:d} to {MAX_REASON}")
    return Reject(int(reason))
