"""The pools of a dispatcher, one per policy, over the same nodes; changes that rebuild their states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from trimtab.domain.options import Options
from trimtab.engine.driver import PlanningLog
from trimtab.gateway.decide.cluster_builder import write_estimates
from trimtab.gateway.decide.dispatch_rules import DispatchRules, PolicyChoice
from trimtab.gateway.decide.estimates import NewEstimate, RequestClass
from trimtab.gateway.decide.outage_rows import outage_rows
from trimtab.gateway.decide.pool import PolicyPool, PoolOwner
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import Endpoint, Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet

SPARE_TENANTS: Final = 64
SPARE_ROWS: Final = 1024


class Informer(Protocol):
    """Tells pools what is reported and measured of nodes."""

    def write(self, pool: PolicyPool) -> None:
        """Write everything to a state that is up to date."""

    def write_class(self, pool: PolicyPool, class_idx: int) -> None:
        """Write the demand of a new class."""


class PolicyPools:
    """The pools by their policies' specs, the rules that choose among them, and their time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        rules: DispatchRules,
        registry: Registry,
        owner: PoolOwner,
        *,
        tenants: int,
        inline_plans: bool,
        mode: str,
        utc_s: Callable[[], float],
    ) -> None:
        self.rules = rules
        self.by_spec: dict[str, PolicyPool] = {}
        self.only: PolicyPool | None = None  # the pool of all requests, where there is one
        self.origin_s = loop.time()  # on the loop's clock
        self._loop, self._fleet, self._registry, self._owner = loop, fleet, registry, owner
        self._planned, self._planned_beside = PlanningLog(), PlanningLog()  # by closed pools
        self._tenants, self._inline, self._mode = tenants + SPARE_TENANTS, inline_plans, mode
        self._utc_s = utc_s  # seconds since 1970, now
        self._granted: list[int] = []  # slots of each node that the pools may use
        self.informer: Informer | None = None
        self._add_missing()

    def now_s(self) -> float:
        """Time of the pools: seconds since they were made."""
        return self._loop.time() - self.origin_s

    def of(self, exchange: Exchange) -> PolicyPool:
        """The pool that decides about a request."""
        rules = self.rules
        if (rules.by_model or rules.by_route) and exchange.facts is not None:
            return self.by_spec[rules.of(exchange.route, exchange.facts.model).spec]
        return self.by_spec[rules.default.spec]

    def planning(self) -> tuple[PlanningLog, PlanningLog]:
        """Outcomes of plans: of the live policies, and of their shadow policies."""
        live, beside = PlanningLog(), PlanningLog()
        live.add(self._planned)
        beside.add(self._planned_beside)
        for pool in self.by_spec.values():
            live.add(pool.planning)
            beside.add(pool.shadow_planning)
        return live, beside

    # --- changes of policy, tenants and classes

    def use(self, rules: DispatchRules) -> None:
        """Change the rules; policies that stay keep their state."""
        before = self.by_spec
        self._registry.signals.declared = rules.declared
        self.rules, self.by_spec = rules, {}
        for choice in rules.choices():
            if choice.spec in before and choice.spec not in self.by_spec:
                pool = self.by_spec[choice.spec] = before[choice.spec]
                pool.choice = choice  # its shadow may have changed
        self._add_missing()
        for spec, pool in before.items():
            self._hand_over_entries(pool)
            if spec not in self.by_spec:
                pool.close()
                self._planned.add(pool.planning)
                self._planned_beside.add(pool.shadow_planning)
        self.rebuild()

    def make_room_for_tenants(self, count: int) -> None:
        """Make room for this number of tenants."""
        if count > self._tenants:
            self._tenants = 2 * count
            self.rebuild()

    def add_class(self, model: str, endpoint: Endpoint | None) -> RequestClass:
        """Add a class of requests: a row in all tables."""
        registry = self._registry
        n_before, rows_before = len(registry.classes), registry.rows
        known = registry.add_class(model, endpoint)
        is_new = len(registry.classes) > n_before
        if registry.rows > rows_before or (is_new and model in self.rules.holding_cost):
            self.rebuild()  # memories of orders hold the costs
        elif is_new:
            for pool in self.by_spec.values():
                tables = pool.live.fixed_s, pool.live.unit_s
                write_estimates(*tables, known.idx, known.key, registry.shape, registry.estimates)
                if self.informer is not None:
                    self.informer.write_class(pool, known.idx)
        return known

    def set_estimate(self, of: RequestClass, new: NewEstimate) -> None:
        """Write an estimate into the tables of every pool."""
        for g in self._registry.columns(of, new.type_name):
            for pool in self.by_spec.values():
                pool.live.set_estimate(of.idx, g, new.fixed_s, new.unit_s)

    # --- changes of nodes

    def rebuild(self) -> None:
        """Nodes, models or classes have changed: rebuild the state of every pool."""
        registry = self._registry
        registry.refresh()
        now_s = self.now_s()
        pools = self.by_spec.values()
        for exchange in [e.exchange for pool in pools for e in pool.waiting()]:
            registry.add_class(registry.model_of(exchange), exchange.endpoint)
        for pool in pools:
            pool.resize(self._options(), self._room(), self._tenants)
            pool.rebuild(registry.shape, registry.cluster(self.rules.holding_cost), pool.choice, now_s)
        for pool in pools:  # once all pools hold their entries
            self._inform(pool, now_s)
        for pool in tuple(pools):
            self._owner.turn(pool, now_s)

    def switch(self, node: Node) -> None:
        """The node gets work from now on, or gets none."""
        if node.idx >= len(self._registry.shape.members):
            return
        self._registry.forget_models()
        now_s, up = self.now_s(), self._fleet.gets_work(node)
        self.write_outages()
        for pool in self.by_spec.values():
            if (pool.live.nodes.up[node.idx] == 1) != up:
                pool.live.switch(node.idx, up, now_s)
                self._owner.turn(pool, now_s)

    def write_outages(self) -> None:
        """Show policies the planned outages as of now."""
        rows = self._outages()
        for pool in self.by_spec.values():
            shown = pool.live.view().outages
            if len(shown) != len(rows):  # a node is new: the states are rebuilt soon
                continue
            shown[...] = rows

    def mark_held(self, node: Node) -> None:
        """The node holds other adapters or models."""
        if node.idx < len(self._registry.shape.members):
            state = self._fleet.state(node)
            for pool in self.by_spec.values():
                pool.mark_held(node.idx, state.held_adapters, state.held_models)

    def set_load_time(self, item: str, type_name: str, load_s: float) -> None:
        """Write a learned load time into the states of all pools."""
        shape = self._registry.shape
        if item not in shape.items:
            return
        m, now_s = shape.items.index(item), self.now_s()
        for g, kind in enumerate(shape.types):
            if kind.name == type_name:
                for pool in self.by_spec.values():
                    pool.live.reports.set_load_time(m, g, load_s, now_s)

    def change_capacity(self, node: Node) -> None:
        """The node takes more requests at a time, or fewer."""
        members = self._registry.shape.members
        if node.idx >= len(members):
            return
        if node.max_requests > members[node.idx].slots:
            self.rebuild()
            return
        self._grant(node)

    def _grant(self, node: Node) -> None:
        now_s, j, allowed = self.now_s(), node.idx, self._allowed(node)
        change = allowed - self._granted[j]
        if change:
            self._granted[j] = allowed
            for pool in self.by_spec.values():
                pool.live.change_room(j, change, now_s)
                self._owner.turn(pool, now_s)

    # --- inside

    def _add_missing(self) -> None:
        for choice in self.rules.choices():
            if choice.spec not in self.by_spec:
                self.by_spec[choice.spec] = pool = self._new_pool(choice)
                self._switch_all(pool, self.now_s())
        rules = self.rules
        self.only = None if rules.by_model or rules.by_route else self.by_spec[rules.default.spec]

    def _new_pool(self, choice: PolicyChoice) -> PolicyPool:
        return PolicyPool(
            self._owner,
            choice,
            self._registry.shape,
            self._registry.cluster(self.rules.holding_cost),
            self._options(),
            rows=self._room(),
            tenants=self._tenants,
            seed=self.rules.seed,
            now=self.now_s,
            later=self._loop.call_later,
            inline_plans=self._inline,
            mode=self._mode,
        )

    def _options(self) -> Options:
        return replace(self.rules.options(), outages=self._outages())

    def _outages(self) -> np.ndarray:
        return outage_rows(self._fleet, self.rules.declared.windows, self.now_s(), self._utc_s())

    def _room(self) -> int:
        """Rows of a pool: waiting and running requests."""
        return 2 * self.rules.held_max + sum(m.slots for m in self._registry.shape.members) + SPARE_ROWS

    def _hand_over_entries(self, pool: PolicyPool) -> None:
        """Entries that another policy decides about now move to its pool; the caller rebuilds all pools."""
        rows = [row for row, e in pool.entries.items() if self.of(e.exchange) is not pool]
        for entry in pool.take_out(rows):
            self.of(entry.exchange).inherit([entry])

    def _inform(self, pool: PolicyPool, now_s: float) -> None:
        """Tell a rebuilt state the background load and which nodes get work."""
        self._owner.add_background_load(pool, now_s)
        self._switch_all(pool, now_s)
        if self.informer is not None:
            self.informer.write(pool)

    def _switch_all(self, pool: PolicyPool, now_s: float) -> None:
        """Tell a rebuilt state which nodes get work, and how much."""
        members = self._registry.shape.members
        self._granted = [m.slots for m in members]
        if not self._fleet.nodes:
            pool.live.switch(0, False, now_s)  # the placeholder
        taken: dict[int, float] = {}
        for entry in pool.entries.values():
            taken[entry.node_idx] = taken.get(entry.node_idx, 0.0) + entry.spec.tokens
        for node, member in zip(self._fleet.nodes, members, strict=False):
            j = node.idx
            if not self._fleet.gets_work(node):
                pool.live.switch(j, False, now_s)
            if node.max_tokens:
                pool.live.limit_tokens(j, node.max_tokens - taken.get(j, 0.0))
            state = self._fleet.state(node)
            pool.mark_held(j, state.held_adapters, state.held_models)
            pool.live.reserve(j, int(self.rules.reserve_frac * member.slots))
            allowed = self._allowed(node)
            if allowed != member.slots:
                pool.live.change_room(j, allowed - member.slots, now_s)
            self._granted[j] = allowed

    def _allowed(self, node: Node) -> int:
        return min(node.max_requests, self._fleet.allowed_requests(node, self._loop.time()))
