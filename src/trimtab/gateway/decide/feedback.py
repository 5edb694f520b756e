"""Feedback of a served request: estimates, virtual counters, adapters, the prefix index, session affinity."""

from __future__ import annotations

from trimtab.gateway.api.units import MEDIA, predictable
from trimtab.gateway.decide.learning import ENOUGH, LEAST_S, ColdAnswer, RequestClass
from trimtab.gateway.decide.plan_effects import Placements
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.request_specs import SessionAffinity
from trimtab.gateway.model import Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.planned_outages import LARGE_BYTES


class Feedback:
    """Applies what served requests show."""

    def __init__(
        self,
        fleet: Fleet,
        pools: PolicyPools,
        registry: Registry,
        affinity: SessionAffinity,
        placements: Placements,
    ) -> None:
        self._spans_gap = fleet.stall_detector.spans_gap
        self._fleet, self._pools, self._registry, self._affinity = fleet, pools, registry, affinity
        self._placements = placements

    def apply(self, pool: PolicyPool, exchange: Exchange) -> None:
        """A node has served this request."""
        registry = self._registry
        facts, attempt = exchange.facts, exchange.attempts[-1]
        node = attempt.node
        if exchange.tenant is None or not exchange.tenant.is_private:
            node.served += 1
        if facts is None or exchange.response_status >= 400:
            return
        of = registry.classes[exchange.class_idx]
        is_timed = not self._spans_gap(attempt.begun_s)
        if facts.model in registry.shape.bases or node.loader is not None:
            is_timed = self._is_warm(exchange, node, of, is_timed)
        changed = registry.estimates.learn(exchange, of, self._service_s(exchange), is_timed=is_timed)
        if changed is not None:
            self._pools.set_estimate(of, changed)
        self._correct_virtual_counter(pool, exchange, of)
        self._correct_prefixes(pool, exchange)
        response_id = getattr(exchange, "response_id", "")
        if exchange.session or response_id:
            self._affinity.remember(exchange, response_id, node)

    def _service_s(self, exchange: Exchange) -> float:
        """How long the node took, without round trip and transfer, which policies add themselves."""
        attempt = exchange.attempts[-1]
        begun_s = attempt.begun_s
        if exchange.body_bytes >= LARGE_BYTES:
            begun_s = max(begun_s, attempt.sent_s)
        return max(LEAST_S, attempt.ended_s - begun_s - self._registry.away_s(attempt.node.idx))

    def _is_warm(self, exchange: Exchange, node: Node, of: RequestClass, is_timed: bool) -> bool:
        """Whether the node held what the request needed; else the duration is noted as cold."""
        facts, usage = exchange.facts, exchange.usage
        assert facts is not None
        item, state, times = facts.model, self._fleet.state(node), self._registry.load_times
        self._placements.used(node, item)
        is_loaded_here = item in state.adapters or state.held_models is not None
        if is_loaded_here and item not in state.held():
            self._fleet.set_held(node, item, is_held=True)
            attempt = exchange.attempts[-1]
            if is_timed and not attempt.load_s:
                seconds = self._service_s(exchange)
                at = item, node.type_name or node.name
                units = exchange.units if usage is None else predictable(facts, of.kind, usage)
                times.note_cold(ColdAnswer(at, of.key, units, seconds))
            return False
        self._learn_loads(of, node)
        return is_timed

    def _learn_loads(self, of: RequestClass, node: Node) -> None:
        """Compare first answers with warm ones, once there are enough of these."""
        registry, type_name = self._registry, node.type_name or node.name
        if registry.estimates.observed(of.key, type_name) < ENOUGH:
            return
        for cold in registry.load_times.take_cold(of.key, type_name):
            fixed_s, unit_s = registry.estimates.of(of.key, type_name)
            load_s = registry.load_times.observe(*cold.at, cold.seconds - fixed_s - unit_s * cold.units)
            self._pools.set_load_time(*cold.at, load_s)

    def _correct_virtual_counter(self, pool: PolicyPool, exchange: Exchange, of: RequestClass) -> None:
        """Replace the cost that was estimated, and counted by chunks, by the cost of the reported usage."""
        facts, tenant, usage = exchange.facts, exchange.tenant, exchange.usage
        if facts is None or tenant is None or usage is None or not pool.charges_cost or of.kind in MEDIA:
            return
        rules = self._pools.rules
        prompt = rules.prompt_weight * (usage.prompt_tokens - facts.prompt_tokens)
        output = rules.output_weight * (usage.completion_tokens - exchange.streamed_chunks)
        pool.live.add_cost(tenant.idx, (prompt + output) / tenant.weight)

    def _correct_prefixes(self, pool: PolicyPool, exchange: Exchange) -> None:
        """Compare the cached tokens that the node reports with the expected ones."""
        facts, usage, prefixes = exchange.facts, exchange.usage, self._affinity.prefixes
        if facts is None or usage is None or prefixes is None or not pool.reads_prefix:
            return
        blocks, node_idx = facts.prefix_blocks, exchange.attempts[-1].node.idx
        if blocks:
            prefixes.correct(node_idx, blocks, usage.cached_tokens, exchange.matched.get(node_idx, 0))
