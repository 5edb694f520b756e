"""One policy in charge of some models: its state, its desk, and the exchanges that are in its hands."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import Ended, LiveDriver, RequestSpec
from trimtab.gateway.decide.shadow_plans import Later, ShadowPlans
from trimtab.gateway.decide.shape import NO_ITEMS, Shape, item_positions, items_needed
from trimtab.gateway.decide.standing import Standing
from trimtab.gateway.model import Exchange
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner, Planner, ProcessPlanner
from trimtab.policies.registry import find


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy with its order, as configured, and the policy in its shadow."""

    spec: str
    policy: Policy
    order: Policy
    shadow: Policy | None = None


def chosen(spec: str, shadow: str | None = None) -> Chosen:
    """From the words of a configuration. Raises UsageError."""
    return Chosen(spec, *find(spec), None if shadow is None else find(shadow)[0])


_NONE: Mapping[int, int] = {}


class Entry:
    """An exchange in a pool, and what it asked for."""

    __slots__ = ("asked", "exchange", "lost_nodes", "matched", "node_idx")

    def __init__(self, exchange: Exchange, asked: RequestSpec, node_idx: int = -1) -> None:
        self.exchange = exchange
        self.asked = asked
        self.node_idx = node_idx  # where it runs; -1 = nowhere yet
        self.lost_nodes: Sequence[int] = ()  # set while it goes from one state to another
        self.matched: Mapping[int, int] = _NONE  # node → blocks of its prompt that it seems to have


Ask = Callable[[Entry, "Pool"], RequestSpec]
Turned = tuple[list[tuple[Entry, int]], list[tuple[Entry, Ended]]]  # (entry, node) of starts; ends unserved


