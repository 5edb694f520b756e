"""What a served request teaches: how long its class takes and puts out, what its tenant has used."""

from __future__ import annotations

from trimtab.gateway.api.units import MEDIA, used
from trimtab.gateway.decide.affinity import Affinity
from trimtab.gateway.decide.classes import RequestClass
from trimtab.gateway.decide.knowledge import Knowledge
from trimtab.gateway.decide.pool import Entry, Pool
from trimtab.gateway.decide.pools import Pools
from trimtab.gateway.model import Facts, Node, Usage
from trimtab.gateway.nodes.fleet import Fleet


class Lessons:
    """Corrects estimates, accounts, what nodes hold, the prefix index and homes."""

    def __init__(self, fleet: Fleet, pools: Pools, knowledge: Knowledge, affinity: Affinity) -> None:
        self._spans_gap = fleet.pulse.spans_gap
        self._fleet, self._pools, self._knowledge, self._affinity = fleet, pools, knowledge, affinity

    def learn(self, pool: Pool, entry: Entry) -> None:
        """It has been served; of a good answer, its duration, its output, its account, its session's home."""
        exchange, knowledge = entry.exchange, self._knowledge
        facts, node = exchange.facts, exchange.attempts[-1].node
        node.served += 1
        if facts is None or exchange.response_status >= 400:
            return
        attempt, of = exchange.attempts[-1], knowledge.classes.rows[exchange.class_idx]
        usage, units, seconds = exchange.usage, exchange.units, attempt.ended_s - attempt.begun_s
        if usage is not None:
            units = exchange.actual_units = used(facts, of.kind, usage)
            self._learn_use(pool, entry, of, node, facts, usage)
        if facts.model in knowledge.shape.bases:
            self._fleet.served_adapter(node, facts.model)
        if seconds > 0.0 and not self._spans_gap(attempt.begun_s):
            type_name = node.type_name or node.name
            changed = knowledge.estimates.observe(of.key, type_name, units, seconds)
            if changed is not None:
                self._correct_estimate(of, type_name, *changed)
        response_id = getattr(exchange, "response_id", "")
        if exchange.session or response_id:
            self._affinity.remember(exchange, response_id, node)

    def _learn_use(
        self, pool: Pool, entry: Entry, of: RequestClass, node: Node, facts: Facts, usage: Usage
    ) -> None:
        """What it really used: its class's output, its tenant's account, what its node had of the prompt."""
        exchange, output_tokens = entry.exchange, usage.completion_tokens
        tenant = exchange.tenant
        if output_tokens:
            of.output.observe(facts.max_tokens, output_tokens / facts.answers)
        if tenant is not None and pool.reads_virtual_counters and of.kind not in MEDIA:
            rules = self._pools.rules  # instead of what was counted on the way
            prompt = rules.prompt_weight * (usage.prompt_tokens - facts.prompt_tokens)
            output = rules.output_weight * (output_tokens - exchange.streamed_chunks)
            pool.live.add_cost(tenant.idx, (prompt + output) / tenant.weight)
        prefixes = self._affinity.prefixes
        if pool.reads_prefix and prefixes is not None and facts.prefix_blocks:
            matched = entry.matched.get(node.idx, 0)
            prefixes.correct(node.idx, facts.prefix_blocks, usage.cached_tokens, matched)

    def _correct_estimate(self, of: RequestClass, type_name: str, fixed_s: float, unit_s: float) -> None:
        for g in of.types(self._knowledge.shape, type_name):
            for pool in self._pools.by_spec.values():
                pool.live.set_estimate(of.idx, g, fixed_s, unit_s)
