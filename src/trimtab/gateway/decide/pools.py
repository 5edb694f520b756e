"""The pools of a dispatcher, one per policy, over the same nodes: what changes all of them, and their slots.

Nothing here decides: methods return the pools that have something to decide about now, or whether all have.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trimtab.domain.view import Plan
from trimtab.engine.driver import PlanningLog
from trimtab.gateway.decide.dispatch_rules import DispatchRules
from trimtab.gateway.decide.learning import NewEstimate, RequestClass
from trimtab.gateway.decide.pool import Basis, PolicyPool
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.decide.request_specs import RequestBuilder
from trimtab.gateway.decide.signals import outage_rows
from trimtab.gateway.decide.tenant_queues import QueueFigures, summed
from trimtab.gateway.model import Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet

SPARE_TENANTS: Final = 64
SPARE_ROWS: Final = 1024
UNKNOWN_S: Final = 1.0  # a request from elsewhere on a node without requests of ours


class PolicyPools:
    """The pools by their policies' specs, the rules that choose among them, and their time.

    Work that one pool sends to a node is background load to the others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        registry: Registry,
        requests: RequestBuilder,
        plan_arrived: Callable[[PolicyPool, Plan], None],
        *,
        tenants: int,
        inline_plans: bool,
        mode: str,
        utc_s: Callable[[], float],
    ) -> None:
        self.by_spec: dict[str, PolicyPool] = {}
        self.only: PolicyPool | None = None  # the pool of all requests, where there is one
        self.rules, self.origin_s = requests.rules, requests.origin_s
        self._loop, self._fleet, self._registry, self._requests = loop, fleet, registry, requests
        self._nodes, self._signals, self._counts = fleet.nodes, registry.signals, registry.signals.counts
        self._how: Mapping[str, Any] = {  # pools run
            "now": self.now_s, "later": loop.call_later, "plan_arrived": plan_arrived,
            "inline_plans": inline_plans, "mode": mode,
        }  # fmt: skip
        self._planned, self._planned_beside = PlanningLog(), PlanningLog()  # by closed pools
        self._tenants = tenants + SPARE_TENANTS
        self._utc_s = utc_s  # seconds since 1970, now
        self._granted: list[int] = []  # slots of each node that the pools may use
        # Slots that hedged exchanges hold besides those of their rows, released at their ends:
        self._hedged: dict[Exchange, list[tuple[int, int, float]]] = {}  # node, requests, tokens
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
        """Change the rules; policies that stay keep their state. The caller rebuilds."""
        before = self.by_spec
        self._signals.declared = rules.declared
        self.rules = self._requests.rules = rules
        self.by_spec = {}
        for choice in rules.choices():
            if choice.spec in before and choice.spec not in self.by_spec:
                pool = self.by_spec[choice.spec] = before[choice.spec]
                pool.choice = choice  # its shadow may have changed
        self._add_missing()
        for spec, pool in before.items():
            moving = [one for one in pool.exchanges.values() if self.of(one) is not pool]
            for moved in pool.take_out(moving):
                self.of(moved[0]).inherit([moved])
            if spec not in self.by_spec:
                pool.close()
                self._planned.add(pool.planning)
                self._planned_beside.add(pool.shadow_planning)

    def has_room_for_tenants(self, count: int) -> bool:
        """Whether the states have room for this number of tenants; if not, once they are rebuilt."""
        if count <= self._tenants:
            return True
        self._tenants = 2 * count
        return False

    def add_class(self, exchange: Exchange) -> tuple[RequestClass, bool]:
        """Add a request's class, a row in all tables; and whether the states must be rebuilt for it."""
        registry = self._registry
        n_before, rows_before = len(registry.classes), registry.rows
        known = registry.add_class(exchange)
        is_new = len(registry.classes) > n_before
        if registry.rows > rows_before or (is_new and known.key[0] in self.rules.holding_cost):
            return known, True  # memories of orders hold the costs
        if is_new:
            demand = registry.demand()
            for pool in self.by_spec.values():
                registry.write_estimates(pool.live.fixed_s, pool.live.unit_s, known)
                if demand.shape[1]:
                    pool.live.reports.set_class_demand(known.idx, demand[known.idx])
        return known, False

    def set_estimate(self, of: RequestClass, new: NewEstimate) -> None:
        """Write an estimate into the tables of every pool."""
        for g in self._registry.columns(of, new.type_name):
            for pool in self.by_spec.values():
                pool.live.set_estimate(of.idx, g, new.fixed_s, new.unit_s)

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

    # --- changes of nodes

    def rebuild(self, now_s: float) -> None:
        """Nodes, models or classes have changed: rebuild the state of every pool. The caller takes turns."""
        registry, pools = self._registry, self.by_spec.values()
        registry.refresh()
        for exchange in [one for pool in pools for one in pool.waiting()]:
            registry.add_class(exchange)
        for pool in pools:
            pool.rebuild(pool.choice, self._basis(), self._requests.rebuild, now_s)
        for pool in pools:  # once all pools hold their requests
            self._add_background_load(pool, now_s)
            self._switch_all(pool, now_s)
            self.write_signals(pool)

    def switch(self, node: Node) -> list[PolicyPool]:
        """The node gets work from now on, or gets none."""
        if node.idx >= len(self._registry.shape.members):
            return []
        self._registry.forget_models()
        now_s, up = self.now_s(), self._fleet.gets_work(node)
        self.write_outages()
        switched = [one for one in self.by_spec.values() if (one.live.nodes.up[node.idx] == 1) != up]
        for pool in switched:
            pool.live.switch(node.idx, up, now_s)
        return switched

    def grant(self, node: Node) -> bool:
        """The node takes more requests at a time, or fewer; returns whether that is a change."""
        now_s, j, allowed = self.now_s(), node.idx, self._allowed(node)
        change, self._granted[j] = allowed - self._granted[j], allowed
        for pool in self.by_spec.values() if change else ():
            pool.live.change_room(j, change, now_s)
        return change != 0

    def mark_held(self, node: Node) -> None:
        """The node holds other adapters or models."""
        if node.idx < len(self._registry.shape.members):
            state = self._fleet.state(node)
            for pool in self.by_spec.values():
                pool.mark_held(node.idx, state.held_adapters, state.held_models)

    # --- what is reported and measured of nodes

    def write_outages(self) -> None:
        """Show policies the planned outages as of now."""
        rows = self._outages()
        for pool in self.by_spec.values():
            shown = pool.live.view().outages
            if len(shown) != len(rows):  # a node is new: the states are rebuilt soon
                continue
            shown[...] = rows

    def write_signals(self, pool: PolicyPool) -> None:
        """Write everything that is reported and measured to the state of a pool, which is up to date."""
        registry, signals, reports, now_s = self._registry, self._signals, pool.live.reports, self.now_s()
        n = len(registry.names)
        reports.set_round_trips(registry.rtt_s(), now_s)
        demand = registry.demand()
        if demand.shape[1]:
            reports.set_demand(demand, now_s)
            reports.set_used(registry.used(), registry.reported_s(), now_s)
        for node_idx, told in signals.engines.told.items():
            if node_idx < n:
                reports.set_engine(node_idx, told, now_s)
        for node_idx, requests in signals.foreign.items():
            if node_idx < n:
                _write_foreign(pool, node_idx, requests, now_s)
        for node_idx, active in signals.links.active.items():
            if active and node_idx < n:
                reports.set_link(node_idx, active, registry.nic_gib_per_s(node_idx))

    def write_link(self, node_idx: int) -> None:
        """A transfer to a node begins or ends, or its link was measured."""
        if node_idx < len(self._registry.names):
            active, gib_per_s = self._signals.links.active[node_idx], self._registry.nic_gib_per_s(node_idx)
            for pool in self.by_spec.values():
                pool.live.reports.set_link(node_idx, active, gib_per_s)

    # --- slots of running requests

    def take(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> None:
        """A pool has started a request on a node."""
        node_idx = exchange.node_idx
        self._nodes[node_idx].in_flight += 1
        self._counts.add(node_idx, exchange.class_idx, 1, _answers(exchange), now_s)
        if others := self._others[pool]:
            _add_load(others, exchange, node_idx, 1, now_s)

    def inherit(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> None:
        """A request runs on its node already: the pool's next state includes it."""
        self._nodes[exchange.node_idx].in_flight += 1
        self._counts.add(exchange.node_idx, exchange.class_idx, 1, _answers(exchange), now_s)
        pool.inherit([(exchange, ())])

    def free(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> Sequence[PolicyPool]:
        """Release the slot of a request, if it had one, and those of its hedge."""
        node_idx, exchange.node_idx = exchange.node_idx, -1
        return self.free_at(pool, exchange, node_idx, now_s)

    def free_at(
        self, pool: PolicyPool, exchange: Exchange, node_idx: int, now_s: float
    ) -> Sequence[PolicyPool]:
        """As `free`, of the slot on this node; −1 = none."""
        freed: Sequence[PolicyPool] = ()
        if node_idx >= 0:
            self._nodes[node_idx].in_flight -= 1
            self._counts.add(node_idx, exchange.spec.class_idx, -1, _answers(exchange), now_s)
            if freed := self._others[pool]:
                _add_load(freed, exchange, node_idx, -1, now_s)
        if self._hedged and exchange in self._hedged:
            for other_idx, requests, tokens in self._hedged.pop(exchange):
                freed = self._change_load(exchange, other_idx, -requests, -tokens, now_s)
        return freed

    def queue_figures(self) -> list[QueueFigures]:
        """The figures of hierarchical queues; those of several policies' pools together."""
        each = [pool.tenant_queues.figures(pool.live.state) for pool in self.by_spec.values()]
        return summed(itertools.chain.from_iterable(each))

    def hedge(self, exchange: Exchange, now_s: float) -> Node | None:
        """Take a slot for a second attempt, on the node with the smallest share of slots in use."""
        live, tried = self.of(exchange).live, {attempt.node.idx for attempt in exchange.attempts}
        nodes = live.nodes
        able = [j for j in range(len(nodes.up)) if j not in tried and live.takes(exchange.row, j)]
        if not able:
            return None
        best = min(able, key=lambda j: nodes.in_flight[j] / nodes.slots[j])
        live.keep(exchange.row)
        self.change_hedge(exchange, best, 1, now_s)
        return self._nodes[best]

    def change_hedge(
        self, exchange: Exchange, node_idx: int, requests: int, now_s: float
    ) -> Sequence[PolicyPool]:
        """A hedged exchange has one more attempt on a node, or one fewer."""
        tokens = requests * exchange.spec.tokens
        self._hedged.setdefault(exchange, []).append((node_idx, requests, tokens))
        return self._change_load(exchange, node_idx, requests, tokens, now_s)

    def _add_background_load(self, pool: PolicyPool, now_s: float) -> None:
        """Tell a rebuilt state the load that its nodes have from elsewhere."""
        for other in self.by_spec.values():
            if other is not pool:
                for exchange in other.exchanges.values():
                    if exchange.node_idx >= 0:
                        pool.live.add_load(exchange.node_idx, 1, exchange.estimate_s, now_s)
        for slots in self._hedged.values():
            for node_idx, requests, tokens in slots:
                pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)

    def _change_load(
        self, exchange: Exchange, node_idx: int, requests: int, tokens: float, now_s: float
    ) -> Sequence[PolicyPool]:
        self._nodes[node_idx].in_flight += requests
        self._counts.add(node_idx, exchange.class_idx, requests, _answers(exchange), now_s)
        for pool in self.by_spec.values():
            pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)
            pool.live.reports.add_use(node_idx, exchange.class_idx, requests)
        return tuple(self.by_spec.values())

    # --- inside

    def _add_missing(self) -> None:
        for choice in self.rules.choices():
            if choice.spec not in self.by_spec:
                self.by_spec[choice.spec] = pool = PolicyPool(choice, self._basis(), **self._how)
                self._switch_all(pool, self.now_s())
        pools, rules = self.by_spec.values(), self.rules
        self._others = {one: tuple(other for other in pools if other is not one) for one in pools}
        self.only = None if rules.by_model or rules.by_route else self.by_spec[rules.default.spec]

    def _basis(self) -> Basis:
        registry, rules = self._registry, self.rules
        return Basis(
            registry.shape,
            registry.cluster(rules.holding_cost),
            replace(rules.options(), outages=self._outages()),
            rows=2 * rules.held_max + sum(m.slots for m in registry.shape.members) + SPARE_ROWS,
            tenants=self._tenants,
            seed=rules.seed,
            queues=rules.queues,
        )

    def _outages(self) -> np.ndarray:
        return outage_rows(self._fleet, self.rules.declared.windows, self.now_s(), self._utc_s())

    def _switch_all(self, pool: PolicyPool, now_s: float) -> None:
        """Tell a rebuilt state which nodes get work, and how much."""
        members = self._registry.shape.members
        self._granted = [m.slots for m in members]
        if not self._fleet.nodes:
            pool.live.switch(0, False, now_s)  # the placeholder
        taken: dict[int, float] = {}
        for exchange in pool.exchanges.values():
            taken[exchange.node_idx] = taken.get(exchange.node_idx, 0.0) + exchange.spec.tokens
        for node, member in zip(self._fleet.nodes, members, strict=False):
            j = node.idx
            if not self._fleet.gets_work(node):
                pool.live.switch(j, False, now_s)
            if node.max_tokens:
                pool.live.limit_tokens(j, node.max_tokens - taken.get(j, 0.0))
            state = self._fleet.state(node)
            pool.mark_held(j, state.held_adapters, state.held_models)
            pool.live.reserve(j, int(self.rules.reserve_frac * member.slots))
            self._granted[j] = allowed = self._allowed(node)
            if allowed != member.slots:
                pool.live.change_room(j, allowed - member.slots, now_s)

    def _allowed(self, node: Node) -> int:
        return min(node.max_requests, self._fleet.allowed_requests(node, self._loop.time()))


def _add_load(
    pools: Iterable[PolicyPool], exchange: Exchange, node_idx: int, requests: int, now_s: float
) -> None:
    """Another pool has sent a request to a node (1), or it has left it (-1)."""
    for pool in pools:
        pool.live.add_load(node_idx, requests, requests * exchange.estimate_s, now_s)
        pool.live.reports.add_use(node_idx, exchange.class_idx, requests)


def _write_foreign(pool: PolicyPool, node_idx: int, requests: int, now_s: float) -> None:
    """Requests of others count as so many of the mean estimate of those on the node."""
    known, known_s = pool.foreign.get(node_idx, (0, 0.0))
    if requests == known:
        return
    nodes = pool.live.nodes
    in_flight = nodes.in_flight[node_idx]
    each_s = nodes.outstanding_s[node_idx] / in_flight if in_flight else UNKNOWN_S
    pool.foreign[node_idx] = requests, requests * each_s
    pool.live.reports.add_requests(node_idx, requests - known, requests * each_s - known_s, now_s)


def _answers(exchange: Exchange) -> int:
    return 1 if exchange.facts is None else exchange.facts.answers
