"""Builds the RequestSpec that enters a pool's state: class, work, deadline, cost, key and affinity."""

from __future__ import annotations

from zlib import crc32

from trimtab.domain.view import BACKGROUND
from trimtab.engine.live_driver import RequestSpec
from trimtab.engine.slots import UNESTIMATED
from trimtab.gateway.api.units import MEDIA, estimate
from trimtab.gateway.decide.cluster_builder import NO_ITEMS
from trimtab.gateway.decide.pool import Entry, PolicyPool
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.session_affinity import SessionAffinity
from trimtab.gateway.model import Exchange
from trimtab.gateway.nodes.link_meter import GIB


class RequestBuilder:
    """From exchanges to the rows of a state."""

    def __init__(self, pools: PolicyPools, registry: Registry, affinity: SessionAffinity) -> None:
        self._pools, self._registry, self._affinity = pools, registry, affinity

    def build(self, exchange: Exchange, pool: PolicyPool, now_s: float) -> RequestSpec:
        """The spec of a whole request, as of now. Writes its class and its units of work to the exchange."""
        facts, tenant, registry = exchange.facts, exchange.tenant, self._registry
        model = facts.model if facts is not None else ""
        of = registry.class_of(exchange)
        if of is None:
            of = self._pools.add_class(registry.model_of(exchange), exchange.endpoint)
        c = exchange.class_idx = of.idx
        units, tokens = (1.0, 0.0) if facts is None else estimate(facts, of.kind, of.output)
        exchange.units = units
        affinity_idx, is_pinned = -1, False
        if exchange.session or exchange.only_node or (facts is not None and facts.previous_response_id):
            affinity_idx, is_pinned = self._affinity.node_of(exchange)
        rules, origin_s = self._pools.rules, self._pools.origin_s
        deadline_s = now_s + self._wait_s(model)
        if exchange.deadline_s - origin_s < deadline_s:
            deadline_s = exchange.deadline_s - origin_s
        cost = 0.0
        if facts is not None and tenant is not None:
            cost = rules.prompt_weight * facts.prompt_tokens
            if of.kind in MEDIA:  # a unit counts as a token of output
                cost += rules.output_weight * units
            cost /= tenant.weight
        model_idx, adapter_idx = pool.items.get(model, NO_ITEMS)
        tenant_idx = zone_idx = 0  # of zones, the gateway's own
        if tenant is not None:
            tenant_idx = tenant.idx
            if tenant.zone:
                zone_idx = registry.zone_idx.get(tenant.zone, 0)
            if pool.reads_shares_held:
                pool.live.tenant_weight[tenant_idx] = tenant.weight
        priority = BACKGROUND if exchange.background else exchange.priority
        return _new(  # the constructor takes three times as long
            RequestSpec,
            (
                c, units, UNESTIMATED, model_idx, adapter_idx, tenant_idx, priority,
                deadline_s, tokens, cost, _key(exchange, c), affinity_idx, int(is_pinned),
                exchange.body_bytes / GIB, zone_idx, -1, exchange.parts_max, None,
            ),
        )  # fmt: skip

    def shorten_wait(self, entry: Entry, pool: PolicyPool, now_s: float) -> None:
        """A request has lost its node: where no other of its model is ready, it waits as a new one would."""
        facts = entry.exchange.facts
        deadline_s = now_s + self._wait_s(facts.model if facts is not None else "")
        if deadline_s < entry.spec.deadline_s:
            entry.spec = entry.spec._replace(deadline_s=deadline_s)
            pool.live.set_deadline(entry.exchange.row, deadline_s)

    def _wait_s(self, model: str) -> float:
        rules = self._pools.rules
        is_ready = not model or self._registry.has_room(model)
        return rules.max_wait_s if is_ready else rules.max_wait_no_ready_node_s

    def is_own_deadline(self, entry: Entry) -> bool:
        """Whether the deadline of a row is the client's own, not the limit of waiting.

        The clock cannot tell: a timer may fire a little before its time.
        """
        return entry.spec.deadline_s == entry.exchange.deadline_s - self._pools.origin_s

    def resized(self, entry: Entry, pool: PolicyPool) -> RequestSpec:
        """The spec of a waiting request of another size; it has waited since it arrived."""
        exchange = entry.exchange
        spec = self.build(exchange, pool, exchange.arrived_s - self._pools.origin_s)
        return spec._replace(arrival_s=entry.spec.arrival_s)

    def rebuild(self, entry: Entry, pool: PolicyPool) -> RequestSpec:
        """The spec of a waiting request for a rebuilt state; its arrival and its deadline stay."""
        before, arrived_s = entry.spec, entry.spec.arrival_s
        spec = self.build(entry.exchange, pool, self._pools.now_s())
        if arrived_s is None:
            arrived_s = entry.exchange.arrived_s - self._pools.origin_s
        return spec._replace(arrival_s=arrived_s, deadline_s=before.deadline_s)


_new = tuple.__new__


def _key(exchange: Exchange, c: int) -> int:
    """The key that affinity policies hash: the session, the first block of the prompt, or the class."""
    if exchange.session:
        return crc32(exchange.session.encode())
    facts = exchange.facts
    if facts is not None and facts.prefix_blocks:
        return facts.prefix_blocks[0]
    return c
