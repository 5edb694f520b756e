"""Fragmentation gradient descent: the node where a request strands the least accelerator capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Positive
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.room import (
    drop_changed,
    has_room,
    largest,
    last_if_full,
    left_of,
    none_kept,
    room_left,
)
from trimtab.policies.shared.selection import rank
from trimtab.policies.shared.unmet_needs import SLOTS_ONLY

_ACCELERATOR = "gpu_milli"
_TIE = 1e-3  # weight of what is left over, at most one for each resource, beside whole steps of growth
_COUNTED = 64  # requests after which classes' frequencies are looked at anew
_EXACT = 1e-9  # steps, by which sums of rounded numbers may be off


def fragment_memory(
    counted_idx: int, devices_asked: Any, popularity: Any, n_resources: int, n_devices: int, params: Any = ()
) -> Memory:
    """Memory as `fragments` reads it.

    `counted_idx` is the resource whose fragments count. `ints`: it, and how many devices each kind of request
    asks for. `floats`: the popularity of each kind, then what a node has left: of each
    resource, and of the counted one on each of its devices.
    """
    floats = list(popularity) + [0.0] * (n_resources + n_devices)
    return memory(params=params, ints=[counted_idx, *devices_asked], floats=floats)


@helper
def stranded(left: Any, first: int, n_devices: int, ask: float, many: int, is_fed: bool) -> float:
    """F(m): what is left on `n_devices` devices, from `left[first]` on, that requests of kind m can't use.

    m asks for `many` devices with `ask` of each; `is_fed` tells whether all other resources suffice for one.
    Where one fits, it is what is left on devices with less than `ask`; else, or where m asks for none, all.
    """
    free, usable, able = 0.0, 0.0, 0
    for g in range(first, first + n_devices):
        free += left[g]
        if left[g] >= ask:
            usable += left[g]
            able += 1
    return free - usable if is_fed and ask > 0.0 and able >= many else free


@helper
def fragments(demand: Any, fixed_s: Any, type_idx: int, n_devices: int, memory: Memory) -> float:
    """F(M) of a node of a type: what a request drawn by popularity can't use, expected. O(kinds · resources).

    `demand` [kinds, resources] has what is asked of each single device as the counted resource; `fixed_s`
    [kinds, types] is inf where a type can't serve a kind; for `memory` see `fragment_memory`.
    """
    n_kinds, n_resources = demand.shape
    left, counted_idx = memory.floats, memory.ints[0]
    first = n_kinds
    expected, popularity = 0.0, 0.0
    for m in range(n_kinds):
        is_fed = fixed_s[m, type_idx] < np.inf
        for k in range(n_resources):
            if k != counted_idx and left[first + k] < demand[m, k]:
                is_fed = False
        ask, many = demand[m, counted_idx], memory.ints[1 + m]
        weight = left[m]
        expected += weight * stranded(left, first + n_resources, n_devices, ask, many, is_fed)
        popularity += weight
    return expected / popularity


@helper
def steepness(growth: float, step: float, left_over: float) -> float:
    """The score of a node: growth of fragments in whole steps, rounded up, then the room left over."""
    return np.ceil(growth / step - _EXACT) + _TIE * left_over


@helper
def _growth(view: View, work: Any, j: int, memory: Memory) -> float:
    """By how much fragments of node j would grow with this work on it, its devices taken as one."""
    n_kinds, n_resources = view.demand.shape
    left, counted_idx, g = memory.floats, memory.ints[0], view.nodes.type_idx[j]
    first = n_kinds
    for k in range(n_resources):
        left[first + k] = left_of(view, work, j, k)
    left[first + n_resources] = left[first + counted_idx]
    after = fragments(view.demand, view.fixed_s, g, 1, memory)
    for k in range(n_resources):
        left[first + k] += view.demand[work.class_idx, k]
    left[first + n_resources] = left[first + counted_idx]
    return after - fragments(view.demand, view.fixed_s, g, 1, memory)


@helper
def _score(view: View, work: Any, j: int, memory: Memory) -> float:
    """The score of node j, whether it is up or not; inf where the work does not fit now."""
    if not has_room(view, work, j):
        return np.inf
    left_over = room_left(view, work, j, memory.params)
    if view.demand.shape[1] == 0:
        return left_over
    growth, step = _growth(view, work, j, memory), memory.params[len(memory.params) - 1]
    return steepness(growth, step, left_over) + last_if_full(view, work, j)


@helper
def _first_score(view: View) -> int:
    """Where the scores that are kept begin: [classes, nodes], nan where there is none."""
    return len(view.fixed_s) + view.demand.shape[1] + 1


@helper
def _keep_up(view: View, work: Any, memory: Memory) -> None:
    """Count the request, and drop the scores that changes of nodes or of frequencies made void."""
    n, n_kinds, first = view.context.n_nodes, len(view.fixed_s), _first_score(view)
    counts = 1 + n_kinds
    drop_changed(view, memory.floats, first)
    if view.context.attempt > 0:
        return
    memory.ints[counts + work.class_idx] += 1
    total = memory.ints[counts + n_kinds] + 1
    memory.ints[counts + n_kinds] = total
    if total <= _COUNTED or total % _COUNTED == 0:
        for m in range(n_kinds):
            memory.floats[m] = float(memory.ints[counts + m])
        for i in range(n_kinds * n):
            memory.floats[first + i] = np.nan


def _counted_idx(cluster: Cluster) -> int:
    """The accelerators; without any, the resource that runs out first if all classes are equally frequent."""
    if _ACCELERATOR in cluster.resource_names:
        return cluster.resource_names.index(_ACCELERATOR)
    if not cluster.resource_names:
        return 0
    return int(np.argmax(cluster.demand.sum(axis=0) / np.maximum(cluster.capacity.sum(axis=0), 1e-300)))


@dataclass(frozen=True)
class FragmentationGradient(Policy):
    """Of the nodes where the request fits now, the one whose unusable accelerator capacity grows least.

    Idea
        A fragment is accelerator capacity that is free, yet of no use to the next request: the node lacks
        cores or memory for it, may not serve it, or has too little left. Which request comes next is a
        chance, by how often each class has come; so a node's fragments are an expectation. The request goes
        where it adds least to them, and may even remove some. Where it fits nowhere, it is held.
    Source
        Qizhen Weng, Lingyun Yang, Yinghao Yu, Wei Wang, Xiaochuan Tang, Guodong Yang, Liping Zhang: "Beware
        of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent", USENIX ATC
        2023. F(m) is `stranded`, F(M) `fragments`; the tasks m are the classes. Definitions as in the
        authors' simulator (hkust-adsl/kubernetes-scheduler-simulator, pkg/utils/frag.go and
        pkg/simulator/plugin/fgd_score.go); of the paper only the abstract was read.
    Reads
        Capacity and use of each node's resources, the demands of all classes, slots, running and in-flight
        requests; which nodes are up, have room and serve which class; how many of each class came before.
    Cost
        O(nodes), and O(classes × resources) for each node that changed since such a request came last; each
        64 requests for all nodes.
    When it wins / loses
        Wins where the accelerators fill up with requests of many shapes, small ones beside large, and keep
        them: the last percents stay usable. Where requests leave again and a node's accelerators are one
        pool, it does no better than best fit. Knows neither speeds nor models nor distances, so it loses to
        policies of expected completion on unequal nodes. Refused, as best fit is, where a node serves each
        request slower the more there are.
    Deviations from the source
        Classes' frequencies are counted as requests come, one request of each being given at the start, and
        looked at anew at each of the first 64 and then at each 64th (there: those of the most frequent shapes
        of the whole trace, as a rule without requests that ask for no accelerator). A node's accelerators are
        one pool, as hosts account for them; the bench on the source's own trace has them apart. Growth is
        compared in whole steps, of 4 % of a device where the largest node has eight, and of equals the node
        with the least left over comes first: the source's simulator rounds its scores to about that, and
        without it the bench ends half a percent lower. Requests leave again. Where no accelerators are
        modelled, fragments of the resource that runs out first count; where no resources are, it is best fit
        by slots.
    """

    name: ClassVar[str] = "fragmentation-gradient"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESOURCES, Need.HOLDING, Need.FULL_SPEED})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESOURCES: SLOTS_ONLY,
    }
    step_frac: Positive = 0.005  # of the largest node: growth is compared in whole steps

    def init(self, cluster: Cluster) -> Memory:
        """That of `fragments`, as if one request of each class had come, then what came and the kept scores.

        `params` are the most that a node has of each resource, and the step.
        """
        once, most, counted_idx = np.ones(len(cluster.class_names)), largest(cluster), _counted_idx(cluster)
        params = [*most, self.step_frac * most[counted_idx]]
        kept = fragment_memory(counted_idx, once, once, len(cluster.resource_names), 1, params)
        counts, scores = [*once, 0], none_kept(cluster)
        return memory(kept.params, [*kept.ints, *counts], [*kept.floats, *scores])

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Count the request, and rank the nodes where it fits by the growth of their fragments."""
        _keep_up(view, work, memory)
        count, nodes, scores = 0, view.nodes, memory.floats
        first = _first_score(view) + work.class_idx * view.context.n_nodes
        for j in range(view.context.n_nodes):
            if can_take(view, work, j) and nodes.in_flight[j] < nodes.slots[j]:
                if np.isnan(scores[first + j]):
                    scores[first + j] = _score(view, work, j, memory)
                if scores[first + j] < np.inf:
                    count = rank(ranking, count, j, scores[first + j])
        return count
