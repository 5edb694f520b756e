"""Requests on their way to a policy: the node that has their session or prompt, the specs that enter its
state, and the errors that clients get when no node serves them.
"""

from __future__ import annotations

from typing import Final, TypeVar
from zlib import crc32

from trimtab.domain.requests import Reason, Status
from trimtab.domain.view import BACKGROUND
from trimtab.engine.live_driver import Ended, RequestSpec
from trimtab.engine.slots import UNESTIMATED
from trimtab.gateway.api.prefix import PrefixIndex
from trimtab.gateway.api.units import BLOCK_TOKENS, MEDIA, estimate
from trimtab.gateway.decide.cluster_shape import NO_ITEMS
from trimtab.gateway.decide.dispatch_rules import DispatchRules
from trimtab.gateway.decide.learning import RequestClass
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import DEADLINE_CODE, Exchange, Health, Node, Refusal
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.planned_outages import GIB

MOST: Final = 65_536
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
MOST_RETRY_AFTER_S: Final = 60.0


class Bounded(dict[_Key, _Value]):
    """A map of at most so many entries: the one that was set longest ago goes first."""

    def __init__(self, most: int) -> None:
        self._most = most

    def set(self, key: _Key, value: _Value) -> None:
        """Set an entry, the newest from now on."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]


class SessionAffinity:
    """The nodes of sessions and of stored responses, and the prefix index, where `prefix_blocks` > 0.

    Each tenant has its own sessions. Names of responses are unique: the first tenant to have one owns it.
    """

    def __init__(self, fleet: Fleet, prefix_blocks: int, most: int = MOST) -> None:
        self._fleet = fleet
        self._sessions = Bounded[tuple[str, str], str](most)  # (tenant, session) → node
        self._responses = Bounded[str, tuple[str, str]](most)  # response → (tenant, node)
        self.prefixes = PrefixIndex(prefix_blocks) if prefix_blocks else None

    def is_foreign(self, exchange: Exchange, response_id: str) -> bool:
        """Whether another tenant owns this response."""
        known = self._responses.get(response_id)
        return known is not None and known[0] != _owner(exchange)

    def node_of(self, exchange: Exchange) -> tuple[int, bool]:
        """The node of the request, its session or its response, or -1; and whether it is required."""
        facts, owner = exchange.facts, _owner(exchange)
        if exchange.only_node and (only := self._fleet.find(exchange.only_node)) is not None:
            return only.idx, True
        known = None if facts is None else self._responses.get(facts.previous_response_id)
        if known is not None and known[0] == owner:
            found = self._fleet.find(known[1])
            if found is not None and found.health is not Health.DRAINING:
                return found.idx, True
        if exchange.session:
            node = self._sessions.get((owner, exchange.session))
            found = None if node is None else self._fleet.find(node)
            if found is not None:
                return found.idx, False
        return -1, False

    def remember(self, exchange: Exchange, response_id: str, node: Node) -> None:
        """This node holds the request's session from now on, and its response, if that has a name."""
        owner = _owner(exchange)
        if exchange.session:
            self._sessions.set((owner, exchange.session), node.name)
        if response_id and not self.is_foreign(exchange, response_id):
            self._responses.set(response_id, (owner, node.name))

    def show_prefix(self, exchange: Exchange, pool: PolicyPool) -> dict[int, int]:
        """Show the policy the expected cached part of the prompt at each node; returns node → blocks."""
        tokens = pool.live.prefix_tokens
        tokens[:] = 0.0
        facts = None if self.prefixes is None else exchange.facts  # without caches no prompts, as simulated
        pool.live.show_prompt(0.0 if facts is None else facts.prompt_tokens)
        if self.prefixes is None or facts is None or not facts.prefix_blocks:
            return {}
        matched = dict(self.prefixes.match(facts.prefix_blocks, len(tokens)))
        for j, blocks in matched.items():
            tokens[j] = blocks * BLOCK_TOKENS
        return matched

    def note_prefix(self, exchange: Exchange) -> None:
        """The node that it was sent to will have the prompt of this request."""
        if self.prefixes is not None and exchange.facts is not None:
            self.prefixes.add(exchange.node_idx, exchange.facts.prefix_blocks)

    def forget(self, node: Node) -> None:
        """The node is gone, with its cache."""
        if self.prefixes is not None:
            self.prefixes.forget(node.idx)


def _owner(exchange: Exchange) -> str:
    """The tenant whose sessions and responses the request may name."""
    return "" if exchange.tenant is None else exchange.tenant.name


