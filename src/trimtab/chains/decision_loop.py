"""The loop that decides which ready stage starts where, on the clock of its host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trimtab.chains.graph import Chain
from trimtab.chains.run_costs import Costs
from trimtab.chains.stage_codes import specs_of
from trimtab.clusters.backend_cluster import cluster_of
from trimtab.domain.chains import templates_of
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options, Queues
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Status
from trimtab.engine.calls import is_ready
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import LiveDriver
from trimtab.engine.live_runs import LiveRuns
from trimtab.engine.state import STAGES
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner, ProcessPlanner
from trimtab.live.stage_backend import NodeChange, StageCode, StageNode
from trimtab.validation.queue_section import QueueSpec, open_tree
from trimtab.words import counted

logger = logging.getLogger(__name__)

TENANTS: Final = 64  # that orders tell apart


class DecisionLoop:
    """A live driver with its planner, on the event loop's time. It exists once the nodes are known.

    Args:
        queues: hierarchical queues of tenants. What runs is never taken back: a stage may have begun to act.
        hints_s: expected service of stages, by the names of their codes.
        plans_inline: plan while time stands still, not in another process.
        wake: called when a new plan came, so that its host takes a turn.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        codes: Sequence[StageCode],
        nodes: Sequence[StageNode],
        decider: Decider,
        *,
        queues: Mapping[str, QueueSpec] | None = None,
        hints_s: Mapping[str, float],
        rows: int,
        seed: int,
        plans_inline: bool,
        wake: Callable[[], None],
    ) -> None:
        self.node_names = [node.name for node in nodes]
        cluster = cluster_of(nodes, codes, hints_s)
        self._does_plan = decider.dispatch.plan_period_s > 0.0
        templates = templates_of({chain.name: specs_of(chain) for chain in chains})
        self.is_compiled = is_ready(*decider)
        self._live = LiveDriver(
            cluster,
            Options(cancel=Cancel.ALWAYS, lookahead=64, queues=self._queues_of(queues, cluster)),
            decider,
            rows=rows,
            tenants=TENANTS,
            seed=seed,
            mode="compiled" if self.is_compiled else "interpreted",
            keeps_history=self._does_plan,
            host=STAGES,
            templates=templates,
            bounds_time=not plans_inline,
        )
        self._label, self._failures = decider.label, 0  # of the policy, that were told
        self.runs = LiveRuns(self._live, templates)
        self.costs = Costs(self._live, cluster)
        planner = ProcessPlanner if self._does_plan and not plans_inline else InlinePlanner
        self._planner = planner(decider.dispatch, PlanningLog())
        self._dispatch = DispatchLoop(self._live, self._planner, self.now_s, lambda _: wake())
        self._cost_s: Any = memoryview(self._live.state.work["cost"])
        self._tenant_idx: dict[str, int] = {}
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock()

    def _queues_of(self, section: Mapping[str, QueueSpec] | None, cluster: Cluster) -> Queues | None:
        self._leaf_of: dict[str, int] = {}
        if section is None:
            return None
        tree, self._leaf_of, default = open_tree(section, cluster.resource_names)
        tree = replace(tree, notice_s=np.full_like(tree.notice_s, np.inf))
        return Queues(tree, np.full(TENANTS, default))

    async def open(self) -> None:
        """Start the planner, and the clock."""
        await self._planner.open()
        self._began_s = self._clock()

    def close(self) -> None:
        """End the planner."""
        self._planner.close()

    def now_s(self) -> float:
        """Seconds since it was opened."""
        return self._clock() - self._began_s

    def step(self) -> None:
        """Decide on all that has happened."""
        self._dispatch.step(self.now_s())
        self.runs.schedule_retries()
        if self._live.policy_failures > self._failures:
            self._tell_failure()

    def _tell_failure(self) -> None:
        """The policy failed or was too slow, so something simpler decided. Told at the 1st, 10th, … time."""
        failures = self._live.policy_failures
        if len(str(failures)) > len(str(self._failures)) or not self._failures:
            logger.warning(
                "policy %s: least-connections decides in its place, %s so far: %s",
                self._label, counted(failures, "time"), self._live.last_failure,
            )  # fmt: skip
        self._failures = failures

    def next_event_s(self) -> float:
        """Time of the next event that is known; inf = none."""
        return self._live.next_event_s()

    def tenant_idx(self, name: str) -> int:
        """The tenant of a run. Those that come after many others share the last place."""
        idx = self._tenant_idx.get(name)
        if idx is None:
            idx = self._tenant_idx[name] = min(len(self._tenant_idx), TENANTS - 1)
            if name in self._leaf_of and idx < TENANTS - 1:
                self._live.leaf_of[idx] = self._leaf_of[name]
        return idx

    def add_cost(self, tenant: str, service_s: float, row: int = -1) -> None:
        """An attempt took so long: that is what its tenant was given, in place of what was expected of `row`.

        Without a row the loop has not started it, and so expected nothing.
        """
        expected_s = self._cost_s[row] if row >= 0 else 0.0
        self._live.add_cost(self.tenant_idx(tenant), service_s - expected_s)

    def other_node(self, row: int, node: int, class_idx: int, size: float) -> int:
        """The fastest other node with room for a second attempt at a running stage; -1 = none."""
        free = [j for j in range(len(self.node_names)) if j != node and self._live.takes(row, j)]
        return min(free, key=lambda j: self.costs.expected_s(class_idx, j, size), default=-1)

    def waiting(self) -> list[int]:
        """The instances of each class that are ready and have no place yet."""
        state, classes = self._live.state, len(self._live.cluster.class_names)
        held = state.work["class_idx"][state.requests["status"] == Status.HELD]
        counts: list[int] = np.bincount(held, minlength=classes).tolist()
        return counts

    def add_load(self, node: int, attempts: int, expected_s: float) -> None:
        """A node has more attempts, or fewer, than the loop has placed there."""
        self._live.add_load(node, attempts, expected_s, self.now_s())

    def change_node(self, change: NodeChange) -> None:
        """A node has more or fewer places, takes no new attempts, or another has come in its place."""
        if change.name:
            self.node_names[change.node] = change.name
        if change.places:
            self._live.change_room(change.node, change.places, self.now_s())
        if bool(self._live.nodes.up[change.node]) is not change.is_up:
            self._live.switch(change.node, change.is_up, self.now_s())
