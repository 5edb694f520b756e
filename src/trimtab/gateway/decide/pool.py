"""One policy that decides about some models: its state, its dispatch loop, and its exchanges."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Plan
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import Ended, LiveDriver, RequestSpec
from trimtab.gateway.decide.active_candidate import ActiveCandidate
from trimtab.gateway.decide.cluster_builder import NO_ITEMS, ClusterShape, item_positions, items_needed
from trimtab.gateway.decide.dispatch_rules import PolicyChoice
from trimtab.gateway.decide.shadow import Later, ShadowPlanner
from trimtab.gateway.model import Exchange
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner, Planner, ProcessPlanner

_NONE: Mapping[int, int] = {}


class Entry:
    """An exchange in a pool, with its spec."""

    __slots__ = ("exchange", "lost_nodes", "matched", "node_idx", "spec")

    def __init__(self, exchange: Exchange, spec: RequestSpec, node_idx: int = -1) -> None:
        self.exchange = exchange
        self.spec = spec
        self.node_idx = node_idx  # where it runs; -1 = nowhere yet
        self.lost_nodes: Sequence[int] = ()  # set while it moves from one state to another
        self.matched: Mapping[int, int] = _NONE  # node → blocks of the prompt that it seems to have


Turned = tuple[list[tuple[Entry, int]], list[tuple[Entry, Ended]]]  # (entry, node) of starts; ends unserved


class PoolOwner(Protocol):
    """The dispatcher, as its pools see it."""

    def turn(self, pool: PolicyPool, now_s: float) -> None:
        """Decide about everything up to now, and do it."""

    def rebuild_spec(self, entry: Entry, pool: PolicyPool) -> RequestSpec:
        """The spec of a waiting request for the pool's new state."""

    def add_background_load(self, pool: PolicyPool, now_s: float) -> None:
        """Tell a rebuilt state the load that its nodes have from elsewhere."""

    def plan_changed(self, policy: str, plan: Plan) -> None:
        """A plan takes force."""


