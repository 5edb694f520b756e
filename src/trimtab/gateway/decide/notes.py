"""What is told of decisions: receipts, a shadow policy's other choices, policies that failed, time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import perf_counter

from trimtab.domain.view import Plan
from trimtab.gateway.decide.knowledge import Knowledge
from trimtab.gateway.decide.pool import Entry, Pool, Turned
from trimtab.gateway.observe.receipts import Decision
from trimtab.gateway.record.shadow import ShadowTally

logger = logging.getLogger(__name__)


_new = tuple.__new__


class Notes:
    """For those who look on; nothing here changes a decision."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.decision_s = 0.0  # of a decision, a running mean over the timed ones; 0 = none yet
        self.tally = ShadowTally()
        self.on_failure: Callable[[str], None] = lambda policy: None
        self.on_plan: Callable[[str, Plan], None] = lambda policy, plan: None
        self._knowledge = knowledge

    def timed_turn(self, pool: Pool, now_s: float) -> Turned:
        """A turn whose duration is noted, by each of those who came with it."""
        begun_s = perf_counter()
        turned = pool.turn(now_s)
        took_s = (perf_counter() - begun_s) / len(pool.newcomers)
        self.decision_s = took_s if not self.decision_s else 0.9 * self.decision_s + 0.1 * took_s
        return turned

    def decision(self, pool: Pool, entry: Entry) -> Decision:
        """What was known when a request was started."""
        row = pool.live.decision_trace(entry.exchange.row)
        told = pool.choice.spec, self._knowledge.names, row, entry.matched, pool.failed > 0
        return _new(Decision, told)  # what it makes of names takes twice as long

    def shadow(self, pool: Pool, entries: Iterable[Entry]) -> None:
        """Decisions that both policies made."""
        numbers_of, decisions = pool.live.decision_trace_numbers, []
        for entry in entries:
            estimate_s, _, _, shadow_idx, shadow_s = numbers_of(entry.exchange.row)
            live_idx = entry.node_idx
            live_s = estimate_s if live_idx >= 0 else 0.0
            decisions.append((live_idx, entry.asked.affinity_node_idx, shadow_idx, live_s, shadow_s))
        self.tally.note(decisions)

    def failures(self, pool: Pool) -> None:
        """The policy failed in the pool's last turn."""
        count = pool.policy_failures
        if count.bit_length() != (count - pool.failed).bit_length():  # the 1st, the 2nd, the 4th …
            logger.error("%s; least connections decides instead (%d so far)", pool.live.last_failure, count)
        for _ in range(pool.failed):
            self.on_failure(pool.choice.spec)
