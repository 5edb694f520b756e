"""What a served request teaches: how long its class takes and puts out, what its tenant has used."""

from __future__ import annotations

from trimtab.runtime.gateway.api.units import MEDIA, used
from trimtab.runtime.gateway.decide.affinity import Affinity
from trimtab.runtime.gateway.decide.classes import RequestClass
from trimtab.runtime.gateway.decide.knowledge import Knowledge
from trimtab.runtime.gateway.decide.pool import Entry, Pool
from trimtab.runtime.gateway.decide.pools import Pools
from trimtab.runtime.gateway.model import Exchange, Node, Usage
from trimtab.runtime.gateway.nodes.fleet import Fleet


class Lessons:
    """Corrects estimates, accounts, what nodes hold, the prefix index and homes."""

    def __init__(self, fleet: Fleet, pools: Pools, knowledge: Knowledge, affinity: Affinity) -> None:
        self._spans_gap = fleet.pulse.spans_gap
        self._fleet, self._pools, self._knowledge, self._affinity = fleet, pools, knowledge, affinity

    def learn(self, pool: Pool, entry: Entry, node: Node) -> None:
        """Its duration, its output, its account, its session's home."""
        exchange = entry.exchange
        facts, usage, knowledge = exchange.facts, exchange.usage, self._knowledge
        if facts is None:
            return
        attempt, of = exchange.attempts[-1], knowledge.classes.rows[exchange.class_idx]
        units = exchange.units
        if usage is not None:
            units = exchange.actual_units = used(facts, of.kind, usage)[0]
            if usage.completion_tokens:
                of.output.observe(facts.max_tokens, usage.completion_tokens / facts.answers)
            if pool.choice.order.reads_accounts and of.kind not in MEDIA:
                self._correct_account(pool, exchange, usage)
            prefixes = self._affinity.prefixes
            if pool.reads_prefix and prefixes is not None and facts.prefix_blocks:
                matched = entry.matched.get(node.idx, 0)
                prefixes.correct(node.idx, facts.prefix_blocks, usage.cached_tokens, matched)
        if facts.model in knowledge.shape.bases:
            self._fleet.served_adapter(node, facts.model)
        seconds = attempt.ended_s - attempt.begun_s
        if seconds > 0.0 and not self._spans_gap(attempt.begun_s):
            self._correct_estimate(of, node, units, seconds)
        response_id = getattr(exchange, "response_id", "")
        if exchange.session or response_id:
            self._affinity.remember(exchange, response_id, node)

    def _correct_estimate(self, of: RequestClass, node: Node, units: float, seconds: float) -> None:
        knowledge, type_name = self._knowledge, node.type_name or node.name
        changed = knowledge.estimates.observe(of.key, type_name, units, seconds)
        if changed is None:
            return
        fixed_s, unit_s = changed
        for g in of.types(knowledge.shape, type_name):
            for pool in self._pools.by_spec.values():
                pool.live.set_estimate(of.idx, g, fixed_s, unit_s)

    def _correct_account(self, pool: Pool, exchange: Exchange, usage: Usage) -> None:
        """Book what was really used instead of what was counted on the way."""
        tenant = exchange.tenant
        if tenant is None or exchange.facts is None:
            return
        rules = self._pools.rules
        prompt = rules.prompt_weight * (usage.prompt_tokens - exchange.facts.prompt_tokens)
        output = rules.output_weight * (usage.completion_tokens - exchange.streamed_chunks)
        pool.live.charge(tenant.idx, (prompt + output) / tenant.weight)
