"""Carries out what plans place: nodes load it by their own calls, and make room for it."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.domain.view import Plan
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import DecisionListener, LoadEvent, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.item_loader import ItemLoader


class Placements(DecisionListener):
    """Follows the plans of live policies. The plans of several policies are joined."""

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
            for entry in pool.entries.values():
                facts = entry.exchange.facts
                if entry.node_idx != node.idx or facts is None:
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
