"""The gateway's dispatcher: requests in, nodes out. One pool per policy; all pools share the nodes.

Every call of the data plane becomes an event of the pool's state; then the pool takes a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from trimtab.domain.view import Plan
from trimtab.gateway.api.units import BLOCK_TOKENS, MEDIA
from trimtab.gateway.decide.decision_log import DecisionLog
from trimtab.gateway.decide.dispatch_rules import DispatchRules
from trimtab.gateway.decide.feedback import Feedback
from trimtab.gateway.decide.learning import RequestClass, ServiceEstimates
from trimtab.gateway.decide.plan_effects import Groupings, Placements
from trimtab.gateway.decide.pool import PolicyPool, Turned
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.request_specs import RequestBuilder, SessionAffinity, no_response
from trimtab.gateway.decide.signals import NodeSignals
from trimtab.gateway.decide.tenant_queues import QueueFigures
from trimtab.gateway.model import NO_BLOCKS, Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet, FleetListener
from trimtab.gateway.nodes.node_resources import use_of
from trimtab.gateway.nodes.tenant_holds import name_of

TIMED_MASK: Final = 63  # one turn in 64 is timed
REFRESH_S: Final = 0.25  # how long reports are gathered before they are written to the states
SETTLE_S: Final = 2.0  # how long new capacities are gathered before the states are rebuilt


class PolicyDispatcher(FleetListener):
    """Implements `model.Dispatcher` and follows the fleet.

    All calls come from the loop's thread. `registry` holds nodes, models and classes; `log` the decisions.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        rules: DispatchRules,
        *,
        estimates: ServiceEstimates | None = None,
        tenants: int = 1,
        inline_plans: bool = False,
        mode: str = "compiled",
        utc_s: Callable[[], float] = time.time,
    ) -> None:
        self.fleet, self._loop = fleet, loop
        self.decisions = 0
        self.signals = NodeSignals(rules.declared)
        self.registry = registry = Registry(fleet, estimates or ServiceEstimates(), self.signals)
        self.log = DecisionLog(registry)
        self._affinity = affinity = SessionAffinity(fleet, rules.prefix_blocks)
        self._requests = RequestBuilder(registry, affinity, rules, loop.time())
        self._pools = pools = PolicyPools(
            loop,
            fleet,
            registry,
            self._requests,
            self._plan_arrived,
            tenants=tenants,
            inline_plans=inline_plans,
            mode=mode,
            utc_s=utc_s,
        )
        self.placements = Placements(fleet, registry, pools)
        self.groupings = Groupings(registry, pools)
        self.log.listeners.append(self.placements)
        self._feedback = Feedback(fleet, pools, registry, affinity, self.placements)
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self.now_s, self.planning, self.write_outages = pools.now_s, pools.planning, pools.write_outages
        self.signals.links.changed = pools.write_link
        fleet.listeners.append(self)

    async def open(self) -> None:
        """Wait until every pool can plan, and start planning."""
        for pool in tuple(self.pools.values()):
            await pool.open()
            self._set_timer(pool)

    def close(self) -> None:
        """Stop all timers and planners."""
        if self in self.fleet.listeners:
            self.fleet.listeners.remove(self)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for pool in self.pools.values():
            pool.close()

    # --- the rules and their policies

    @property
    def pools(self) -> dict[str, PolicyPool]:
        """The pools by their policies' specs."""
        return self._pools.by_spec

    @property
    def rules(self) -> DispatchRules:
        """The rules in force."""
        return self._pools.rules

    def use(self, rules: DispatchRules) -> None:
        """Change the rules; policies that stay keep their state."""
        self._pools.use(rules)
        self.rebuild()

    def make_room_for_tenants(self, count: int) -> None:
        """Make room for this number of tenants."""
        if not self._pools.has_room_for_tenants(count):
            self.rebuild()

    def rebuild(self) -> None:
        """Nodes, models or classes have changed: rebuild the state of every pool."""
        now_s = self.now_s()
        self._pools.rebuild(now_s)
        self._turn_each(tuple(self.pools.values()), now_s)

    def waiting(self) -> list[Exchange]:
        """The requests that no node has."""
        return [one for pool in self.pools.values() for one in pool.exchanges.values() if one.node_idx < 0]

    def waiting_by_model(self) -> dict[str, int]:
        """Their number by model."""
        return dict(Counter("" if one.facts is None else one.facts.model for one in self.waiting()))

    # --- Dispatcher

    def submit(self, exchange: Exchange) -> None:
        """A whole request asks for a node."""
        response_id = "" if exchange.facts is None else exchange.facts.previous_response_id
        if response_id and self._affinity.is_foreign(exchange, response_id):
            exchange.refuse(no_response(response_id))
            return
        pool = self._pools.only or self._pools.of(exchange)
        if not pool.live.has_row:
            self.decide()  # releases the rows of ended requests
            if not pool.live.has_row:
                exchange.refuse(self._requests.queue_full(pool))
                return
        kept_from = self.fleet.meet(name_of(exchange.tenant))
        now_s = self.now_s()
        if exchange.subset is not None:
            self._submit_within(exchange, pool, exchange.subset, kept_from)
        elif pool.reads_prefix:  # decide at once: policies see the prefix of one request at a time
            self._enter_alone(exchange, pool, kept_from, now_s)
        else:
            self._enter(exchange, pool, kept_from, now_s)

    def _submit_within(
        self, exchange: Exchange, pool: PolicyPool, subset: frozenset[int], kept_from: Sequence[int]
    ) -> None:
        """Decide about a request while all nodes but some are off. If need be it waits for one of these."""
        if self.registry.class_of(exchange) is None:
            self._add_class(exchange)
        self.decide()
        now_s, live = self.now_s(), pool.live
        hidden = [j for j in range(len(live.nodes.up)) if live.nodes.up[j] == 1 and j not in subset]
        for j in hidden:
            live.switch(j, False, now_s)
        self._enter_alone(exchange, pool, kept_from, now_s)
        if exchange.node_idx < 0 and pool.exchanges.get(exchange.row) is exchange:
            self._keep_within(exchange, pool)
        for j in hidden:
            live.switch(j, True, now_s)
        self.turn(pool, now_s)

    def _keep_within(self, exchange: Exchange, pool: PolicyPool) -> bool:
        """Pin a request to the least busy node of its subset that it was not sent to; it waits as others do.

        Refuses it and returns False where no node of the subset can serve it.
        """
        if exchange.only_node:
            pool.live.pin(exchange.row, -1)
        able = [node for node in self.able(exchange) if node.idx in (exchange.subset or ())]
        if not able:
            self.abort(exchange)
            exchange.refuse(self._requests.no_node(pool))
            return False
        tried = {attempt.node for attempt in exchange.attempts}
        self._pin(exchange, pool, min(able, key=tried.__contains__))
        pool.within.add(exchange)
        return True

    def _pin(self, exchange: Exchange, pool: PolicyPool, node: Node) -> None:
        exchange.only_node = node.name
        pool.live.pin(exchange.row, node.idx)

    def _held_within(self, pool: PolicyPool) -> tuple[Exchange, ...]:
        """The requests that wait for a node of their subset."""
        pool.within = {x for x in pool.within if x.node_idx < 0 and pool.exchanges.get(x.row) is x}
        return tuple(pool.within)

    def _free(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> None:
        """Release the slots of a request. Those that wait within subsets may have its node, in their turn."""
        for other in self._held_within(pool) if exchange.node_idx >= 0 and pool.within else ():
            if exchange.node_idx in (other.subset or ()):
                self._pin(other, pool, self.fleet.nodes[exchange.node_idx])
        self._turn_each(self._pools.free(pool, exchange, now_s), now_s)

    def _enter_alone(
        self, exchange: Exchange, pool: PolicyPool, kept_from: Sequence[int], now_s: float
    ) -> None:
        """Decide about a request in a turn of its own."""
        matched = self._affinity.show_prefix(exchange, pool) if pool.reads_prefix else NO_BLOCKS
        self._enter(exchange, pool, kept_from, now_s)
        exchange.matched = matched
        self.decide()

    def _enter(self, exchange: Exchange, pool: PolicyPool, kept_from: Sequence[int], now_s: float) -> None:
        of = self.registry.class_of(exchange) or self._add_class(exchange)
        pool.enter(exchange, self._requests.build(exchange, of, pool, now_s), now_s)
        pool.newcomers.append(exchange)
        if kept_from:
            live, row = pool.live, exchange.row
            if any(j not in kept_from and live.suits(row, j) for j in range(len(live.nodes.up))):
                live.avoid(row, kept_from)

    def _add_class(self, exchange: Exchange) -> RequestClass:
        added, is_rebuild_due = self._pools.add_class(exchange)
        if is_rebuild_due:
            self.rebuild()
        return added

    def replace(self, waiting: Exchange, by: Exchange) -> None:
        """A Dispatcher method."""
        pool, of = self._pools.of(waiting), self.registry.class_of(by) or self._add_class(by)
        pool.exchanges[waiting.row] = by
        by.row, by.spec = waiting.row, self._requests.resized(by, of, waiting.spec, pool)
        pool.live.resize(by.row, by.spec)

    def decide(self) -> None:
        """Decide about all submitted requests, in one turn of each pool."""
        for pool in tuple(self.pools.values()):
            if pool.newcomers:
                now_s = self.now_s()
                if self.decisions & TIMED_MASK:
                    turned = pool.turn(now_s)
                else:
                    turned = self.log.timed_turn(pool, now_s)
                self._settle(pool, turned, now_s)

    def resume(self, exchange: Exchange, node: Node) -> None:
        """The request runs on this node already, whatever the node's limits: take a slot. `abort` ends it.

        The state is rebuilt, since the node may have no slot left: too slow for every request.
        """
        pool, now_s = self._pools.of(exchange), self.now_s()
        of = self.registry.class_of(exchange) or self._add_class(exchange)
        exchange.spec = spec = self._requests.build(exchange, of, pool, now_s)
        exchange.estimate_s = pool.live.best_estimate_s(spec.class_idx, spec.units)
        exchange.node_idx = node.idx
        self._pools.inherit(pool, exchange, now_s)
        self.rebuild()

    def progress(self, exchange: Exchange, chunks: int) -> None:
        """Count output during a stream: a chunk of text is about a token."""
        pool, tenant, endpoint = self._pools.of(exchange), exchange.tenant, exchange.endpoint
        is_text = endpoint is not None and endpoint.kind not in MEDIA
        if exchange.row >= 0:
            pool.live.note_read(exchange.row)
        if pool.charges_cost and tenant is not None and is_text:
            pool.live.add_cost(tenant.idx, self.rules.output_weight * chunks / tenant.weight)

    def committed(self, exchange: Exchange) -> None:
        """A Dispatcher method."""
        pool = self._pools.of(exchange)
        if pool.tenant_queues.preempts and pool.exchanges.get(exchange.row) is exchange:
            pool.live.keep(exchange.row)

    def done(self, exchanges: Sequence[Exchange]) -> None:
        """Their attempts have ended with whole responses."""
        now_s, only = self.now_s(), self._pools.only
        left: list[tuple[PolicyPool, Exchange]] = []
        for exchange in exchanges:
            pool = only or self._pools.of(exchange)
            if pool.newcomers:
                self.decide()  # with the state of their arrival
            if self._leave(pool, exchange, now_s):
                left.append((pool, exchange))
        apply_feedback = self._feedback.apply
        for pool, exchange in left:
            try:
                apply_feedback(pool, exchange)
            except Exception as error:  # a fault with one request must not affect others
                self._report("feedback from a request failed", error)
        for pool in dict.fromkeys([pool for pool, _ in left]):
            if pool.live.n_held:
                self.turn(pool, now_s)  # otherwise the next turn is early enough: nothing waits

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        """Its attempt was lost and another is allowed."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        if exchange.row not in pool.exchanges or exchange.node_idx < 0:
            return
        _count_failure(exchange, cause)
        self._free(pool, exchange, now_s)
        if exchange.subset is not None and not self._keep_within(exchange, pool):
            return
        self._requests.shorten_wait(exchange, pool, now_s)
        pool.live.lose(exchange.row, now_s)
        self.turn(pool, now_s)
        is_waiting = pool.exchanges.get(exchange.row) is exchange and exchange.node_idx < 0
        if is_waiting and not self.has_another(exchange):
            pool.live.clear_avoided(exchange.row, now_s)
            self.turn(pool, now_s)

    def has_another(self, exchange: Exchange) -> bool:
        """Whether a node to which it was not sent yet gets work and may serve it, now or once it has room."""
        live = self._pools.of(exchange).live
        tried = {attempt.node.idx for attempt in exchange.attempts}
        return any(j not in tried and live.suits(exchange.row, j) for j in range(len(live.nodes.up)))

    def failed(self, exchange: Exchange, cause: Cause) -> None:
        """Its attempt was lost for good."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        if self._leave(pool, exchange, now_s):
            _count_failure(exchange, cause)
            self.turn(pool, now_s)

    def abort(self, exchange: Exchange) -> None:
        """The request is over, wherever it is: the client left or has another answer."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        if pool.exchanges.pop(exchange.row, None) is None:
            return
        self._free(pool, exchange, now_s)
        pool.live.abort(exchange.row, now_s)
        self.turn(pool, now_s)

    def hedge(self, exchange: Exchange) -> Node | None:
        """Take a slot on the other ready node with the smallest share of its slots in use.

        The rules of the first attempt hold: session affinity, tokens in flight, the reserve.
        """
        self.catch_up()
        return self._pools.hedge(exchange, self.now_s())

    def release(self, node: Node, exchange: Exchange) -> None:
        """One of the two attempts of a hedged exchange is over: release its slot."""
        now_s = self.now_s()
        self._turn_each(self._pools.change_hedge(exchange, node.idx, -1, now_s), now_s)

    def moved(self, exchange: Exchange, node: Node) -> None:
        """A Dispatcher method. To the state it is a hedge that has won."""
        now_s = self.now_s()
        self._turn_each(self._pools.change_hedge(exchange, node.idx, 1, now_s), now_s)
        self._turn_each(self._pools.change_hedge(exchange, exchange.node_idx, -1, now_s), now_s)

    def able(self, exchange: Exchange) -> list[Node]:
        """A Dispatcher method."""
        live, nodes = self._pools.of(exchange).live, self.fleet.nodes
        able = [nodes[j] for j in range(len(live.nodes.up)) if live.suits(exchange.row, j)]
        return sorted(able, key=attrgetter("in_flight"))

    def _leave(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> bool:
        """An exchange ends; returns whether it was running."""
        if pool.exchanges.pop(exchange.row, None) is None or exchange.node_idx < 0:
            return False
        pool.live.complete(exchange.row, now_s)
        self._free(pool, exchange, now_s)
        return True

    # --- FleetListener

    def on_models(self, node: Node) -> None:
        """A FleetListener method, as `on_added`."""
        self.rebuild()

    on_added = on_models

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self.on_switch(node)
        self._affinity.forget(node)
        self.signals.forget(node.idx)

    def on_switch(self, node: Node) -> None:
        """A FleetListener method."""
        switched = self._pools.switch(node)
        for pool in switched:
            for exchange in self._held_within(pool):
                self._keep_within(exchange, pool)
        self._turn_each(switched, self.now_s())

    def on_tenant_released(self, node: Node, tenant: str) -> None:
        """A FleetListener method."""
        for pool in tuple(self.pools.values()):
            now_s = self.now_s()
            for exchange in pool.exchanges.values():
                if exchange.node_idx < 0 and name_of(exchange.tenant) == tenant:
                    pool.live.allow(exchange.row, node.idx, now_s)
            self.turn(pool, now_s)

    def on_adapters(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.mark_held(node)

    def on_capacity(self, node: Node) -> None:
        """A FleetListener method."""
        members = self.registry.shape.members
        if node.idx >= len(members):
            return
        if node.max_requests > members[node.idx].slots:
            self.rebuild()
        elif self._pools.grant(node):
            self.catch_up()

    def on_report(self, node: Node, source: str, values: Mapping[str, float]) -> None:
        """A FleetListener method. Only a capacity that was unknown or has changed needs new states."""
        spec = self.fleet.state(node).spec
        if self.signals.take_capacity(node, spec):
            self._later(SETTLE_S, self.rebuild)
        used, demand = use_of(spec.resources, node.reported), self.registry.all_demand()
        self.signals.take_report(node, source, values, used, demand, self.now_s())
        self._later(REFRESH_S, self._refresh)

    def on_round_trip(self, node: Node, seconds: float) -> None:
        """A FleetListener method."""
        self.signals.round_trips.note(node.idx, seconds)
        self._later(REFRESH_S, self._refresh)

    def _refresh(self) -> None:
        """Write everything that is reported and measured to all pools."""
        self.catch_up()  # counts of requests then agree with the states
        for pool in self.pools.values():
            self._pools.write_signals(pool)
        self.catch_up()

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        """Call `what` once, after this time or sooner."""
        if what not in self._timers:
            self._timers[what] = self._loop.call_later(after_s, self._run, what)

    def _run(self, what: Callable[[], None]) -> None:
        del self._timers[what]
        what()

    # --- turns

    def catch_up(self) -> None:
        """Take the turns that were postponed since nothing waited for them: bring every pool up to date."""
        for pool in tuple(self.pools.values()):
            self.turn(pool, self.now_s())

    def _turn_each(self, pools: Iterable[PolicyPool], now_s: float) -> None:
        for pool in pools:
            self.turn(pool, now_s)

    def turn(self, pool: PolicyPool, now_s: float) -> None:
        """Decide about everything up to now."""
        self._settle(pool, pool.turn(now_s), now_s)

    def _plan_arrived(self, pool: PolicyPool, plan: Plan) -> None:
        self.log.plan_changed(pool.choice.spec, plan)
        self.turn(pool, self.now_s())

    def _settle(self, pool: PolicyPool, turned: Turned, now_s: float) -> None:
        """Carry out the decisions of a turn, and compare the shadow's decisions about its new requests."""
        freed = [self._take_back(pool, exchange, node_idx, now_s) for exchange, node_idx in turned.taken_back]
        started, ended = turned.started, turned.ended
        newcomers, pool.newcomers = pool.newcomers, []
        for exchange in started:
            if exchange.subset is not None:
                pool.live.pin(exchange.row, -1)  # the proxy may go on to others
            exchange.decision = self.log.decision(pool, exchange)
            exchange.estimate_s = pool.live.decisions.estimate_s[exchange.row]
            self.decisions += 1
            self._pools.take(pool, exchange, now_s)
            if pool.reads_prefix:
                self._affinity.note_prefix(exchange)
                if blocks := exchange.matched.get(exchange.node_idx):
                    pool.live.note_cached(exchange.row, blocks * BLOCK_TOKENS)
        for exchange in started:
            if exchange.node_idx >= 0:
                try:
                    exchange.start(self.fleet.nodes[exchange.node_idx])
                except Exception as error:
                    self._report("starting a request failed", error)
                pool.let_preempt(exchange)
        if newcomers and pool.choice.shadow is not None:
            self.log.compare_with_shadow(pool, newcomers)
        if pool.failed:
            self.log.failures(pool)
        self._set_timer(pool)
        for exchange, end in ended:
            exchange.refuse(self._requests.refusal(exchange, end, pool))
        for others in freed:
            self._turn_each(others, now_s)

    def _take_back(
        self, pool: PolicyPool, exchange: Exchange, node_idx: int, now_s: float
    ) -> Sequence[PolicyPool]:
        """A request has lost its node to a queue below its guarantee. Returns pools with a free slot."""
        freed = self._pools.free_at(pool, exchange, node_idx, now_s)
        exchange.take_back()
        if exchange.node_idx < 0:
            self._requests.wait_anew(exchange, pool, now_s)
        return freed

    def queue_figures(self) -> list[QueueFigures]:
        """The figures of hierarchical queues."""
        return self._pools.queue_figures()

    def _report(self, problem: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": problem, "exception": error})

    def _set_timer(self, pool: PolicyPool) -> None:
        at_s = pool.live.next_event_s()
        if at_s == pool.timer_s:
            return
        if pool.timer is not None:
            pool.timer.cancel()
            pool.timer = None
        pool.timer_s = at_s
        if at_s < float("inf"):
            pool.timer = self._loop.call_at(self._pools.origin_s + at_s, self._on_timer, pool)

    def _on_timer(self, pool: PolicyPool) -> None:
        due_s, pool.timer, pool.timer_s = pool.timer_s, None, float("inf")
        self.turn(pool, max(due_s, self.now_s()))


def _count_failure(exchange: Exchange, cause: Cause) -> None:
    if exchange.tenant is not None and exchange.tenant.is_private:
        return
    if cause not in (Cause.BUSY, Cause.RATE_LIMITED, Cause.LOAD) and exchange.attempts:
        exchange.attempts[-1].node.failed += 1