class PolicyPool:
    """The state of one policy. `now` gives its time."""

    def __init__(
        self,
        owner: PoolOwner,
        choice: PolicyChoice,
        shape: ClusterShape,
        cluster: Cluster,
        options: Options,
        *,
        rows: int,
        tenants: int,
        seed: int,
        now: Callable[[], float],
        later: Later,
        inline_plans: bool = False,
        mode: str = "compiled",
    ) -> None:
        self.choice, self._owner = choice, owner
        self._rows, self._tenants, self._seed = rows, tenants, seed
        self._later = later
        self._now, self._mode, self._inline = now, mode, inline_plans
        self.options = options
        self.entries: dict[int, Entry] = {}
        self.newcomers: list[Entry] = []  # not decided about yet
        self._inherited: list[Entry] = []
        self.timer: asyncio.TimerHandle | None = None
        self.timer_s = math.inf
        self.policy_failures_before = 0  # of earlier states
        self.failed = 0  # decisions of the last turn that fell back to least connections
        self.planning, self.shadow_planning = PlanningLog(), PlanningLog()
        self.shadow_planner: ShadowPlanner | None = None
        self._planned: Policy | None = None  # the policy of `planner`
        self.active_candidate = ActiveCandidate(choice.policy, now())
        self._build(shape, cluster, now())

    def _build(self, shape: ClusterShape, cluster: Cluster, begun_s: float) -> None:
        choice = self.choice
        self.live = LiveDriver(
            cluster,
            self.options,
            Decider(choice.policy, choice.order),
            rows=self._rows,
            tenants=self._tenants,
            seed=self._seed,
            shadow=choice.shadow,
            mode=self._mode,
            begun_s=begun_s,
            planning=self.planning,
            bounds_time=True,
            keeps_past=any(p is not None and p.plan_period_s > 0.0 for p in (choice.policy, choice.shadow)),
        )
        self._shape = shape
        self.foreign: dict[int, tuple[int, float]] = {}  # requests of others that were added to a node, in s
        self.items = items_needed(shape)
        needs = choice.order.needs
        self.charges_cost = Need.VIRTUAL_COUNTERS in needs and Need.DOMINANT_SHARES not in needs
        self.reads_shares_held = Need.SHARES_HELD in needs
        # Whether the policy, or its shadow, reads the cached prefixes of nodes:
        self.reads_prefix = len(self.live.prefix_tokens) > 0
        self._mark_resident()
        if choice.policy == self._planned:
            self.active_candidate.reset(begun_s)
        else:
            self.active_candidate = ActiveCandidate(choice.policy, begun_s)
            self._change_planner(choice.policy)
        self._plan_for_shadow(choice.shadow)
        self.dispatch_loop = DispatchLoop(self.live, self.planner, self._now, self._plan_arrived)

    def _plan_arrived(self, plan: Plan) -> None:
        self.active_candidate.note(plan, self._now())
        self._owner.plan_changed(self.choice.spec, plan)
        self._owner.turn(self, self._now())

    def _change_planner(self, policy: Policy) -> None:
        if self._planned is not None:
            self.planner.close()
        inline = self._inline or policy.plan_period_s == 0.0
        self.planner: Planner = (InlinePlanner if inline else ProcessPlanner)(policy, self.planning)
        self._planned = policy

    def _plan_for_shadow(self, shadow: Policy | None) -> None:
        plans = self.shadow_planner
        if plans is not None and plans.policy == shadow:
            plans.live = self.live
            return
        if plans is not None:
            plans.close()
        self.shadow_planner = None
        if shadow is not None and shadow.plan_period_s > 0.0:
            self.shadow_planner = ShadowPlanner(
                shadow, self.live, self._later, self._now, self.shadow_planning, inline=self._inline
            )

    def _mark_resident(self) -> None:
        """Nodes hold their models; `mark_held` sets their adapters, and models that calls load."""
        resident, at = self.live.resident, item_positions(self._shape)
        for j, member in enumerate(self._shape.members):
            for name in member.serves - self._shape.bases.keys():
                resident[j, at[name]] = 1

    def mark_held(self, node_idx: int, adapters: Collection[str], models: Collection[str] | None) -> None:
        """A node holds these adapters and models (None = all its own), and those of running requests."""
        shape, bases = self._shape, self._shape.bases
        if not bases and models is None:
            return
        running = [e.exchange.facts for e in self.entries.values() if e.node_idx == node_idx]
        names = {*adapters, *(facts.model for facts in running if facts is not None)}
        resident, at = self.live.resident, item_positions(shape)
        before = resident[node_idx].copy()
        for name in bases:
            resident[node_idx, at[name]] = name in names
        if models is not None:
            names |= {*models, *(bases[name] for name in names & bases.keys())}
            for name in shape.members[node_idx].serves - bases.keys():
                resident[node_idx, at[name]] = name in names
            self.live.reports.set_memory_used(node_idx, self._now())
        elif (resident[node_idx] != before).any():
            self.live.reports.note_residents(node_idx, self._now())

    async def open(self) -> None:
        """Wait until the planner is ready."""
        await self.planner.open()
        if self.shadow_planner is not None:
            await self.shadow_planner.open()

    @property
    def policy_failures(self) -> int:
        """Decisions that fell back to least connections."""
        return self.policy_failures_before + self.live.policy_failures

    def enter(self, exchange: Exchange, spec: RequestSpec, now_s: float) -> Entry:
        """Add a request; `turn` decides about it."""
        row = exchange.row = self.live.enter(spec, now_s)
        entry = self.entries[row] = Entry(exchange, spec)
        return entry

    def take_out(self, rows: Iterable[int]) -> list[Entry]:
        """Remove and return the entries of these rows, with the nodes that they have lost."""
        taken = []
        for row in rows:
            entry = self.entries.pop(row)
            entry.lost_nodes = self.live.avoided(row)
            taken.append(entry)
        return taken

    def inherit(self, entries: Iterable[Entry]) -> None:
        """The next `rebuild` adds these."""
        self._inherited += entries

    def waiting(self) -> list[Entry]:
        """The entries that are not running."""
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
        """Options and sizes from the next `rebuild` on; the number of tenants never shrinks."""
        self.options, self._rows, self._tenants = options, max(rows, self._rows), tenants

    def rebuild(self, shape: ClusterShape, cluster: Cluster, choice: PolicyChoice, now_s: float) -> None:
        """Continue with another cluster or policy: running requests stay, waiting ones are decided again.

        Nodes keep their position. The caller switches nodes.
        """
        old, before = self.live, [*self.take_out(list(self.entries)), *self._inherited]
        self._inherited = []
        self.policy_failures_before += old.policy_failures
        self.choice, self.entries = choice, {}
        self._build(
            shape, cluster, math.nextafter(now_s, math.inf)
        )  # after the running requests, so that the first plan sees them
        self.live.virtual_counters[: len(old.virtual_counters)] = old.virtual_counters
        for entry in before:
            if entry.node_idx >= 0:
                self._place(entry, now_s)
        for entry in before:
            if entry.node_idx < 0:
                self.enter(entry.exchange, self._owner.rebuild_spec(entry, self), now_s)
            self.live.avoid(entry.exchange.row, entry.lost_nodes)

    def _place(self, entry: Entry, now_s: float) -> None:
        """Put a running request on its node, beyond the policy and the node's limits."""
        exchange = entry.exchange
        model = exchange.facts.model if exchange.facts is not None else ""
        model_idx, adapter_idx = self.items.get(model, NO_ITEMS)  # items have other positions now
        spec = entry.spec._replace(cost=0.0, model_idx=model_idx, adapter_idx=adapter_idx)
        exchange.row = self.live.enter_at(entry.node_idx, spec, exchange.estimate_s, now_s)
        self.entries[exchange.row] = entry

    def close(self) -> None:
        """Stop planning, and no timer is left."""
        self.planner.close()
        if self.shadow_planner is not None:
            self.shadow_planner.close()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
