"""All pools of a dispatcher, one per policy, over the same nodes; and what makes their states anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from trimtab.domain.view import Plan
from trimtab.engine.driver import PlanningLog
from trimtab.gateway.decide.classes import RequestClass
from trimtab.gateway.decide.knowledge import Knowledge
from trimtab.gateway.decide.pool import Ask, Chosen, Pool
from trimtab.gateway.decide.rules import Rules
from trimtab.gateway.decide.shape import write_estimates
from trimtab.gateway.model import Endpoint, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet

SPARE_TENANTS: Final = 64
SPARE_ROWS: Final = 1024


class Turns(Protocol):
    """Who lets pools take their turns, and does what they decide."""

    decisions: int  # requests that were started so far

    def turn(self, pool: Pool, now_s: float) -> None:
        """Decide about everything up to now."""


class Pools:
    """The pools by their policies' words, the rules that choose among them, and their time.

    `ask` says anew what a waiting request asks for; `burden` tells a fresh state what nodes carry besides;
    `on_plan` is told a policy's words and the plan that takes force.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        rules: Rules,
        knowledge: Knowledge,
        turns: Turns,
        *,
        ask: Ask,
        burden: Callable[[Pool, float], None],
        on_plan: Callable[[str, Plan], None],
        tenants: int,
        inline_plans: bool,
        mode: str,
    ) -> None:
        self.rules = rules
        self.by_spec: dict[str, Pool] = {}
        self.only: Pool | None = None  # the one that all requests go to
        self.origin_s = loop.time()  # on the loop's clock
        self._loop, self._fleet, self._knowledge, self._turns = loop, fleet, knowledge, turns
        self._ask, self._burden, self._on_plan = ask, burden, on_plan
        self._planned, self._planned_beside = PlanningLog(), PlanningLog()  # by pools that are gone
        self._tenants, self._inline, self._mode = tenants + SPARE_TENANTS, inline_plans, mode
        self._granted: list[int] = []  # places of each node that the pools know as its room
        self._add_missing()

    def now_s(self) -> float:
        """Time of the pools: seconds since they were made."""
        return self._loop.time() - self.origin_s

    def of(self, exchange: Exchange) -> Pool:
        """The pool that is in charge of a request."""
        rules = self.rules
        if (rules.by_model or rules.by_route) and exchange.facts is not None:
            return self.by_spec[rules.of(exchange.route, exchange.facts.model).spec]
        return self.by_spec[rules.default.spec]

    def planning(self) -> tuple[PlanningLog, PlanningLog]:
        """What became of plans: of the policies in charge, and of those in their shadow."""
        live, beside = PlanningLog(), PlanningLog()
        live.add(self._planned)
        beside.add(self._planned_beside)
        for pool in self.by_spec.values():
            live.add(pool.planning)
            beside.add(pool.shadow_planning)
        return live, beside

    # --- changes of policy, tenants and classes

    def use(self, rules: Rules) -> None:
        """Other rules from now on; policies that stay keep their state."""
        before = self.by_spec
        self.rules, self.by_spec = rules, {}
        for choice in rules.all_chosen():
            if choice.spec in before and choice.spec not in self.by_spec:
                pool = self.by_spec[choice.spec] = before[choice.spec]
                pool.choice = choice  # with another shadow, perhaps
        self._add_missing()
        for spec, pool in before.items():
            self._move_strangers(pool)
            if spec not in self.by_spec:
                pool.close()
                self._planned.add(pool.planning)
                self._planned_beside.add(pool.shadow_planning)
        self.remake()

    def make_room_for_tenants(self, count: int) -> None:
        """There are so many tenants now."""
        if count > self._tenants:
            self._tenants = 2 * count
            self.remake()

    def add_class(self, model: str, endpoint: Endpoint | None) -> RequestClass:
        """The class of requests that no class was found for: from now on a row in all tables."""
        knowledge = self._knowledge
        n_before, rows_before = len(knowledge.classes.rows), knowledge.rows
        known = knowledge.add_class(model, endpoint)
        if knowledge.rows > rows_before:
            self.remake()
        elif len(knowledge.classes.rows) > n_before:
            for pool in self.by_spec.values():
                tables = pool.live.fixed_s, pool.live.unit_s
                write_estimates(*tables, known.idx, known.key, knowledge.shape, knowledge.estimates)
        return known

    # --- changes of nodes

    def remake(self) -> None:
        """Nodes, models or classes have changed: all pools go on with another cluster."""
        knowledge = self._knowledge
        knowledge.look_again()
        now_s = self.now_s()
        pools = self.by_spec.values()
        for exchange in [e.exchange for pool in pools for e in pool.waiting()]:
            knowledge.add_class(knowledge.model_of(exchange), exchange.endpoint)
        for pool in pools:
            pool.resize(self.rules.options(), self._room(), self._tenants)
            pool.remake(knowledge.shape, knowledge.cluster(), pool.choice, now_s, self._ask)
        for pool in pools:  # once all hold what they inherit
            self._inform(pool, now_s)
        for pool in tuple(pools):
            self._turns.turn(pool, now_s)

    def switch(self, node: Node) -> None:
        """It gets work from now on, or gets none."""
        if node.idx >= len(self._knowledge.shape.members):
            return
        self._knowledge.forget_models()
        now_s, up = self.now_s(), self._fleet.gets_work(node)
        for pool in self.by_spec.values():
            if (pool.live.nodes.up[node.idx] == 1) != up:
                pool.live.switch(node.idx, up, now_s)
                self._turns.turn(pool, now_s)

    def mark_adapters(self, node: Node) -> None:
        """It holds other adapters: no decision is due for that."""
        if node.idx < len(self._knowledge.shape.members):
            for pool in self.by_spec.values():
                pool.mark_adapters(node.idx, self._fleet.state(node).held_adapters)

    def change_capacity(self, node: Node) -> None:
        """It takes more requests at a time, or fewer."""
        members = self._knowledge.shape.members
        if node.idx >= len(members):
            return
        if node.max_requests > members[node.idx].slots:
            self.remake()
            return
        self._grant(node)

    def _grant(self, node: Node) -> None:
        now_s, j, allowed = self.now_s(), node.idx, self._allowed(node)
        change = allowed - self._granted[j]
        if change:
            self._granted[j] = allowed
            for pool in self.by_spec.values():
                pool.live.change_room(j, change, now_s)
                self._turns.turn(pool, now_s)

    # --- inside

    def _add_missing(self) -> None:
        for choice in self.rules.all_chosen():
            if choice.spec not in self.by_spec:
                self.by_spec[choice.spec] = pool = self._new_pool(choice)
                self._switch_all(pool, self.now_s())
        rules = self.rules
        self.only = None if rules.by_model or rules.by_route else self.by_spec[rules.default.spec]

    def _new_pool(self, choice: Chosen) -> Pool:
        return Pool(
            choice,
            self._knowledge.shape,
            self._knowledge.cluster(),
            self.rules.options(),
            rows=self._room(),
            tenants=self._tenants,
            seed=self.rules.seed,
            now=self.now_s,
            wake=lambda pool: self._turns.turn(pool, self.now_s()),
            on_plan=self._on_plan,
            later=self._loop.call_later,
            inline_plans=self._inline,
            mode=self._mode,
        )

    def _room(self) -> int:
        """Requests that a pool has room for: waiting and running ones."""
        return 2 * self.rules.held_max + sum(m.slots for m in self._knowledge.shape.members) + SPARE_ROWS

    def _move_strangers(self, pool: Pool) -> None:
        """Exchanges that another policy is in charge of now go there; the caller makes all pools anew."""
        strangers = [row for row, e in pool.entries.items() if self.of(e.exchange) is not pool]
        for entry in pool.give(strangers):
            self.of(entry.exchange).inherit([entry])

    def _inform(self, pool: Pool, now_s: float) -> None:
        """Tell a fresh state what its nodes have of others, and who gets work."""
        self._burden(pool, now_s)
        self._switch_all(pool, now_s)

    def _switch_all(self, pool: Pool, now_s: float) -> None:
        """Tell a fresh state who gets work, and how much."""
        members = self._knowledge.shape.members
        self._granted = [m.slots for m in members]
        if not self._fleet.nodes:
            pool.live.switch(0, False, now_s)  # NOBODY
        taken: dict[int, float] = {}
        for entry in pool.entries.values():
            taken[entry.node_idx] = taken.get(entry.node_idx, 0.0) + entry.asked.tokens
        for node, member in zip(self._fleet.nodes, members, strict=False):
            j = node.idx
            if not self._fleet.gets_work(node):
                pool.live.switch(j, False, now_s)
            if node.max_tokens:
                pool.live.limit_tokens(j, node.max_tokens - taken.get(j, 0.0))
            pool.mark_adapters(j, self._fleet.state(node).held_adapters)
            pool.live.reserve(j, int(self.rules.reserve_frac * member.slots))
            allowed = self._allowed(node)
            if allowed != member.slots:
                pool.live.change_room(j, allowed - member.slots, now_s)
            self._granted[j] = allowed

    def _allowed(self, node: Node) -> int:
        return min(node.max_requests, self._fleet.allowed_requests(node, self._loop.time()))
