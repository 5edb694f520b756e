"""Timeouts of an exchange: which are overdue, and when the next check is due."""

from __future__ import annotations

from math import inf
from typing import Protocol

from trimtab.gateway.http.connection_context import Timeouts
from trimtab.gateway.http.upstream_attempt import UpstreamAttempt
from trimtab.gateway.model import DEADLINE_CODE, Attempt, Cause, Refusal


class Timed(Protocol):
    """The part of an exchange that its timeouts need."""

    over: bool
    committed: bool
    replayable: bool
    arrived_s: float
    started_s: float
    deadline_s: float
    attempts: list[Attempt]
    limits: Timeouts
    upstream: UpstreamAttempt | None
    hedge_upstream: UpstreamAttempt | None

    def give_up(self, refusal: Refusal) -> None:
        """Stop all attempts and answer with this refusal."""

    def try_hedge(self) -> None:
        """Send a hedge to a second node, if a node is free and the budget allows it."""


def look(exchange: Timed, now_s: float, woke_s: float, hedge_delay_s: float) -> float:
    """Handle the overdue timeouts of an exchange. Returns the time of the next check (`inf` = none).

    `woke_s`: start of the time in which this process has run without a stall. `hedge_delay_s` = 0: no hedges.
    """
    upstream = exchange.upstream
    if exchange.over or upstream is None:
        return inf  # the dispatcher handles the deadline of a queued request
    upstream.settle()
    if not exchange.committed and now_s >= exchange.deadline_s:
        exchange.give_up(Refusal(504, DEADLINE_CODE, "The deadline passed before a node had answered."))
        return inf
    for one in (upstream, exchange.hedge_upstream):
        if one is not None:
            cause = overdue(exchange, one, now_s, woke_s)
            if cause is not None:
                one.timed_out(cause)
                return inf if exchange.over or exchange.upstream is None else now_s
    if hedge_due_s(exchange, hedge_delay_s) <= now_s:
        exchange.try_hedge()
    return next_look_s(exchange, now_s, hedge_delay_s)


def overdue(exchange: Timed, upstream: UpstreamAttempt, now_s: float, woke_s: float) -> Cause | None:
    """The timeout that this attempt has exceeded. After a stall all timeouts but the total start again."""
    limits = exchange.limits
    attempt = upstream.attempt
    if now_s - exchange.arrived_s >= limits.total_s:
        return Cause.TOTAL
    connection = upstream.connection
    if connection is None:
        return Cause.CONNECT if now_s - max(attempt.begun_s, woke_s) >= limits.connect_s else None
    if upstream.sending or attempt.first_byte_s:
        waits = upstream.paused or now_s - max(connection.last_s, woke_s) < limits.idle_s
        return None if waits else Cause.IDLE
    since_s = max(attempt.begun_s, attempt.sent_s, woke_s)
    return Cause.FIRST_BYTE if now_s - since_s >= limits.first_byte_s else None


def next_look_s(exchange: Timed, now_s: float, hedge_delay_s: float) -> float:
    """The earliest time at which one of the exchange's timeouts can be due."""
    limits = exchange.limits
    due_s = min(
        now_s + min(limits.connect_s, limits.first_byte_s, limits.idle_s), exchange.arrived_s + limits.total_s
    )
    if not exchange.committed:
        due_s = min(due_s, exchange.deadline_s, hedge_due_s(exchange, hedge_delay_s))
    return due_s


def hedge_due_s(exchange: Timed, after_s: float) -> float:
    """The time of the hedge; `inf` = no hedge."""
    if not after_s or exchange.committed or exchange.hedge_upstream is not None or not exchange.replayable:
        return inf
    return inf if any(attempt.hedge for attempt in exchange.attempts) else exchange.started_s + after_s
