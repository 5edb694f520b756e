"""What a request asks for: its class, work, deadline, account, key and home, as the state takes it."""

from __future__ import annotations

from zlib import crc32

from trimtab.domain.view import BACKGROUND
from trimtab.engine.live_driver import RequestSpec
from trimtab.engine.slots import UNESTIMATED
from trimtab.gateway.api.units import MEDIA, estimate
from trimtab.gateway.decide.affinity import Affinity
from trimtab.gateway.decide.knowledge import Knowledge
from trimtab.gateway.decide.pool import Entry, Pool
from trimtab.gateway.decide.pools import Pools
from trimtab.gateway.decide.shape import NO_ITEMS
from trimtab.gateway.model import Exchange


class Asking:
    """From exchanges to rows of a state."""

    def __init__(self, pools: Pools, knowledge: Knowledge, affinity: Affinity) -> None:
        self._pools, self._knowledge, self._affinity = pools, knowledge, affinity

    def asked(self, exchange: Exchange, pool: Pool, now_s: float) -> RequestSpec:
        """What a whole request asks for now. Notes its class and its units of work in the exchange."""
        facts, tenant, knowledge = exchange.facts, exchange.tenant, self._knowledge
        model = facts.model if facts is not None else ""
        of = knowledge.class_of(exchange)
        if of is None:
            of = self._pools.add_class(knowledge.model_of(exchange), exchange.endpoint)
        c = exchange.class_idx = of.idx
        units, tokens = (1.0, 0.0) if facts is None else estimate(facts, of.kind, of.output)
        exchange.units = units
        home, stays = -1, False
        if exchange.session or exchange.only_node or (facts is not None and facts.previous_response_id):
            home, stays = self._affinity.home(exchange)
        rules, origin_s = self._pools.rules, self._pools.origin_s
        wait_s = rules.max_wait_s if not model or knowledge.has_room(model) else rules.hold_s
        deadline_s = now_s + wait_s
        if exchange.deadline_s - origin_s < deadline_s:
            deadline_s = exchange.deadline_s - origin_s
        charge = 0.0
        if facts is not None and tenant is not None:
            charge = rules.prompt_weight * facts.prompt_tokens
            if of.kind in MEDIA:  # a unit counts as a token of output
                charge += rules.output_weight * units
            charge /= tenant.weight
        model_idx, adapter_idx = pool.items.get(model, NO_ITEMS)
        tenant_idx = tenant.idx if tenant is not None else 0
        priority = BACKGROUND if exchange.background else exchange.priority
        return _new(  # what it makes of names takes three times as long
            RequestSpec,
            (
                c, units, UNESTIMATED, model_idx, adapter_idx, tenant_idx, priority,
                deadline_s, tokens, charge, _key(exchange, c), home, int(stays), None,
            ),
        )  # fmt: skip

    def is_own_deadline(self, entry: Entry) -> bool:
        """Whether the deadline of a row is the client's own, and not how long anything may wait.

        The clock cannot tell: a timer may fire a little before the time that it was set for.
        """
        return entry.asked.deadline_s == entry.exchange.deadline_s - self._pools.origin_s

    def ask_again(self, entry: Entry, pool: Pool) -> RequestSpec:
        """What a waiting request asks for in a state that was made anew; its turn and its deadline stay."""
        before, arrived_s = entry.asked, entry.asked.arrival_s
        asked = self.asked(entry.exchange, pool, self._pools.now_s())
        if arrived_s is None:
            arrived_s = entry.exchange.arrived_s - self._pools.origin_s
        return asked._replace(arrival_s=arrived_s, deadline_s=before.deadline_s)


_new = tuple.__new__


def _key(exchange: Exchange, c: int) -> int:
    """What affinity policies hash: the session, else the beginning of the prompt, else the class."""
    if exchange.session:
        return crc32(exchange.session.encode())
    facts = exchange.facts
    if facts is not None and facts.prefix_blocks:
        return facts.prefix_blocks[0]
    return c
