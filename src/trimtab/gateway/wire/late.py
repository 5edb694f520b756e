"""What is late in an exchange, and when to look at it next."""

from __future__ import annotations

from math import inf
from typing import Protocol

from trimtab.gateway.model import DEADLINE_CODE, Attempt, Cause, Refusal
from trimtab.gateway.wire.context import Timeouts
from trimtab.gateway.wire.leg import NodeLeg


class Timed(Protocol):
    """An exchange, as its timeouts see it."""

    over: bool
    committed: bool
    replayable: bool
    arrived_s: float
    started_s: float
    deadline_s: float
    attempts: list[Attempt]
    limits: Timeouts
    leg: NodeLeg | None
    hedge_leg: NodeLeg | None

    def give_up(self, refusal: Refusal) -> None:
        """Stop whatever is under way for it, and answer so."""

    def try_hedge(self) -> None:
        """Ask a second node, if there is one and the budget allows it."""


def look(exchange: Timed, now_s: float, woke_s: float, hedge_after_s: float) -> float:
    """Act on what is late in an exchange; returns when to look again, `inf` = not by itself.

    `woke_s`: since when this process has run without a gap. `hedge_after_s` = 0: no second node is asked.
    """
    leg = exchange.leg
    if exchange.over or leg is None:
        return inf  # where it waits in the queue, its time is the dispatcher's
    leg.settle()
    if not exchange.committed and now_s >= exchange.deadline_s:
        exchange.give_up(Refusal(504, DEADLINE_CODE, "The deadline passed before a node had answered."))
        return inf
    for one in (leg, exchange.hedge_leg):
        if one is not None:
            cause = overdue(exchange, one, now_s, woke_s)
            if cause is not None:
                one.timed_out(cause)
                return inf if exchange.over or exchange.leg is None else now_s
    if hedge_due_s(exchange, hedge_after_s) <= now_s:
        exchange.try_hedge()
    return next_look_s(exchange, now_s, hedge_after_s)


def overdue(exchange: Timed, leg: NodeLeg, now_s: float, woke_s: float) -> Cause | None:
    """Which of the model's timeouts this leg has passed, if any. After a gap all but the total begin anew."""
    limits = exchange.limits
    attempt = leg.attempt
    if now_s - exchange.arrived_s >= limits.total_s:
        return Cause.TOTAL
    connection = leg.connection
    if connection is None:
        return Cause.CONNECT if now_s - max(attempt.begun_s, woke_s) >= limits.connect_s else None
    if leg.sending or attempt.first_byte_s:
        waits = leg.paused or now_s - max(connection.last_s, woke_s) < limits.idle_s
        return None if waits else Cause.IDLE
    since_s = max(attempt.begun_s, attempt.sent_s, woke_s)
    return Cause.FIRST_BYTE if now_s - since_s >= limits.first_byte_s else None


def next_look_s(exchange: Timed, now_s: float, hedge_after_s: float) -> float:
    """The earliest moment at which one of its timeouts could have passed."""
    limits = exchange.limits
    due_s = min(
        now_s + min(limits.connect_s, limits.first_byte_s, limits.idle_s), exchange.arrived_s + limits.total_s
    )
    if not exchange.committed:
        due_s = min(due_s, exchange.deadline_s, hedge_due_s(exchange, hedge_after_s))
    return due_s


def hedge_due_s(exchange: Timed, after_s: float) -> float:
    """When a second node is to be asked; `inf` where that is not to be."""
    if not after_s or exchange.committed or exchange.hedge_leg is not None or not exchange.replayable:
        return inf
    return inf if any(attempt.hedge for attempt in exchange.attempts) else exchange.started_s + after_s
