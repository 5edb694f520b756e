"""`experiment: switchback` at work: two policies take turns in deciding, and both are measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from trimtab.gateway.decide.dispatcher import Decider
from trimtab.gateway.decide.pool import Chosen, chosen
from trimtab.gateway.model import Exchange, Observer, Outcome
from trimtab.gateway.record.intervals import Interval
from trimtab.gateway.record.switchback import Switchback

WASHOUT_FRAC: Final = 0.2  # of a turn: requests that arrive then still meet the other policy's queues
_LATER_FRAC: Final = 1e-6  # of a turn: so far beyond its end the next one has begun, whatever was rounded


class Alternation(Observer):
    """Lets `other` decide in every pool during its turns; an Observer that notes what came of it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, decider: Decider, other: str, period_s: float, seed: int = 0
    ) -> None:
        self._loop, self._decider, self._period_s = loop, decider, period_s
        self._other: Chosen = chosen(other)
        self._switchback = Switchback(
            period_s=period_s, washout_s=WASHOUT_FRAC * period_s, seed=seed, begun_s=loop.time()
        )
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first turn begins."""
        self._take_turn(self._loop.time())

    def close(self) -> None:
        """Leave the pools to their own policies."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._let_decide(0)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Note what was served."""
        for exchange in exchanges:
            if exchange.outcome is Outcome.DONE and exchange.attempts:
                self._switchback.note(exchange.arrived_s, self._loop.time() - exchange.arrived_s)

    def told(self) -> dict[str, Any]:
        """What was measured so far, as the dashboard shows it: other − own."""
        found = self._switchback.figures(self._loop.time())
        own_s, other_s = found.mean_s
        return {
            "pairs": found.pairs,
            "requests": list(found.requests),
            "own_mean_s": own_s,
            "other_mean_s": other_s,
            "difference_s": found.difference_s.mean,
            **_fractions(found.difference_s, own_s),
        }

    def _take_turn(self, now_s: float) -> None:
        now_s += _LATER_FRAC * self._period_s
        self._let_decide(self._switchback.arm_at(now_s))
        self._timer = self._loop.call_at(self._switchback.next_switch_s(now_s), self._on_timer, now_s)

    def _on_timer(self, before_s: float) -> None:
        self._take_turn(max(self._loop.time(), self._switchback.next_switch_s(before_s)))

    def _let_decide(self, arm: int) -> None:
        decider = self._decider
        for spec, pool in tuple(decider.pools.items()):
            choice = self._other if arm else decider.choice_of(spec)
            if pool.choice != choice:
                decider.switch_policy(pool, choice)


def _fractions(difference_s: Interval, whole_s: float) -> dict[str, float | None]:
    if not whole_s > 0.0:
        return {"difference_frac": None, "low_frac": None, "high_frac": None}
    half_s = difference_s.ci95
    return {
        "difference_frac": difference_s.mean / whole_s,
        "low_frac": None if half_s is None else (difference_s.mean - half_s) / whole_s,
        "high_frac": None if half_s is None else (difference_s.mean + half_s) / whole_s,
    }
