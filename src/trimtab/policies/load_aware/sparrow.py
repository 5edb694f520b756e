"""Sparrow: reservations at a few random nodes for each job; the first of them that is free takes a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Positive, Range
from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import MAX_RANKED, Memory, Plan, View, empty_plan, memory, type_of_node
from trimtab.policies.shared.room import starts_now
from trimtab.policies.shared.unmet_needs import SLOTS_ONLY

KEPT = 16_384  # jobs whose reservations are kept; a later job takes the place of one that came so long before
_D, _PROBES = range(2)  # params: reservations per task, most reservations of a job
_JOB, _COUNT, _NODES = range(3)  # of a row of `ints`, one for each job that is kept: its number + 1, …
_ALL_TASKS = 1 << 20  # more than any request has


@helper(inline=True)
def _serves(view: View, work: Any, j: int) -> bool:
    """Whether node j is up and serves the class, busy or not."""
    return bool((view.nodes.up[j] == 1) & (view.fixed_s[work.class_idx, type_of_node(view, j)] < np.inf))


@helper(inline=True)
def _is_reserved(ints: Any, at: int, count: int, j: int) -> bool:
    """Whether the job whose nodes are listed from `at` on has a reservation at node j."""
    for i in range(count):  # noqa: SIM110 - numba compiles no generator expressions
        if ints[at + i] == j:
            return True
    return False


@helper
def _other_node(view: View, work: Any, ints: Any, at: int, count: int, u: float) -> int:
    """The ⌊u·m⌋-th of the m nodes that serve the work and are not reserved yet; -1 if there is none."""
    m = 0
    for j in range(view.context.n_nodes):
        m += 1 if _serves(view, work, j) and not _is_reserved(ints, at, count, j) else 0
    left = int(u * m)
    for j in range(view.context.n_nodes):
        if _serves(view, work, j) and not _is_reserved(ints, at, count, j):
            if left == 0:
                return j
            left -= 1
    return -1


@helper
def _reserve(view: View, work: Any, ints: Any, at: int, draws: Any, most: int) -> int:
    """List up to `most` different nodes, evenly drawn, from `at` on; returns how many.

    As `uniform_able`: where the first try fails, what u has left is uniform still.
    """
    count, n = 0, view.context.n_nodes
    for i in range(min(most, len(draws))):
        scaled = draws[i] * n
        j = int(scaled)
        if not _serves(view, work, j) or _is_reserved(ints, at, count, j):
            j = _other_node(view, work, ints, at, count, scaled - j)
        if j >= 0:
            ints[at + count] = j
            count += 1
    return count


@helper
def _reservations(view: View, work: Any, memory: Memory, draws: Any) -> int:
    """The row of the job that this work is a task of, with its reservations, made at its first decision.

    The last row is for jobs that have lost theirs: made by another policy, too many jobs ago, or at nodes
    that have all failed. They draw anew, which gives the same nodes until they are decided about again.
    """
    ints, params, tasks = memory.ints, memory.params, view.context.tasks
    width = _NODES + int(params[_PROBES])
    job = view.context.job if tasks > 0 else work.serial
    row = (job % KEPT) * width
    is_first = view.context.attempt == 0 and ints[row + _JOB] <= job
    if ints[row + _JOB] != job + 1:
        row = row if is_first else KEPT * width
        ints[row + _JOB] = job + 1
        most = min(int(params[_D]) * max(1, tasks), int(params[_PROBES]))
        ints[row + _COUNT] = _reserve(view, work, ints, row + _NODES, draws, most)
    for i in range(ints[row + _COUNT]):
        if _serves(view, work, ints[row + _NODES + i]):
            return row
    row = KEPT * width
    ints[row + _JOB] = 0
    ints[row + _COUNT] = _reserve(view, work, ints, row + _NODES, draws, int(params[_D]))
    return row


@dataclass(frozen=True)
class Sparrow(Policy):
    """Place d reservations per task at random nodes; the first of these nodes that is free takes the task.

    Idea
        Batch sampling: a job of m tasks places d·m reservations at different nodes. Late binding: a node that
        gets a slot free takes its oldest reservation and asks for a task of that job; it gets one if any is
        left, else it turns to its next reservation. So no wait is predicted, and each task starts at the
        first of its nodes that is free. A job is a request or a stage, its tasks are the parts or instances.
        Work is held until a node takes it. Reservations wait in order of arrival, so the held requests in
        their order tell which one each node takes next: the first that has a reservation there.
    Source
        Kay Ousterhout, Patrick Wendell, Matei Zaharia, Ion Stoica: "Sparrow: distributed, low latency
        scheduling", SOSP 2013, §3 (batch sampling, late binding); details from the authors' code
        (radlab/sparrow: UnconstrainedTaskPlacer, FifoTaskScheduler).
    Reads
        Requests in flight and slots of the reserved nodes, capacity and use of their resources; the job and
        the number of its tasks; which nodes are up and serve the class.
    Cost
        O(d·m); when a slot comes free, one decision for each held request.
    When it wins / loses
        Wins over `power-of-d`, whose queue lengths hide how long requests take; with one task per job it is
        equal to choosing the least work left of d nodes, without knowing it. Each dispatcher needs only its
        own jobs. Loses to `late-binding`, which sees all nodes, and with old views, which hide free slots.
        Blind to models and speeds.
    Deviations from the source
        A node is told of a task when it asks, with no message on the way, so reservations that are no longer
        needed cost nothing (there: proactive cancellation). A reservation serves until all tasks of its job
        are placed, so a node may take two of them (there: one task per reservation). A job has at most
        d × `tasks_max` reservations. With another order than first come first served, nodes serve their
        reservations in that order; of several dispatchers, a free node asks the first one first. Only the
        first 16,384 held requests can take a slot, and a job that waits while so many others come draws new
        nodes. Placement constraints of tasks, and priorities and fair shares at nodes, are left to classes
        and orders. A job whose nodes have all failed draws new ones.
    """

    name: ClassVar[str] = "sparrow"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESOURCES, Need.HOLDING, Need.SPLITTING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESOURCES: SLOTS_ONLY,
        Need.SPLITTING: "Every request is a job of one task.",
    }
    compares: ClassVar[int] = 4096  # of the held requests with a free node the first one takes it
    plan_period_s: Positive = 3600.0  # the plan is always the same: split requests into all their parts
    d: Annotated[int, Range(1, MAX_RANKED)] = 2  # reservations per task
    tasks_max: Annotated[int, Range(1, MAX_RANKED)] = 4  # tasks of a job that add reservations
    draws: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """One uniform number per reservation."""
        super().__post_init__()
        object.__setattr__(self, "draws", self.d * self.tasks_max)

    def init(self, cluster: Cluster) -> Memory:
        """No reservations."""
        probes = self.d * self.tasks_max
        return memory(params=[self.d, probes], ints=(KEPT + 1) * (_NODES + probes))

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan:
        """Split every request that can be split into its tasks."""
        return empty_plan()._replace(split_max=np.full(len(view.fixed_s), _ALL_TASKS))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the reserved nodes that have a slot free, in the order of the reservations."""
        row = _reservations(view, work, memory, draws)
        count = 0
        for i in range(memory.ints[row + _COUNT]):
            j = memory.ints[row + _NODES + i]
            if count < MAX_RANKED and starts_now(view, work, j):
                ranking[count] = j
                ranking.score[count] = 0.0  # the first in the order of the queue wins
                count += 1
        return count
