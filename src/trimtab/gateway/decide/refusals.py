"""The errors that clients get when no node serves their request."""

from __future__ import annotations

from typing import Final

from trimtab.domain.decision import Reason, Status
from trimtab.engine.live_driver import Ended
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.model import DEADLINE_CODE, Refusal

MOST_RETRY_AFTER_S: Final = 60.0


def refusal(pool: PolicyPool, end: Ended, max_wait_s: float, is_own: bool) -> Refusal:
    """The error of a request that ended unserved. `is_own`: the deadline was the client's own."""
    if end.reason == Reason.QUEUE_FULL:
        return queue_full(pool, max_wait_s)
    retry_s = _retry_after_s(pool, max_wait_s)
    if end.reason == Reason.DEADLINE:
        if is_own:
            return Refusal(504, DEADLINE_CODE, "The deadline passed before a node was free.")
        return Refusal(503, "no_capacity", "No node was free in time.", retry_s)
    if end.status == Status.REJECTED and end.reason >= Reason.POLICY:
        return Refusal(503, "rejected_by_policy", "The scheduling policy rejected it.", retry_s)
    return Refusal(503, "no_node", "No node can serve it.", retry_s)


def queue_full(pool: PolicyPool, max_wait_s: float) -> Refusal:
    """The queue is full."""
    return Refusal(503, "queue_full", "Too many requests are waiting.", _retry_after_s(pool, max_wait_s))


def no_response(response_id: str) -> Refusal:
    """As if the response did not exist: a tenant must not learn of another's responses."""
    return Refusal(
        404, "response_not_found", f"Response with id '{response_id[:200]}' not found.", param="response_id"
    )


def _retry_after_s(pool: PolicyPool, max_wait_s: float) -> float:
    """About how long the queue takes to empty, between a second and a minute.

    No longer than a request may wait in the queue, after which it is empty whatever the estimates say: those
    of the first requests are guesses.
    """
    nodes = pool.live.nodes
    backlog_s = slots = 0.0
    for j in range(len(nodes.up)):
        if nodes.up[j] == 1:
            backlog_s += nodes.outstanding_s[j]
            slots += nodes.slots[j]
    wait_s = backlog_s / slots if slots else MOST_RETRY_AFTER_S
    return min(MOST_RETRY_AFTER_S, max(1.0, min(wait_s, max_wait_s)))
