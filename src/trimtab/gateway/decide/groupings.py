"""Into how many parts plans split a request, and how many requests they batch for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trimtab.domain.view import Plan
from trimtab.engine.part_sizes import part_frac
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.model import DecisionListener, Exchange


class Batching(NamedTuple):
    """How requests of a class are batched."""

    most: int  # requests; 1 = none
    window_s: float


NOT_BATCHED = Batching(1, 0.0)


class Groupings(DecisionListener):
    """The latest plans of the live policies, as far as they group requests."""

    def __init__(self, registry: Registry, pools: PolicyPools) -> None:
        self._registry, self._pools = registry, pools
        self._plans: dict[str, Plan] = {}

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """A DecisionListener method."""
        self._plans = {name: known for name, known in self._plans.items() if name in self._pools.by_spec}
        self._plans[policy] = plan

    def part_sizes(self, exchange: Exchange, items: int) -> list[int]:
        """Items of each part of a request of so many; one part = it is not split."""
        found = self._of(exchange, lambda plan: plan.split_max)
        most = self._nodes_of(exchange)
        if found is None:
            return [items]
        plan, c = found
        count = max(1, min(int(plan.split_max[c]), items, most))
        return [round(part_frac(plan, c, items, count, i) * items) for i in range(count)]

    def batching(self, exchange: Exchange) -> Batching:
        """How requests like this one are batched."""
        found = self._of(exchange, lambda plan: plan.batch_max)
        if found is None:
            return NOT_BATCHED
        plan, c = found
        window_s = float(plan.batch_window_s[c]) if c < len(plan.batch_window_s) else 0.0
        return Batching(max(1, int(plan.batch_max[c])), window_s)

    def _of(self, exchange: Exchange, field: Callable[[Plan], object]) -> tuple[Plan, int] | None:
        """The plan for a request that has a value of this field for its class, and the class."""
        of, plan = self._registry.class_of(exchange), self._plans.get(self._pools.of(exchange).choice.spec)
        if of is None or plan is None or of.idx >= len(field(plan)):  # type: ignore[arg-type]
            return None
        return plan, of.idx

    def _nodes_of(self, exchange: Exchange) -> int:
        """Nodes that may serve it: more parts than these would wait for each other."""
        facts = exchange.facts
        return len(self._registry.served_by(facts.model if facts is not None else ""))
