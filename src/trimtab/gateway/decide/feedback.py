"""Feedback of a served request: estimates, virtual counters, adapters, the prefix index, session affinity."""

from __future__ import annotations

from trimtab.gateway.api.units import MEDIA
from trimtab.gateway.decide.estimates import RequestClass
from trimtab.gateway.decide.pool import Entry, PolicyPool
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.session_affinity import SessionAffinity
from trimtab.gateway.nodes.fleet import Fleet


class Feedback:
    """Applies what served requests show."""

    def __init__(
        self, fleet: Fleet, pools: PolicyPools, registry: Registry, affinity: SessionAffinity
    ) -> None:
        self._spans_gap = fleet.stall_detector.spans_gap
        self._fleet, self._pools, self._registry, self._affinity = fleet, pools, registry, affinity

    def apply(self, pool: PolicyPool, entry: Entry) -> None:
        """A node has served this request."""
        exchange, registry = entry.exchange, self._registry
        facts, attempt = exchange.facts, exchange.attempts[-1]
        node = attempt.node
        node.served += 1
        if facts is None or exchange.response_status >= 400:
            return
        of = registry.classes[exchange.class_idx]
        changed = registry.estimates.learn(exchange, of, is_timed=not self._spans_gap(attempt.begun_s))
        if changed is not None:
            self._pools.set_estimate(of, changed)
        self._correct_virtual_counter(pool, entry, of)
        self._correct_prefixes(pool, entry)
        if facts.model in registry.shape.bases:
            self._fleet.served_adapter(node, facts.model)
        response_id = getattr(exchange, "response_id", "")
        if exchange.session or response_id:
            self._affinity.remember(exchange, response_id, node)

    def _correct_virtual_counter(self, pool: PolicyPool, entry: Entry, of: RequestClass) -> None:
        """Replace the cost that was estimated, and counted by chunks, by the cost of the reported usage."""
        exchange = entry.exchange
        facts, tenant, usage = exchange.facts, exchange.tenant, exchange.usage
        if facts is None or tenant is None or usage is None or not pool.charges_cost or of.kind in MEDIA:
            return
        rules = self._pools.rules
        prompt = rules.prompt_weight * (usage.prompt_tokens - facts.prompt_tokens)
        output = rules.output_weight * (usage.completion_tokens - exchange.streamed_chunks)
        pool.live.add_cost(tenant.idx, (prompt + output) / tenant.weight)

    def _correct_prefixes(self, pool: PolicyPool, entry: Entry) -> None:
        """Compare the cached tokens that the node reports with the expected ones."""
        facts, usage, prefixes = entry.exchange.facts, entry.exchange.usage, self._affinity.prefixes
        if (
            facts is None
            or usage is None
            or prefixes is None
            or not (pool.reads_prefix and facts.prefix_blocks)
        ):
            return
        node_idx = entry.exchange.attempts[-1].node.idx
        prefixes.correct(node_idx, facts.prefix_blocks, usage.cached_tokens, entry.matched.get(node_idx, 0))
