"""The gateway's dispatcher: exchanges in, nodes out. One desk per policy; nodes are shared by all of them.

Whatever the data plane tells becomes an event of the pool's state, then the desk takes its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from trimtab.engine.decision_trace import ESTIMATE_S
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import RequestSpec
from trimtab.gateway.api.units import MEDIA
from trimtab.gateway.decide.affinity import Affinity
from trimtab.gateway.decide.asking import Asking
from trimtab.gateway.decide.estimates import Estimates
from trimtab.gateway.decide.knowledge import Knowledge
from trimtab.gateway.decide.lessons import Lessons
from trimtab.gateway.decide.notes import Notes
from trimtab.gateway.decide.occupancy import Occupancy
from trimtab.gateway.decide.pool import Entry, Pool, Turned
from trimtab.gateway.decide.pools import Pools
from trimtab.gateway.decide.refusals import no_response, queue_full, refusal
from trimtab.gateway.decide.rules import Rules
from trimtab.gateway.model import Cause, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.fleet_listener import FleetListener

TIMED_MASK: Final = 63  # one turn in 64 is timed


class Decider(FleetListener):
    """Implements `model.Dispatcher`, `nodes.fleet.FleetListener` and `pools.Turns`.

    All calls come from the loop's thread. `knowledge` is what it knows of nodes and classes, `notes` what it
    tells of its decisions.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        rules: Rules,
        *,
        estimates: Estimates | None = None,
        tenants: int = 1,
        inline_plans: bool = False,
        mode: str = "compiled",
    ) -> None:
        self.fleet, self._loop = fleet, loop
        self.decisions = 0
        self.knowledge = knowledge = Knowledge(fleet, estimates or Estimates())
        self.notes = Notes(knowledge)
        self._affinity = affinity = Affinity(fleet, rules.prefix_blocks)
        self._pools = pools = Pools(
            loop,
            fleet,
            rules,
            knowledge,
            self,
            ask=self._ask_again,
            burden=self._burden,
            on_plan=lambda policy, plan: self.notes.on_plan(policy, plan),
            tenants=tenants,
            inline_plans=inline_plans,
            mode=mode,
        )
        self._asking = Asking(pools, knowledge, affinity)
        self._lessons = Lessons(fleet, pools, knowledge, affinity)
        self._occupancy = Occupancy(fleet, pools, self)
        self.now_s = pools.now_s
        fleet.listeners.append(self)

    def _ask_again(self, entry: Entry, pool: Pool) -> RequestSpec:
        return self._asking.ask_again(entry, pool)

    def _burden(self, pool: Pool, now_s: float) -> None:
        self._occupancy.tell(pool, now_s)

    async def open(self) -> None:
        """Wait until every pool can plan; plans are made from now on."""
        for pool in tuple(self.pools.values()):
            await pool.open()
            self._set_timer(pool)

    def close(self) -> None:
        """No timer and no planner is left."""
        if self in self.fleet.listeners:
            self.fleet.listeners.remove(self)
        for pool in self.pools.values():
            pool.close()

    # --- the rules and their policies

    @property
    def pools(self) -> dict[str, Pool]:
        """The pools by their policies' words."""
        return self._pools.by_spec

    @property
    def rules(self) -> Rules:
        """The rules that hold now."""
        return self._pools.rules

    def use(self, rules: Rules) -> None:
        """Other rules from now on; policies that stay keep their state."""
        self._pools.use(rules)

    def planning(self) -> tuple[PlanningLog, PlanningLog]:
        """What became of plans: of the policies in charge, and of those in their shadow."""
        return self._pools.planning()

    def make_room_for_tenants(self, count: int) -> None:
        """There are so many tenants now."""
        self._pools.make_room_for_tenants(count)

    # --- Dispatcher

    def submit(self, exchange: Exchange) -> None:
        """A whole request asks for a node."""
        response_id = "" if exchange.facts is None else exchange.facts.previous_response_id
        if response_id and self._affinity.is_foreign(exchange, response_id):
            exchange.refuse(no_response(response_id))
            return
        pool = self._pools.only or self._pools.of(exchange)
        if not pool.live.has_row:
            self.decide()  # which gives back the rows of what has ended
            if not pool.live.has_row:
                exchange.refuse(queue_full(pool))
                return
        now_s = self.now_s()
        if pool.reads_prefix:
            self._decide_alone(exchange, pool, now_s)
        else:
            self._enter(exchange, pool, now_s)

    def _decide_alone(self, exchange: Exchange, pool: Pool, now_s: float) -> None:
        """Policies see one request's prefix at a time."""
        matched = self._affinity.show_prefix(exchange, pool)
        entry = self._enter(exchange, pool, now_s)
        if matched:
            entry.matched = matched
        self.decide()

    def _enter(self, exchange: Exchange, pool: Pool, now_s: float) -> Entry:
        entry = pool.enter(exchange, self._asking.asked(exchange, pool, now_s), now_s)
        pool.newcomers.append(entry)
        return entry

    def decide(self) -> None:
        """Decide about all that was submitted, in one turn of each pool: every request as of its own time."""
        for pool in tuple(self.pools.values()):
            if pool.newcomers:
                now_s = self.now_s()
                if self.decisions & TIMED_MASK:
                    turned = pool.turn(now_s)
                else:
                    turned = self.notes.timed_turn(pool, now_s)
                self._settle(pool, turned, now_s)

    def resume(self, exchange: Exchange, node: Node) -> None:
        """It runs on this node already, whatever its bounds are: it takes a place there. `abort` ends it.

        The state is made anew, since the node may have no place left to put it: not for every request.
        """
        pool = self._pools.of(exchange)
        asked = self._asking.asked(exchange, pool, self.now_s())
        exchange.estimate_s = pool.live.best_estimate_s(asked.class_idx, asked.units)
        self._occupancy.inherit(pool, Entry(exchange, asked, node.idx))
        self._pools.remake()

    def progress(self, exchange: Exchange, chunks: int) -> None:
        """Count output as it comes: a chunk is about a token, where output is text."""
        pool, tenant, endpoint = self._pools.of(exchange), exchange.tenant, exchange.endpoint
        is_text = endpoint is not None and endpoint.kind not in MEDIA
        if pool.choice.order.reads_virtual_counters and tenant is not None and is_text:
            pool.live.add_cost(tenant.idx, self._pools.rules.output_weight * chunks / tenant.weight)

    def done(self, exchanges: Sequence[Exchange]) -> None:
        """Their attempts have ended with whole responses."""
        now_s, only = self.now_s(), self._pools.only
        left: list[tuple[Pool, Entry]] = []
        for exchange in exchanges:
            pool = only or self._pools.of(exchange)
            if pool.newcomers:
                self.decide()  # by what was known when they came
            entry = self._leave(pool, exchange, now_s)
            if entry is not None:
                left.append((pool, entry))
        learn = self._lessons.learn
        for pool, entry in left:
            try:
                learn(pool, entry)
            except Exception as error:  # a fault with one request is its own
                self._report("learning from a request failed", error)
        for pool in dict.fromkeys([pool for pool, _ in left]):
            if pool.live.n_held:
                self.turn(pool, now_s)  # else the next turn sees it: nothing waits for these places

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        """Its attempt was lost and another is allowed."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        entry = pool.entries.get(exchange.row)
        if entry is None or entry.node_idx < 0:
            return
        _count_failure(exchange, cause)
        self._occupancy.free(pool, entry, now_s)
        pool.live.lose(exchange.row, now_s)
        self.turn(pool, now_s)
        waits = pool.entries.get(exchange.row) is entry and entry.node_idx < 0
        if waits and not self.has_another(exchange):
            pool.live.forgive(exchange.row, now_s)
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
        """Nobody waits for it any more, wherever it is."""
        now_s = self.now_s()
        pool = self._pools.of(exchange)
        entry = pool.entries.pop(exchange.row, None)
        if entry is None:
            return
        self._occupancy.free(pool, entry, now_s)
        pool.live.abort(exchange.row, now_s)
        self.turn(pool, now_s)

    def hedge(self, exchange: Exchange) -> Node | None:
        """The other ready node with the smallest share of its places taken, with one more taken.

        What holds for the first attempt holds for the second: its home, tokens in flight, the reserve.
        """
        self.catch_up()
        return self._occupancy.hedge(self._pools.of(exchange), exchange, self.now_s())

    def release(self, node: Node, exchange: Exchange) -> None:
        """One of the two attempts of a hedged exchange is over: its place is free."""
        self._occupancy.change(self._pools.of(exchange), exchange, node.idx, -1, self.now_s())

    def _leave(self, pool: Pool, exchange: Exchange, now_s: float) -> Entry | None:
        """A running exchange ends."""
        entry = pool.entries.pop(exchange.row, None)
        if entry is None or entry.node_idx < 0:
            return None
        pool.live.complete(exchange.row, now_s)
        self._occupancy.free(pool, entry, now_s)
        return entry

    # --- FleetListener

    def on_added(self, node: Node) -> None:
        """A node more: the state is made anew."""
        self._pools.remake()

    def on_removed(self, node: Node) -> None:
        """It gets nothing any more."""
        self._pools.switch(node)
        self._affinity.forget(node)

    def on_switch(self, node: Node) -> None:
        """It gets work from now on, or gets none."""
        self._pools.switch(node)

    def on_models(self, node: Node) -> None:
        """It serves other models."""
        self._pools.remake()

    def on_adapters(self, node: Node) -> None:
        """It holds other adapters."""
        self._pools.mark_adapters(node)

    def on_capacity(self, node: Node) -> None:
        """It takes more requests at a time, or fewer."""
        self._pools.change_capacity(node)

    # --- Turns

    def catch_up(self) -> None:
        """Take the turns that were put off as nothing waited for them: what pools show is of now."""
        for pool in tuple(self.pools.values()):
            self.turn(pool, self.now_s())

    def turn(self, pool: Pool, now_s: float) -> None:
        """Decide about everything up to now."""
        self._settle(pool, pool.turn(now_s), now_s)

    def _settle(self, pool: Pool, turned: Turned, now_s: float) -> None:
        """Do what a turn has decided, and note what a shadow says of those who came with it."""
        started, ended = turned
        newcomers, pool.newcomers = pool.newcomers, []
        for entry, node_idx in started:
            exchange = entry.exchange
            exchange.decision = self.notes.decision(pool, entry)
            exchange.estimate_s = estimate_s = pool.live.decision_trace_numbers(exchange.row)[ESTIMATE_S]
            self.decisions += 1
            self._occupancy.take(pool, node_idx, estimate_s, now_s)
            if pool.reads_prefix:
                self._affinity.note_prefix(exchange, node_idx)
        for entry, _ in started:
            if entry.node_idx >= 0:
                try:
                    entry.exchange.start(self.fleet.nodes[entry.node_idx])
                except Exception as error:
                    self._report("starting a request failed", error)
        if newcomers and pool.choice.shadow is not None:
            self.notes.shadow(pool, newcomers)
        if pool.failed:
            self.notes.failures(pool)
        self._set_timer(pool)
        for entry, end in ended:
            exchange = entry.exchange
            exchange.refuse(refusal(pool, end, self._asking.is_own_deadline(entry)))

    def _report(self, problem: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": problem, "exception": error})

    def _set_timer(self, pool: Pool) -> None:
        at_s = pool.live.next_event_s()
        if at_s == pool.timer_s:
            return
        if pool.timer is not None:
            pool.timer.cancel()
            pool.timer = None
        pool.timer_s = at_s
        if at_s < float("inf"):
            pool.timer = self._loop.call_at(self._pools.origin_s + at_s, self._on_timer, pool)

    def _on_timer(self, pool: Pool) -> None:
        due_s, pool.timer, pool.timer_s = pool.timer_s, None, float("inf")
        self.turn(pool, max(due_s, self.now_s()))


def _count_failure(exchange: Exchange, cause: Cause) -> None:
    if cause is not Cause.BUSY and exchange.attempts:
        exchange.attempts[-1].node.failed += 1