class Pool:
    """The state of one policy. `now` gives its time; `wake` is called when a plan came."""

    def __init__(
        self,
        choice: Chosen,
        shape: Shape,
        cluster: Cluster,
        options: Options,
        *,
        rows: int,
        tenants: int,
        seed: int,
        now: Callable[[], float],
        wake: Callable[[Pool], None],
        later: Later,
        on_plan: Callable[[str, Plan], None],
        inline_plans: bool = False,
        mode: str = "compiled",
    ) -> None:
        self.choice = choice
        self._rows, self._tenants, self._seed = rows, tenants, seed
        self._later, self._on_plan = later, on_plan
        self._now, self._wake, self._mode, self._inline = now, wake, mode, inline_plans
        self.options = options
        self.entries: dict[int, Entry] = {}
        self.newcomers: list[Entry] = []  # that no turn has decided about
        self._inherited: list[Entry] = []
        self.timer: asyncio.TimerHandle | None = None
        self.timer_s = math.inf
        self.policy_failures_before = 0  # of states that were made anew
        self.failed = 0  # decisions of the last turn that least connections made instead
        self.planning, self.shadow_planning = PlanningLog(), PlanningLog()
        self.shadow_plans: ShadowPlans | None = None
        self._planned: Policy | None = None  # with whom `planner` plans
        self.standing = Standing(choice.policy, now())
        self._begin(shape, cluster, now())

    def _begin(self, shape: Shape, cluster: Cluster, begun_s: float) -> None:
        choice = self.choice
        self.live = LiveDriver(
            cluster,
            self.options,
            choice.policy,
            choice.order,
            rows=self._rows,
            tenants=self._tenants,
            seed=self._seed,
            shadow=choice.shadow,
            mode=self._mode,
            begun_s=begun_s,
            planning=self.planning,
            keeps_past=any(p is not None and p.plan_period_s > 0.0 for p in (choice.policy, choice.shadow)),
        )
        self._shape = shape
        self.items = items_needed(shape)
        self.reads_virtual_counters = choice.order.reads_virtual_counters
        # Whether the policy, or its shadow, wants to know what nodes have cached:
        self.reads_prefix = len(self.live.prefix_tokens) > 0
        self._mark_resident()
        if choice.policy == self._planned:
            self.standing.begin_anew(begun_s)
        else:
            self.standing = Standing(choice.policy, begun_s)
            self._change_planner(choice.policy)
        self._plan_for_shadow(choice.shadow)
        self.dispatch_loop = DispatchLoop(self.live, self.planner, self._now, self._plan_came)

    def _plan_came(self, plan: Plan) -> None:
        self.standing.note(plan, self._now())
        self._on_plan(self.choice.spec, plan)
        self._wake(self)

    def _change_planner(self, policy: Policy) -> None:
        if self._planned is not None:
            self.planner.close()
        inline = self._inline or policy.plan_period_s == 0.0
        self.planner: Planner = (InlinePlanner if inline else ProcessPlanner)(policy, self.planning)
        self._planned = policy

    def _plan_for_shadow(self, shadow: Policy | None) -> None:
        plans = self.shadow_plans
        if plans is not None and plans.policy == shadow:
            plans.live = self.live
            return
        if plans is not None:
            plans.close()
        self.shadow_plans = None
        if shadow is not None and shadow.plan_period_s > 0.0:
            self.shadow_plans = ShadowPlans(
                shadow, self.live, self._later, self._now, self.shadow_planning, inline=self._inline
            )

    def _mark_resident(self) -> None:
        """Nodes hold their models; of their adapters `mark_adapters` tells."""
        resident, at = self.live.resident, item_positions(self._shape)
        for j, member in enumerate(self._shape.members):
            for name in member.serves - self._shape.bases.keys():
                resident[j, at[name]] = 1

    def mark_adapters(self, node_idx: int, held: Collection[str]) -> None:
        """A node holds these adapters, and those that it works with."""
        if not self._shape.bases:
            return
        running = [e.exchange.facts for e in self.entries.values() if e.node_idx == node_idx]
        names = {*held, *(facts.model for facts in running if facts is not None)}
        resident, at = self.live.resident, item_positions(self._shape)
        for name in self._shape.bases:
            resident[node_idx, at[name]] = name in names

    async def open(self) -> None:
        """Wait until plans can be made."""
        await self.planner.open()
        if self.shadow_plans is not None:
            await self.shadow_plans.open()

    @property
    def policy_failures(self) -> int:
        """How often least connections had to decide instead."""
        return self.policy_failures_before + self.live.policy_failures

    def enter(self, exchange: Exchange, asked: RequestSpec, now_s: float) -> Entry:
        """A request asks for a node; `turn` decides."""
        row = exchange.row = self.live.enter(asked, now_s)
        entry = self.entries[row] = Entry(exchange, asked)
        return entry

    def give(self, rows: Iterable[int]) -> list[Entry]:
        """Part with the entries of these rows; they know which nodes they have lost."""
        given = []
        for row in rows:
            entry = self.entries.pop(row)
            entry.lost_nodes = self.live.avoided(row)
            given.append(entry)
        return given

    def inherit(self, entries: Iterable[Entry]) -> None:
        """These are in its hands from the next `remake` on."""
        self._inherited += entries

    def waiting(self) -> list[Entry]:
        """The entries that run nowhere."""
        return [e for e in (*self.entries.values(), *self._inherited) if e.node_idx < 0]

    def turn(self, now_s: float) -> Turned:
        """Decide about everything up to now: (entry, node) of what starts, and what ends unserved."""
        entries, live = self.entries, self.live
        before = live.policy_failures
        self.dispatch_loop.step(now_s)
        self.failed = live.policy_failures - before
        started = []
        for row, node_idx in live.take_started():
            entry = entries.get(row)
            if entry is not None:
                entry.node_idx = node_idx
                started.append((entry, node_idx))
        ended = []
        for end in live.take_ended():
            entry = entries.pop(end.row, None)
            if entry is not None:
                ended.append((entry, end))
        return started, ended

    def resize(self, options: Options, rows: int, tenants: int) -> None:
        """What the state obeys and has room for from the next `remake` on; tenants only ever grow."""
        self.options, self._rows, self._tenants = options, max(rows, self._rows), tenants

    def remake(self, shape: Shape, cluster: Cluster, choice: Chosen, now_s: float, ask: Ask) -> None:
        """Go on with another cluster or policy; what runs stays where it is, what waits is decided anew.

        Nodes keep their position. `ask` says anew what a waiting request asks for. The caller switches nodes.
        """
        old, before = self.live, [*self.give(list(self.entries)), *self._inherited]
        self._inherited = []
        self.policy_failures_before += old.policy_failures
        self.choice, self.entries = choice, {}
        self._begin(shape, cluster, math.nextafter(now_s, math.inf))  # the first plan knows what runs
        self.live.virtual_counters[: len(old.virtual_counters)] = old.virtual_counters
        for entry in before:
            if entry.node_idx >= 0:
                self._place(entry, now_s)
        for entry in before:
            if entry.node_idx < 0:
                self.enter(entry.exchange, ask(entry, self), now_s)
            self.live.avoid(entry.exchange.row, entry.lost_nodes)

    def _place(self, entry: Entry, now_s: float) -> None:
        """Put a running request on its node, whatever the policy and the node's bounds say."""
        exchange = entry.exchange
        model = exchange.facts.model if exchange.facts is not None else ""
        model_idx, adapter_idx = self.items.get(model, NO_ITEMS)  # items have other positions now
        asked = entry.asked._replace(cost=0.0, model_idx=model_idx, adapter_idx=adapter_idx)
        exchange.row = self.live.enter_at(entry.node_idx, asked, exchange.estimate_s, now_s)
        self.entries[exchange.row] = entry

    def close(self) -> None:
        """Stop planning, and no timer is left."""
        self.planner.close()
        if self.shadow_plans is not None:
            self.shadow_plans.close()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
