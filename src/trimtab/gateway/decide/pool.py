"""One policy that decides about some models: its state, its dispatch loop, and its requests."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.planning import Evidence
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import Ended, LiveDriver, RequestSpec
from trimtab.gateway.decide.cluster_shape import NO_ITEMS, ClusterShape
from trimtab.gateway.decide.dispatch_rules import PolicyChoice
from trimtab.gateway.decide.shadow import Later, ShadowPlanner
from trimtab.gateway.decide.tenant_queues import Section, TenantQueues
from trimtab.gateway.model import NO_BLOCKS, Exchange, Tenant
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner, Planner, ProcessPlanner

logger = logging.getLogger(__name__)

Moved = tuple[Exchange, Sequence[int]]  # between two states, with the nodes that it has lost


class Turned(NamedTuple):
    """What a turn decided."""

    taken_back: list[tuple[Exchange, int]]  # that have lost their node; some of them start again
    started: list[Exchange]
    ended: list[tuple[Exchange, Ended]]  # that will not be served


class Basis(NamedTuple):
    """What a state is built from, as of now."""

    shape: ClusterShape
    cluster: Cluster
    options: Options
    rows: int  # requests at a time
    tenants: int
    seed: int
    queues: Section | None = None


class ActiveCandidate:
    """Follows the plans of one pool. Times are the pool's."""

    def __init__(self, policy: Policy, now_s: float) -> None:
        self._policy, self._since_s = policy, now_s
        self._active = self._switches = 0
        self._before: int | None = None  # the candidate before the last switch
        self._evidence: Evidence | None = None
        self._rollout_s = now_s
        self._against = 0  # which candidate was in force when it was simulated

    def reset(self, now_s: float) -> None:
        """The state was rebuilt: the first candidate decides until the next plan."""
        self._switch(0, now_s)

    def note(self, plan: Plan, now_s: float) -> None:
        """A plan takes force."""
        evidence = self._evidence_of(plan)
        if evidence is not None:
            self._evidence, self._rollout_s, self._against = evidence, now_s, self._active
        self._switch(int(plan.active_idx[0]), now_s)

    def _evidence_of(self, plan: Plan) -> Evidence | None:
        try:
            return self._policy.evidence(plan)  # type: ignore[no-any-return]  # that is its contract
        except Exception as error:  # shown only: no request may fail because of it
            logger.warning("policy %r raised %r in evidence()", self._policy.name, error)
            return None

    def _switch(self, to: int, now_s: float) -> None:
        if to != self._active:
            self._before, self._active, self._since_s = self._active, to, now_s
            self._switches += 1

    def summary(self, now_s: float) -> dict[str, Any] | None:
        """As plain data for JSON, ages in seconds; None = the policy is not composite."""
        names = [label(one) for one in self._policy.candidates]
        if not names:
            return None
        evidence = self._evidence
        return {
            "active": names[self._active],
            "since_s": now_s - self._since_s,
            "switches": self._switches,
            "before": None if self._before is None else names[self._before],
            "rollout_age_s": None if evidence is None else now_s - self._rollout_s,
            "against": names[self._against],
            "objective": None if evidence is None else evidence.objective,
            "each": [{"name": name, **_figures(evidence, k)} for k, name in enumerate(names)],
        }


def label(policy: Policy) -> str:
    """The name, with the parameters that differ from their defaults."""
    stated = [f for f in fields(policy) if f.init]  # type: ignore[arg-type]  # all policies are dataclasses
    given = [(f.name, getattr(policy, f.name), f.default) for f in stated]
    changed = ", ".join(f"{name} {value}" for name, value, usual in given if value != usual)
    return f"{policy.name} ({changed})" if changed else policy.name


def _figures(evidence: Evidence | None, k: int) -> dict[str, float | None]:
    """The figures of a simulated candidate: intervals are ± `…error_s`."""
    names = "value_s", "error_s", "apart_s", "apart_error_s"
    is_known = evidence is not None and k < len(evidence.value_s)
    return {name: float(getattr(evidence, name)[k]) if is_known else None for name in names}