class RequestBuilder:
    """From exchanges to the specs that enter a state: class, work, deadline, cost, key and affinity.

    `origin_s`: when the time of the pools began, on the loop's clock.
    """

    def __init__(
        self, registry: Registry, affinity: SessionAffinity, rules: DispatchRules, origin_s: float
    ) -> None:
        self.rules, self.origin_s = rules, origin_s
        self._registry, self._affinity = registry, affinity

    def build(self, exchange: Exchange, of: RequestClass, pool: PolicyPool, now_s: float) -> RequestSpec:
        """The spec of a whole request, as of now. Writes its class and its units of work to the exchange."""
        facts, tenant = exchange.facts, exchange.tenant
        model = facts.model if facts is not None else ""
        c = exchange.class_idx = of.idx
        units, tokens = (1.0, 0.0) if facts is None else estimate(facts, of.kind, of.output)
        exchange.units = units
        prompt = output = 0
        if facts is not None and of.kind not in MEDIA:
            prompt = int(facts.prompt_tokens)
            output = max(0, int(tokens) - prompt)
        affinity_idx, is_pinned = -1, False
        if exchange.session or exchange.only_node or (facts is not None and facts.previous_response_id):
            affinity_idx, is_pinned = self._affinity.node_of(exchange)
        rules, origin_s = self.rules, self.origin_s
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
                zone_idx = self._registry.zone_idx.get(tenant.zone, 0)
            if pool.reads_shares_held:
                pool.live.tenant_weight[tenant_idx] = tenant.weight
            if pool.tenant_queues.leaf_of:
                pool.enter_queue(tenant)
        priority = BACKGROUND if exchange.background else exchange.priority
        return _new(  # the constructor takes three times as long
            RequestSpec,
            (
                c, units, UNESTIMATED, model_idx, adapter_idx, tenant_idx, priority,
                deadline_s, tokens, prompt, output, cost, _key(exchange, c), affinity_idx, int(is_pinned),
                exchange.body_bytes / GIB, zone_idx, -1, exchange.parts_max, None,
            ),
        )  # fmt: skip

    def shorten_wait(self, exchange: Exchange, pool: PolicyPool, now_s: float) -> None:
        """A request has lost its node: where no other of its model is ready, it waits as a new one would."""
        facts = exchange.facts
        deadline_s = now_s + self._wait_s(facts.model if facts is not None else "")
        if deadline_s < exchange.spec.deadline_s:
            exchange.spec = exchange.spec._replace(deadline_s=deadline_s)
            pool.live.set_deadline(exchange.row, deadline_s)

    def wait_anew(self, exchange: Exchange, pool: PolicyPool, now_s: float) -> None:
        """A request was taken back: it waits as long as a new one may, within the client's own deadline."""
        facts = exchange.facts
        deadline_s = now_s + self._wait_s(facts.model if facts is not None else "")
        deadline_s = min(deadline_s, exchange.deadline_s - self.origin_s)
        exchange.spec = exchange.spec._replace(deadline_s=deadline_s)
        pool.live.wait_until(exchange.row, deadline_s)

    def _wait_s(self, model: str) -> float:
        rules = self.rules
        is_ready = not model or self._registry.has_room(model)
        return rules.max_wait_s if is_ready else rules.max_wait_no_ready_node_s

    def resized(
        self, exchange: Exchange, of: RequestClass, before: RequestSpec, pool: PolicyPool
    ) -> RequestSpec:
        """The spec of what takes the place of a waiting request; it has waited since it arrived."""
        spec = self.build(exchange, of, pool, exchange.arrived_s - self.origin_s)
        return spec._replace(arrival_s=before.arrival_s)

    def rebuild(self, exchange: Exchange, pool: PolicyPool, now_s: float) -> RequestSpec:
        """The spec of a waiting request for a rebuilt state; its arrival and its deadline stay."""
        before: RequestSpec = exchange.spec
        arrived_s = before.arrival_s
        if arrived_s is None:
            arrived_s = exchange.arrived_s - self.origin_s
        spec = self.build(exchange, self._registry.add_class(exchange), pool, now_s)
        return spec._replace(arrival_s=arrived_s, deadline_s=before.deadline_s)

    def refusal(self, exchange: Exchange, end: Ended, pool: PolicyPool) -> Refusal:
        """The error of a request that ended unserved."""
        if end.reason == Reason.QUEUE_FULL:
            return self.queue_full(pool)
        retry_s = self._retry_after_s(pool)
        if end.reason == Reason.DEADLINE:
            # the client's own or the limit of waiting? A timer may fire a little early: no clock can tell
            if exchange.spec.deadline_s == exchange.deadline_s - self.origin_s:
                return Refusal(504, DEADLINE_CODE, "The deadline passed before a node was free.")
            return Refusal(503, "no_capacity", "No node was free in time.", retry_s)
        if end.status == Status.REJECTED and end.reason >= Reason.POLICY:
            return Refusal(503, "rejected_by_policy", "The scheduling policy rejected it.", retry_s)
        return self.no_node(pool)

    def no_node(self, pool: PolicyPool) -> Refusal:
        """No node takes it."""
        return Refusal(503, "no_node", "No node can serve it.", self._retry_after_s(pool))

    def queue_full(self, pool: PolicyPool) -> Refusal:
        """The queue is full."""
        return Refusal(503, "queue_full", "Too many requests are waiting.", self._retry_after_s(pool))

    def _retry_after_s(self, pool: PolicyPool) -> float:
        """About how long the queue takes to empty, between a second and a minute.

        No longer than a request may wait in the queue, after which it is empty whatever the estimates say:
        those of the first requests are guesses.
        """
        nodes = pool.live.nodes
        backlog_s = slots = 0.0
        for j in range(len(nodes.up)):
            if nodes.up[j] == 1:
                backlog_s += nodes.outstanding_s[j]
                slots += nodes.slots[j]
        wait_s = backlog_s / slots if slots else MOST_RETRY_AFTER_S
        return min(MOST_RETRY_AFTER_S, max(1.0, min(wait_s, self.rules.max_wait_s)))


_new = tuple.__new__


def _key(exchange: Exchange, c: int) -> int:
    """The key that affinity policies hash: the session, the first block of the prompt, or the class."""
    if exchange.session:
        return crc32(exchange.session.encode())
    facts = exchange.facts
    if facts is not None and facts.prefix_blocks:
        return facts.prefix_blocks[0]
    return c


def no_response(response_id: str) -> Refusal:
    """As if the response did not exist: a tenant must not learn of another's responses."""
    return Refusal(
        404, "response_not_found", f"Response with id '{response_id[:200]}' not found.", param="response_id"
    )
