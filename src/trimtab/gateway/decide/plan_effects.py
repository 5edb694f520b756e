"""What plans say beside the order of nodes: what nodes load, and how requests are split and batched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trimtab.domain.view import Plan
from trimtab.engine.layout import part_frac
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import DecisionListener, Exchange, LoadEvent, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.item_loader import ItemLoader


class Placements(DecisionListener):
    """Has nodes load by their own calls what plans place, and make room for it.

    The plans of several live policies are joined.
    """

    def __init__(self, fleet: Fleet, registry: Registry, pools: PolicyPools) -> None:
        self._fleet, self._registry, self._pools = fleet, registry, pools
        self._placed: dict[str, Mapping[int, tuple[str, ...]]] = {}  # policy → node → items
        self._used_s: dict[tuple[int, str], float] = {}
        self.loader: ItemLoader | None = None

    def follow(self, loader: ItemLoader) -> None:
        """Let this loader carry out the plans."""
        self.loader = loader
        loader.victims, loader.is_in_use = self.victims, self.is_in_use

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """A DecisionListener method."""
        shape = self._registry.shape
        if self.loader is None or plan.placement.shape != (len(shape.members), len(shape.items)):
            return  # the policy places nothing
        self._placed = {name: at for name, at in self._placed.items() if name in self._pools.by_spec}
        self._placed[policy] = {
            j: tuple(shape.items[m] for m in row.nonzero()[0]) for j, row in enumerate(plan.placement)
        }
        for node in self._fleet.present():
            if node.loader is not None:
                self.loader.place(node, self.placed(node))

    def placed(self, node: Node) -> tuple[str, ...]:
        """The items that plans place on a node."""
        return tuple(dict.fromkeys(item for at in self._placed.values() for item in at.get(node.idx, ())))

    def used(self, node: Node, item: str) -> None:
        """The node has answered a request for this model or adapter."""
        self._used_s[node.idx, item] = self._pools.now_s()

    def is_in_use(self, node: Node, item: str) -> bool:
        """Whether a request that needs the item runs on the node."""
        bases = self._registry.shape.bases
        for pool in self._pools.by_spec.values():
            for exchange in pool.exchanges.values():
                facts = exchange.facts
                if exchange.node_idx != node.idx or facts is None:
                    continue
                if item in (facts.model, bases.get(facts.model)):
                    return True
        return False

    def victims(self, node: Node, item: str) -> list[str]:
        """The items to unload so that this one fits: first those of no plan, then the least recently used.

        Nothing where the memory of the node or of the item is not known.
        """
        members, gib = self._registry.shape.members, self._registry.signals.declared.model_gib
        if node.idx >= len(members):
            return []
        held, placed = self._fleet.state(node).held(), {*self.placed(node), item}
        excess = gib.get(item, 0.0) + sum(gib.get(one, 0.0) for one in held) - members[node.idx].memory_gib
        found = []
        by_use = sorted(held, key=lambda one: (one in placed, self._used_s.get((node.idx, one), 0.0), one))
        for one in by_use:
            if excess <= 0.0:
                break
            if gib.get(one, 0.0) > 0.0 and not self.is_in_use(node, one):
                found.append(one)
                excess -= gib[one]
        return found if excess <= 0.0 else []

    def learn(self, event: LoadEvent) -> None:
        """A call took so long."""
        if event.action == "load" and event.outcome == "done":
            type_name = event.node.type_name or event.node.name
            load_s = self._registry.load_times.observe(event.item, type_name, event.seconds)
            self._pools.set_load_time(event.item, type_name, load_s)


class Batching(NamedTuple):
    """How requests of a class are batched."""

    most: int  # requests; 1 = none
    window_s: float


NOT_BATCHED = Batching(1, 0.0)


class Groupings:
    """The latest plans of the live policies, as far as they group requests."""

    def __init__(self, registry: Registry, pools: PolicyPools) -> None:
        self._registry, self._pools = registry, pools

    def part_sizes(self, exchange: Exchange, items: int) -> list[int]:
        """Items of each part of a request of so many; one part = it is not split."""
        plan, c = self._plan_for(exchange)
        if not 0 <= c < len(plan.split_max):
            return [items]
        facts = exchange.facts
        able = self._registry.served_by(facts.model if facts is not None else "")
        count = max(1, min(int(plan.split_max[c]), items, len(able)))  # more would wait for each other
        return [round(part_frac(plan, c, items, count, i) * items) for i in range(count)]

    def batching(self, exchange: Exchange) -> Batching:
        """How requests like this one are batched."""
        plan, c = self._plan_for(exchange)
        if not 0 <= c < len(plan.batch_max):
            return NOT_BATCHED
        window_s = float(plan.batch_window_s[c]) if c < len(plan.batch_window_s) else 0.0
        return Batching(max(1, int(plan.batch_max[c])), window_s)

    def _plan_for(self, exchange: Exchange) -> tuple[Plan, int]:
        """The plan for a request, and its class; -1 = not known yet."""
        of = self._registry.class_of(exchange)
        return self._pools.of(exchange).plan, -1 if of is None else of.idx
