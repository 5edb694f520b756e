"""What is late in an exchange, and when to look at it next."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from trimtab.gateway.model import DEADLINE_CODE, Cause, Refusal

if TYPE_CHECKING:
    from trimtab.gateway.wire.exchange import WireExchange
    from trimtab.gateway.wire.leg import NodeLeg


def look(exchange: WireExchange, now_s: float) -> float:
    """Act on what is late in an exchange; returns when to look again, `inf` = not by itself."""
    leg = exchange.leg
    if exchange.over or leg is None:
        return inf  # where it waits in the queue, its time is the dispatcher's
    leg.settle()
    if not exchange.committed and now_s >= exchange.deadline_s:
        exchange.give_up(Refusal(504, DEADLINE_CODE, "The deadline passed before a node had answered."))
        return inf
    for one in (leg, exchange.hedge_leg):
        if one is not None:
            cause = overdue(exchange, one, now_s)
            if cause is not None:
                one.timed_out(cause)
                return inf if exchange.over or exchange.leg is None else now_s
    if hedge_due_s(exchange) <= now_s:
        exchange.try_hedge()
    return next_look_s(exchange, now_s)


def overdue(exchange: WireExchange, leg: NodeLeg, now_s: float) -> Cause | None:
    """Which of the model's timeouts this leg has passed, if any. After a gap all but the total begin anew."""
    limits = exchange.limits
    attempt = leg.attempt
    woke_s = exchange.context.sweep.pulse.since_s
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


def next_look_s(exchange: WireExchange, now_s: float) -> float:
    """The earliest moment at which one of its timeouts could have passed."""
    limits = exchange.limits
    due_s = min(
        now_s + min(limits.connect_s, limits.first_byte_s, limits.idle_s), exchange.arrived_s + limits.total_s
    )
    if not exchange.committed:
        due_s = min(due_s, exchange.deadline_s, hedge_due_s(exchange))
    return due_s


def hedge_due_s(exchange: WireExchange) -> float:
    """When a second node is to be asked; `inf` where that is not to be."""
    after_s = exchange.context.settings.hedge_after_s
    if not after_s or exchange.committed or exchange.hedge_leg is not None or not exchange.replayable:
        return inf
    return inf if any(attempt.hedge for attempt in exchange.attempts) else exchange.started_s + after_s
