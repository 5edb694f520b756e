"""What is told of decisions: receipts, a shadow policy's other choices, policies that failed, time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final

from trimtab.domain.view import Plan
from trimtab.runtime.gateway.api.units import BLOCK_TOKENS
from trimtab.runtime.gateway.decide.knowledge import Knowledge
from trimtab.runtime.gateway.decide.pool import Entry, Pool, Turned
from trimtab.runtime.gateway.model import Exchange
from trimtab.runtime.gateway.observe.receipts import Receipt
from trimtab.runtime.gateway.record.shadow import ShadowTally

logger = logging.getLogger(__name__)

SHOWN_CANDIDATES: Final = 4  # in receipts


class Notes:
    """For those who look on; nothing here changes a decision."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.decision_s = 0.0  # of a turn, a running mean over the timed ones; 0 = none yet
        self.tally = ShadowTally()
        self.on_shadow: Callable[[bool], None] = lambda agrees: None
        self.on_failure: Callable[[str], None] = lambda policy: None
        self.on_plan: Callable[[str, Plan], None] = lambda policy, plan: None
        self._knowledge = knowledge

    def timed_turn(self, pool: Pool, now_s: float) -> Turned:
        """A turn whose duration is noted."""
        begun_s = perf_counter()
        turned = pool.turn(now_s)
        took_s = perf_counter() - begun_s
        self.decision_s = took_s if not self.decision_s else 0.9 * self.decision_s + 0.1 * took_s
        return turned

    def receipt(self, pool: Pool, entry: Entry) -> Receipt:
        """What was known when a request was started."""
        exchange, matched, live = entry.exchange, entry.matched, pool.live
        candidates, in_flight = live.candidates(exchange.row, SHOWN_CANDIDATES), live.nodes.in_flight
        shape, choice = self._knowledge.shape, pool.choice
        members, types = shape.members, shape.type_idx
        c, units, (fixed_s, unit_s) = exchange.class_idx, exchange.units, live.tables
        shadow = ""
        if choice.shadow is not None and (j := live.shadow_choice(exchange.row)) >= 0:
            shadow = members[j].name
        return Receipt(
            policy=choice.spec,
            candidates=tuple([members[j].name for j in candidates]),
            predicted_s=tuple([fixed_s[c, types[j]] + unit_s[c, types[j]] * units for j in candidates]),
            in_flight=tuple([in_flight[j] - (j == entry.node_idx) for j in candidates]),
            prefix_tokens=tuple([BLOCK_TOKENS * matched.get(j, 0) for j in candidates]) if matched else (),
            queue_length=live.n_held,
            decisions=live.decisions_about(exchange.row),
            fallback=pool.failed > 0,
            shadow=shadow,
        )

    def shadow(self, pool: Pool, exchange: Exchange, row: int) -> None:
        """One decision that both policies made."""
        entry = pool.entries.get(row)
        live_idx = entry.node_idx if entry is not None else -1
        shadow_idx = pool.live.shadow_choice(row)
        if entry is not None and live_idx >= 0 and live_idx == entry.asked.home_idx:
            shadow_idx = live_idx  # its session lives there, whatever policies think
        agrees = live_idx == shadow_idx
        live_s = shadow_s = self._predicted_s(pool, exchange, live_idx)
        if not agrees:
            shadow_s = self._predicted_s(pool, exchange, shadow_idx)
        self.tally.note(live_idx, shadow_idx, live_s, shadow_s)
        self.on_shadow(agrees)

    def failures(self, pool: Pool) -> None:
        """The policy failed in the pool's last turn."""
        count = pool.policy_failures
        if count.bit_length() != (count - pool.failed).bit_length():  # the 1st, the 2nd, the 4th …
            logger.error("%s; least connections decides instead (%d so far)", pool.live.last_failure, count)
        for _ in range(pool.failed):
            self.on_failure(pool.choice.spec)

    def _predicted_s(self, pool: Pool, exchange: Exchange, node_idx: int) -> float:
        """Predicted service seconds on a node; 0 where it has none."""
        if node_idx < 0:
            return 0.0
        c, g = exchange.class_idx, self._knowledge.shape.type_idx[node_idx]
        return pool.live.estimate_of(c, g, exchange.units)
