"""The gateway's dispatcher: requests in, nodes out. One pool per policy; all pools share the nodes.

Every call of the data plane becomes an event of the pool's state; then the pool takes a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from trimtab.domain.view import Plan
from trimtab.engine.decision_trace import ESTIMATE_S
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import RequestSpec
from trimtab.gateway.api.units import MEDIA
from trimtab.gateway.decide.decision_log import DecisionLog
from trimtab.gateway.decide.dispatch_rules import DispatchRules
from trimtab.gateway.decide.estimates import ServiceEstimates
from trimtab.gateway.decide.feedback import Feedback
from trimtab.gateway.decide.groupings import Groupings
from trimtab.gateway.decide.node_signals import NodeSignals
from trimtab.gateway.decide.placements import Placements
from trimtab.gateway.decide.pool import Entry, PolicyPool, Turned
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.refusals import no_response, queue_full, refusal
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.report_feed import ReportFeed
from trimtab.gateway.decide.request_builder import RequestBuilder
from trimtab.gateway.decide.session_affinity import SessionAffinity
from trimtab.gateway.decide.slot_accounting import SlotAccounting
from trimtab.gateway.model import Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.fleet_listener import FleetListener
from trimtab.gateway.nodes.tenant_holds import name_of

TIMED_MASK: Final = 63  # one turn in 64 is timed


class PolicyDispatcher(FleetListener):
    """Implements `model.Dispatcher`, `FleetListener` and `pool.PoolOwner`.

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
        self._pools = pools = PolicyPools(
            loop,
            fleet,
            rules,
            registry,
            self,
            tenants=tenants,
            inline_plans=inline_plans,
            mode=mode,
            utc_s=utc_s,
        )
        self._requests = RequestBuilder(pools, registry, affinity)
        self.placements = Placements(fleet, registry, pools)
        self.groupings = Groupings(registry, pools)
        self.log.listeners += (self.placements, self.groupings)
        self._feedback = Feedback(fleet, pools, registry, affinity, self.placements)
        self._slots = SlotAccounting(fleet, pools, self, self.signals.counts)
        self._feed = ReportFeed(fleet, registry, pools, self.catch_up)
        self.now_s, self.write_outages = pools.now_s, pools.write_outages
        fleet.listeners += (self, self._feed)

    async def open(self) -> None:
        """Wait until every pool can plan, and start planning."""
        for pool in tuple(self.pools.values()):
            await pool.open()
            self._set_timer(pool)

    def close(self) -> None:
        """Stop all timers and planners."""
        for listener in (self, self._feed):
            if listener in self.fleet.listeners:
                self.fleet.listeners.remove(listener)
        self._feed.close()
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

    def planning(self) -> tuple[PlanningLog, PlanningLog]:
        """Outcomes of plans: of the live policies, and of their shadow policies."""
        return self._pools.planning()

    def make_room_for_tenants(self, count: int) -> None:
        """Make room for this number of tenants."""
        self._pools.make_room_for_tenants(count)

    def waiting(self) -> list[Exchange]:
        """The requests that no node has."""
        entries = (entry for pool in self.pools.values() for entry in pool.entries.values())
        return [entry.exchange for entry in entries if entry.node_idx < 0]

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
                exchange.refuse(queue_full(pool, self.rules.max_wait_s))
                return
        kept_from = self.fleet.meet(name_of(exchange.tenant))
        now_s = self.now_s()
        if pool.reads_prefix:
            self._decide_alone(exchange, pool, kept_from, now_s)
        else:
            self._enter(exchange, pool, kept_from, now_s)

    def _decide_alone(
        self, exchange: Exchange, pool: PolicyPool, kept_from: Sequence[int], now_s: float
    ) -> None:
        """Decide at once: policies see the prefix of one request at a time."""
        matched = self._affinity.show_prefix(exchange, pool)
        entry = self._enter(exchange, pool, kept_from, now_s)
        if matched:
            entry.matched = matched
        self.decide()

    def _enter(self, exchange: Exchange, pool: PolicyPool, kept_from: Sequence[int], now_s: float) -> Entry:
        entry = pool.enter(exchange, self._requests.build(exchange, pool, now_s), now_s)
        pool.newcomers.append(entry)
        if kept_from:
            live, row = pool.live, exchange.row
            if any(j not in kept_from and live.suits(row, j) for j in range(len(live.nodes.up))):
                live.avoid(row, kept_from)
        return entry

    def replace(self, waiting: Exchange, by: Exchange) -> None:
        """A Dispatcher method."""
        pool = self._pools.of(waiting)
        entry = pool.entries[waiting.row]
        entry.exchange, by.row = by, waiting.row
        entry.spec = self._requests.resized(entry, pool)
        pool.live.resize(by.row, entry.spec)

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
        pool = self._pools.of(exchange)
        spec = self._requests.build(exchange, pool, self.now_s())
        exchange.estimate_s = pool.live.best_estimate_s(spec.class_idx, spec.units)
        self._slots.inherit(pool, Entry(exchange, spec, node.idx))
        self._pools.rebuild()

    def progress(self, exchange: Exchange, chunks: int) -> None:
        """Count output during a stream: a chunk of text is about a token."""
        pool, tenant, endpoint = self._pools.of(exchange), exchange.tenant, exchange.endpoint
        is_text = endpoint is not None and endpoint.kind not in MEDIA
        if pool.charges_cost and tenant is not None and is_text:
            pool.live.add_cost(tenant.idx, self._pools.rules.output_weight * chunks / tenant.weight)

    def done(self, exchanges: Sequence[Exchange]) -> None:
        """Their attempts have ended with whole responses."""
        now_s, only = self.now_s(), self._pools.only
        left: list[tuple[PolicyPool, Entry]] = []
        for exchange in exchanges:
            pool = only or self._pools.of(exchange)
            if pool.newcomers:
                self.decide()  # with the state of their arrival
            entry = self._leave(pool, exchange, now_s)
            if entry is not None:
                left.append((pool, entry))
        apply_feedback = self._feedback.apply
        for pool, entry in left:
            try:
                apply_feedback(pool, entry)
            except Exception as error:  # a fault with one request must not affect others
                self._report("feedback from a request failed", error)
        for pool in dict.fromkeys([pool for pool, _ in left]):
            if pool.live.n_held:
                self.turn(pool, now_s)  # otherwise the next turn is early enough: nothing waits

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        """Its attempt was lost and another is allowed."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        entry = pool.entries.get(exchange.row)
        if entry is None or entry.node_idx < 0:
            return
        _count_failure(exchange, cause)
        self._slots.free(pool, entry, now_s)
        self._requests.shorten_wait(entry, pool, now_s)
        pool.live.lose(exchange.row, now_s)
        self.turn(pool, now_s)
        is_waiting = pool.entries.get(exchange.row) is entry and entry.node_idx < 0
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
        if self._leave(pool, exchange, now_s) is not None:
            _count_failure(exchange, cause)
            self.turn(pool, now_s)

    def abort(self, exchange: Exchange) -> None:
        """The request is over, wherever it is: the client left or has another answer."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        entry = pool.entries.pop(exchange.row, None)
        if entry is None:
            return
        self._slots.free(pool, entry, now_s)
        pool.live.abort(exchange.row, now_s)
        self.turn(pool, now_s)

    def hedge(self, exchange: Exchange) -> Node | None:
        """Take a slot on the other ready node with the smallest share of its slots in use.

        The rules of the first attempt hold: session affinity, tokens in flight, the reserve.
        """
        self.catch_up()
        return self._slots.hedge(self._pools.of(exchange), exchange, self.now_s())

    def release(self, node: Node, exchange: Exchange) -> None:
        """One of the two attempts of a hedged exchange is over: release its slot."""
        self._slots.change(self._pools.of(exchange), exchange, node.idx, -1, self.now_s())

    def _leave(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> Entry | None:
        """A running exchange ends."""
        entry = pool.entries.pop(exchange.row, None)
        if entry is None or entry.node_idx < 0:
            return None
        pool.live.complete(exchange.row, now_s)
        self._slots.free(pool, entry, now_s)
        return entry

    # --- FleetListener

    def on_added(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.rebuild()

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.switch(node)
        self._affinity.forget(node)

    def on_switch(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.switch(node)

    def on_tenant_released(self, node: Node, tenant: str) -> None:
        """A FleetListener method."""
        for pool in tuple(self.pools.values()):
            now_s = self.now_s()
            for entry in pool.entries.values():
                if entry.node_idx < 0 and name_of(entry.exchange.tenant) == tenant:
                    pool.live.allow(entry.exchange.row, node.idx, now_s)
            self.turn(pool, now_s)

    def on_models(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.rebuild()

    def on_adapters(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.mark_held(node)

    def on_capacity(self, node: Node) -> None:
        """A FleetListener method."""
        self._pools.change_capacity(node)

    # --- PoolOwner

    def rebuild_spec(self, entry: Entry, pool: PolicyPool) -> RequestSpec:
        """A PoolOwner method."""
        return self._requests.rebuild(entry, pool)

    def add_background_load(self, pool: PolicyPool, now_s: float) -> None:
        """A PoolOwner method."""
        self._slots.add_background_load(pool, now_s)

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """A PoolOwner method."""
        self.log.plan_changed(policy, plan)

    # --- turns

    def catch_up(self) -> None:
        """Take the turns that were postponed since nothing waited for them: bring every pool up to date."""
        for pool in tuple(self.pools.values()):
            self.turn(pool, self.now_s())

    def turn(self, pool: PolicyPool, now_s: float) -> None:
        """Decide about everything up to now."""
        self._settle(pool, pool.turn(now_s), now_s)

    def _settle(self, pool: PolicyPool, turned: Turned, now_s: float) -> None:
        """Carry out the decisions of a turn, and compare the shadow's decisions about its new requests."""
        started, ended = turned
        newcomers, pool.newcomers = pool.newcomers, []
        for entry, node_idx in started:
            exchange = entry.exchange
            exchange.decision = self.log.decision(pool, entry)
            exchange.estimate_s = pool.live.decision_trace_numbers(exchange.row)[ESTIMATE_S]
            self.decisions += 1
            self._slots.take(pool, exchange, node_idx, now_s)
            if pool.reads_prefix:
                self._affinity.note_prefix(exchange, node_idx)
        for entry, _ in started:
            if entry.node_idx >= 0:
                try:
                    entry.exchange.start(self.fleet.nodes[entry.node_idx])
                except Exception as error:
                    self._report("starting a request failed", error)
        if newcomers and pool.choice.shadow is not None:
            self.log.compare_with_shadow(pool, newcomers)
        if pool.failed:
            self.log.failures(pool)
        self._set_timer(pool)
        for entry, end in ended:
            exchange = entry.exchange
            exchange.refuse(
                refusal(pool, end, self.rules.max_wait_s, is_own=self._requests.is_own_deadline(entry))
            )

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
    if cause not in (Cause.BUSY, Cause.RATE_LIMITED, Cause.LOAD) and exchange.attempts:
        exchange.attempts[-1].node.failed += 1