class PolicyPool:
    """The state of one policy.

    `now` gives its time; `plan_arrived` is called with each plan, which may come between two turns.
    """

    def __init__(
        self,
        choice: PolicyChoice,
        basis: Basis,
        *,
        now: Callable[[], float],
        later: Later,
        plan_arrived: Callable[[PolicyPool, Plan], None],
        inline_plans: bool = False,
        mode: str = "compiled",
    ) -> None:
        self.choice, self._rows = choice, 0
        self._now, self._later, self._tell_plan = now, later, plan_arrived
        self._mode, self._inline = mode, inline_plans
        self.exchanges: dict[int, Exchange] = {}  # by row
        self.newcomers: list[Exchange] = []  # not decided about yet
        self.within: set[Exchange] = set()  # those that began to wait for a node of their subset
        self._inherited: list[Moved] = []
        self.timer: asyncio.TimerHandle | None = None
        self.timer_s = math.inf
        self.policy_failures_before = 0  # of earlier states
        self.failed = 0  # decisions of the last turn that fell back to least connections
        self.planning, self.shadow_planning = PlanningLog(), PlanningLog()
        self.shadow_planner: ShadowPlanner | None = None
        self.plan = empty_plan()  # the latest
        self._planned: Policy | None = None  # the policy of `planner`
        self.active_candidate = ActiveCandidate(choice.policy, now())
        self.tenant_queues = TenantQueues()
        self._build(basis, now())

    def _build(self, basis: Basis, begun_s: float) -> None:
        choice, shape = self.choice, basis.shape
        self._shape, self._rows = shape, max(basis.rows, self._rows)
        queues = self.tenant_queues.begin(basis.queues, basis.cluster, basis.tenants)
        self.options = replace(basis.options, queues=queues)
        self.live = LiveDriver(
            basis.cluster,
            self.options,
            Decider(choice.policy, choice.order),
            rows=self._rows,
            tenants=basis.tenants,
            seed=basis.seed,
            shadow=choice.shadow,
            mode=self._mode,
            begun_s=begun_s,
            planning=self.planning,
            bounds_time=True,
            keeps_history=any(
                p is not None and p.plan_period_s > 0.0 for p in (choice.policy, choice.shadow)
            ),
        )
        self.foreign: dict[int, tuple[int, float]] = {}  # requests of others that were added to a node, in s
        self.items = shape.items_needed
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
        self.plan = plan
        self.active_candidate.note(plan, self._now())
        self._tell_plan(self, plan)

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
        resident, at = self.live.resident, self._shape.item_at
        for j, member in enumerate(self._shape.members):
            for name in member.serves - self._shape.bases.keys():
                resident[j, at[name]] = 1

    def mark_held(self, node_idx: int, adapters: Collection[str], models: Collection[str] | None) -> None:
        """A node holds these adapters and models (None = all its own), and those of running requests."""
        shape, bases = self._shape, self._shape.bases
        if not bases and models is None:
            return
        running = [x.facts for x in self.exchanges.values() if x.node_idx == node_idx]
        names = {*adapters, *(facts.model for facts in running if facts is not None)}
        resident, at = self.live.resident, shape.item_at
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

    def enter(self, exchange: Exchange, spec: RequestSpec, now_s: float) -> None:
        """Add a request; `turn` decides about it."""
        row = exchange.row = self.live.enter(spec, now_s)
        exchange.spec, exchange.node_idx, exchange.matched = spec, -1, NO_BLOCKS
        self.exchanges[row] = exchange

    def take_out(self, exchanges: Iterable[Exchange]) -> list[Moved]:
        """Remove these requests; returns them with the nodes that they have lost."""
        return [(self.exchanges.pop(x.row), self.live.avoided(x.row)) for x in exchanges]

    def inherit(self, moved: Iterable[Moved]) -> None:
        """The next `rebuild` adds these."""
        self._inherited += moved

    def waiting(self) -> list[Exchange]:
        """The requests that are not running."""
        inherited = (exchange for exchange, _ in self._inherited)
        return [x for x in (*self.exchanges.values(), *inherited) if x.node_idx < 0]

    def turn(self, now_s: float) -> Turned:
        """Decide about everything up to now."""
        exchanges, live = self.exchanges, self.live
        before = live.policy_failures
        self.dispatch_loop.step(now_s)
        self.failed = live.policy_failures - before
        taken_back = []
        for row in live.take_back():
            exchange = exchanges.get(row)
            if exchange is not None and exchange.node_idx >= 0:
                taken_back.append((exchange, exchange.node_idx))
                exchange.node_idx = -1
        started = []
        for row, node_idx in live.take_started():
            exchange = exchanges.get(row)
            if exchange is not None:
                exchange.node_idx = node_idx
                started.append(exchange)
        ended = []
        for end in live.take_ended():
            exchange = exchanges.pop(end.row, None)
            if exchange is not None:
                ended.append((exchange, end))
        return Turned(taken_back, started, ended)

    def rebuild(
        self,
        choice: PolicyChoice,
        basis: Basis,
        spec_of: Callable[[Exchange, PolicyPool, float], RequestSpec],
        now_s: float,
    ) -> None:
        """Continue with another cluster or policy: running requests stay, waiting ones are decided again.

        `spec_of` makes their specs anew. Nodes keep their position. The caller switches nodes.
        """
        old, before = self.live, [*self.take_out(list(self.exchanges.values())), *self._inherited]
        self._inherited, self.exchanges, self.choice = [], {}, choice
        self.policy_failures_before += old.policy_failures
        self.tenant_queues.end(old.state)
        self._build(basis, math.nextafter(now_s, math.inf))  # so that the first plan sees what runs
        self.live.virtual_counters[: len(old.virtual_counters)] = old.virtual_counters
        for exchange, _ in before:
            if exchange.node_idx >= 0:
                self._place(exchange, now_s)
        for exchange, lost_nodes in before:
            if exchange.node_idx < 0:
                self.enter(exchange, spec_of(exchange, self, now_s), now_s)
            self.live.avoid(exchange.row, lost_nodes)

    def _place(self, exchange: Exchange, now_s: float) -> None:
        """Put a running request on its node, beyond the policy and the node's limits."""
        model = exchange.facts.model if exchange.facts is not None else ""
        model_idx, adapter_idx = self.items.get(model, NO_ITEMS)  # items have other positions now
        spec = exchange.spec._replace(cost=0.0, model_idx=model_idx, adapter_idx=adapter_idx)
        if self.tenant_queues.leaf_of and exchange.tenant is not None:
            self.enter_queue(exchange.tenant)
        exchange.row = self.live.enter_at(exchange.node_idx, spec, exchange.estimate_s, now_s)
        self.exchanges[exchange.row] = exchange
        self.let_preempt(exchange)

    def enter_queue(self, tenant: Tenant) -> None:
        """A tenant belongs to its leaf, from its first request in this state on."""
        queues = self.tenant_queues
        self.live.leaf_of[tenant.idx] = queues.leaf_of.get(tenant.name, queues.default)

    def let_preempt(self, exchange: Exchange) -> None:
        """A request has a node: say if it may not lose it."""
        if self.tenant_queues.preempts and not exchange.may_be_taken_back:
            self.live.keep(exchange.row)

    def close(self) -> None:
        """Stop planning, and no timer is left."""
        self.planner.close()
        if self.shadow_planner is not None:
            self.shadow_planner.close()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
