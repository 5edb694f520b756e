"""Split and merge: many small parts while nodes are idle, few parts and batches while nodes are busy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, NonNegative, Positive, Range
from trimtab.domain.planning import History
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, empty_plan, needs_of
from trimtab.policies.load_aware.least_expected_completion import (
    LeastExpectedCompletion,
    expected_completion_s,
    rank_by_completion,
)
from trimtab.policies.shared.node_words import refresh_nodes
from trimtab.policies.shared.sampling import part_weights
from trimtab.policies.shared.selection import rank
from trimtab.policies.shared.unmet_needs import NO_LOADS

Floats = NDArray[np.float64]

_MANY = 8  # parts, where nothing has arrived yet to learn from
_GAIN_FRAC = 1e-6  # least gain for which a class's number of parts is changed
_BUSY_FRAC = 0.9  # share of the time that slots are busy with batches, once there have to be any


class Recent(NamedTuple):
    """The last arrivals: their seconds on an average node, and their rate."""

    class_idx: NDArray[np.int64]  # [arrivals]
    fixed_s: Floats  # [arrivals]
    variable_s: Floats  # [arrivals], what parts share
    parts_max: NDArray[np.int64]  # [arrivals]
    per_s: float


@helper
def _rank_apart(view: View, memory: Memory, work: Any, ranking: Any) -> int:
    """As `rank_by_completion`, but a node with requests counts as slower the more of its slots have one."""
    nodes, apart_frac, count = view.nodes, memory.params[2], 0
    if memory.params[0] == 1.0:
        refresh_nodes(view, memory)
    for j in range(view.context.n_nodes):
        if can_take(view, work, j):
            in_flight = nodes.in_flight[j]
            longer = 1.0 + apart_frac * (min(1, in_flight) + in_flight / nodes.slots[j])
            count = rank(ranking, count, j, longer * expected_completion_s(view, work, j))
    return count


@dataclass(frozen=True)
class SplitMerge(Policy):
    """Split requests into as many parts as pay at the present load, and batch waiting work under load.

    Idea
        Parts run side by side but pay the fixed time each, so splitting shortens service and lengthens
        queues. Every period the policy computes the cost of the last arrivals for each number of parts, from
        1 to their maximum: service of the longest part + join + expected wait at the load of all parts. The
        plan takes the cheapest number for all classes, then changes class by class what makes the sum
        cheaper. Where nodes differ in speed, parts are sized so that they end together on the fastest slots
        that are expected to be free. From the load `batch_from_load_frac` on, work that waits is batched.
        With `window_frac` batches also wait to fill while a node is free, for a window that grows with the
        load from 0 to `window_frac` mean services.
        Where a further request of a batch costs less than its own service (`marginal_frac`) and single
        requests would overload the nodes, the cost assumes batches just large enough for a load of 0.9.
        Requests go where `least-expected-completion` sends them. So do parts, and requests that may be split,
        but nodes with free slots are not all alike to them: an idle node is taken before one that has
        requests, if it is slower by no more than `apart_frac`, else the one with the larger share of its
        slots free. So parts of a request do not all go to the first idle node, where they may disturb each
        other.
    Source
        Splitting: Kay Ousterhout, Aurojit Panda, Joshua Rosen, Shivaram Venkataraman, Reynold Xin, Sylvia
        Ratnasamy, Scott Shenker, Ion Stoica: "The case for tiny tasks in compute clusters", HotOS 2013.
        Batching, at once or delayed: Daniel Crankshaw, Xin Wang, Giulio Zhou, Michael J. Franklin, Joseph E.
        Gonzalez, Ion Stoica: "Clipper: a low-latency online prediction serving system", NSDI 2017. The wait:
        G/G/c, see `trimtab.forecast.queueing`. Sizes by speed: divisible load theory, Yuan-Chang Cheng,
        Thomas Robertazzi: "Distributed computation with communication delay", IEEE Transactions on Aerospace
        and Electronic Systems 24(6), 1988 (from memory). The choice by load is trimtab's own.
    Reads
        As least-expected-completion; in `plan`, classes, sizes and possible parts of recent arrivals, their
        rate, and the slots of nodes that are up.
    Cost
        As least-expected-completion a decision, O(nodes) for parts; O(classes × parts × arrivals remembered)
        a plan, a few times.
    When it wins / loses
        Wins over any fixed number of parts where the load changes or classes differ. At a steady load of one
        class the best fixed number is as good. Does nothing where the scenario's classes declare neither
        `split` nor `batch`. Windows cost more than they save unless slots are scarce and waits matter little.
    Deviations from the source
        Tiny tasks are as small as possible; here the load sets the size. Clipper finds its batch size by
        trial against a deadline; here the size is a parameter. Divisible loads can be cut anywhere and know
        their nodes; here parts are whole images, and each part is dispatched by itself after it was sized.
        The price of a number of parts takes them as equal, on a slot of average speed.
    """

    name: ClassVar[str] = "split-merge"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.SPLITTING, Need.BATCHING})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.SPLITTING: "Requests stay whole.",
        Need.BATCHING: "Requests are served one by one.",
    }
    plan_period_s: Positive = 5.0
    recent: Annotated[int, Range(2)] = 200  # arrivals that are priced
    join_s: NonNegative = 0.0  # seconds to join parts, as far as known
    marginal_frac: NonNegative = 1.0  # share of its service that one more of a batch costs, as far as known
    batch_max: Count = 8  # requests of a batch, once there are batches
    batch_from_load_frac: NonNegative = 0.7
    window_frac: NonNegative = 0.0  # of a mean service, at load 1
    apart_frac: NonNegative = 0.1  # of its completion, by which a part may end later at an idle node

    def init(self, cluster: Cluster) -> Memory:
        """As least-expected-completion, and `apart_frac`."""
        made = LeastExpectedCompletion().init(cluster)
        return made._replace(params=np.append(made.params, self.apart_frac))

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan | None:
        """Price every number of parts; set batches and windows by the load at the cheapest."""
        classes, slots = len(view.fixed_s), _usable_slots(view)
        arrived = history.work[-self.recent :]
        if len(arrived) < 2 or slots == 0:
            return _plan_of(classes, _MANY, 1, 0.0)
        recent = priced(view, arrived)
        parts, load = self._parts(recent, slots, classes), _load_frac(recent, slots, 1)
        weight = part_weights(view, arrived, parts, _load_frac(recent, slots, parts[recent.class_idx]))
        plan = _plan_of(classes, 1, self._batch_max(load), self._window_s(recent, load))
        return plan._replace(split_max=parts, part_weight=weight)

    def _parts(self, recent: Recent, slots: int, classes: int) -> NDArray[np.int64]:
        """Number of parts of each class, [classes]: the best one for all, then changed class by class."""
        numbers = range(1, min(slots, int(recent.parts_max.max())) + 1)
        costs_s = [self.mean_s(recent, slots, np.full(classes, k)) for k in numbers]
        parts, least_s = np.full(classes, 1 + int(np.argmin(costs_s))), min(costs_s)
        several = np.unique(recent.class_idx[recent.parts_max > 1])
        is_better = len(np.unique(recent.class_idx)) > 1
        while is_better:
            is_better = False
            for c in several:
                most = min(slots, int(recent.parts_max[recent.class_idx == c].max()))
                for k in range(1, most + 1):
                    other = np.where(np.arange(classes) == c, k, parts)
                    cost_s = self.mean_s(recent, slots, other)
                    if cost_s < least_s * (1.0 - _GAIN_FRAC):
                        parts, least_s, is_better = other, cost_s, True
        return parts

    def mean_s(self, recent: Recent, slots: int, most: NDArray[np.int64]) -> float:
        """Expected mean completion with at most so many parts [classes]; inf where nodes can't keep up."""
        parts = np.minimum(recent.parts_max, most[recent.class_idx])
        batch = self._batch(_load_frac(recent, slots, most[recent.class_idx]))
        longer = 1.0 + self.marginal_frac * (batch - 1.0)
        wait_s = _wait_s(recent, slots, parts, batch, longer)
        images = np.ceil(recent.parts_max / parts) / recent.parts_max  # share of the longest part
        served_s = longer * (recent.fixed_s + recent.variable_s * images)
        last_s = wait_s * np.cumsum(1.0 / np.arange(1, parts.max() + 1))[parts - 1]  # of exponential waits
        return float(np.mean(served_s + last_s + np.where(parts > 1, self.join_s, 0.0)))

    def _batch(self, load: float) -> float:
        """Mean size of the batches that this load makes."""
        most, gain = float(self.batch_max), 1.0 - self.marginal_frac
        spare = _BUSY_FRAC - load * self.marginal_frac
        if load <= _BUSY_FRAC or gain <= 0.0:
            return 1.0
        return min(most, load * gain / spare) if spare > 0.0 else most

    def _batch_max(self, load: float) -> int:
        return self.batch_max if load >= self.batch_from_load_frac else 1

    def _window_s(self, recent: Recent, load: float) -> float:
        from_load = self.batch_from_load_frac
        share = np.clip((load - from_load) / max(1.0 - from_load, 1e-9), 0.0, 1.0)
        return float(share * self.window_frac * np.mean(recent.fixed_s + recent.variable_s))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion; for parts those with requests come later."""
        if work.parts_max > 1:
            return int(_rank_apart(view, memory, needs_of(work), ranking))
        return int(rank_by_completion(view, memory, needs_of(work), ranking))


def _usable_slots(view: View) -> int:
    """Slots of nodes that are up; a live host may allow fewer requests than a node has slots."""
    nodes = view.nodes
    allowed = np.minimum(nodes.slots, nodes.in_flight + np.maximum(nodes.room, 0))
    return int(allowed[nodes.up == 1].sum())


def _plan_of(classes: int, parts: int, batch_max: int, window_s: float) -> Plan:
    return empty_plan()._replace(
        split_max=np.full(classes, parts),
        batch_max=np.full(classes, batch_max),
        batch_window_s=np.full(classes, window_s),
    )


def priced(view: View, arrived: NDArray[np.void]) -> Recent:
    """Service of these requests on an average slot that serves their class."""
    nodes = view.nodes
    slots = np.bincount(nodes.type_idx, nodes.slots * nodes.up, minlength=view.fixed_s.shape[1])
    serves = np.isfinite(view.fixed_s) * slots  # [classes, types]
    share = serves / np.maximum(serves.sum(axis=1, keepdims=True), 1e-300)
    fixed_s = (np.where(share > 0.0, view.fixed_s, 0.0) * share).sum(axis=1)
    unit_s = (np.where(share > 0.0, view.unit_s, 0.0) * share).sum(axis=1)
    c, since_s = arrived["class_idx"], view.context.now_s - arrived["arrival_s"][0]
    parts_max = np.maximum(arrived["parts_max"], 1).astype(np.int64)
    per_s = len(arrived) / max(since_s, 1e-9)
    return Recent(c.astype(np.int64), fixed_s[c], unit_s[c] * arrived["units"], parts_max, per_s)


def _load_frac(recent: Recent, slots: int, most: int | NDArray[np.int64]) -> float:
    """Share of the slots' time that these arrivals take in at most so many parts each."""
    parts = np.minimum(recent.parts_max, most)
    return float(recent.per_s * np.mean(recent.fixed_s * parts + recent.variable_s) / slots)


def _wait_s(recent: Recent, slots: int, parts: NDArray[np.int64], batch: float, longer: float) -> float:
    """Expected wait of a part, all of a request's parts arriving at once; inf at load 1 and above.

    `batch` parts are served as one, in `longer` times the service of one.
    """
    from trimtab.forecast.queueing import ggc  # with the first plan: it takes a moment

    part_s = recent.fixed_s + recent.variable_s / parts
    mean_s = float(np.average(part_s, weights=parts))
    spread = float(np.average((part_s - mean_s) ** 2, weights=parts))
    together = max(1.0, float(np.mean(parts**2) / np.mean(parts)) / batch)
    per_s = recent.per_s * float(np.mean(parts)) / batch
    if mean_s <= 0.0:
        return 0.0
    return ggc(slots, per_s, mean_s * longer, spread / mean_s**2, together).wait_s
