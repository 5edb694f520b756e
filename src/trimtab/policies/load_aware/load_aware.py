"""Load aware: the node with the least weighted load over its queue, its work and its resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import RESOURCES, Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, needs_of
from trimtab.policies.shared.room import (
    kept_at,
    kept_memory,
    memory_column,
    memory_share,
    models_take_memory,
    share_of,
)
from trimtab.policies.shared.selection import NOTES, rank_noted
from trimtab.policies.shared.unmet_needs import NO_MODEL_MEMORY
from trimtab.policies.shared.waits import expected_wait_s

_QUEUE, _BACKLOG, _MEMORY, _RESOURCES = 0, 1, 2, 3  # places in `params`: weights, those of resources last


@helper(inline=True)
def _queue_load(view: View, work: Any, j: int, weights: Any) -> float:
    """Weighted load of node j's queue and backlog with this work on it."""
    nodes = view.nodes
    load = weights[_QUEUE] * (nodes.in_flight[j] + 1) / nodes.weight[j]
    return float(load + weights[_BACKLOG] * expected_wait_s(view, j) / work.estimate_s)


@helper
def _resource_load(view: View, work: Any, j: int, weights: Any) -> float:
    """Weighted load of node j's resources with this work on it."""
    load = 0.0
    for k in range(view.demand.shape[1]):
        load += weights[_RESOURCES + k] * share_of(view, work, j, k)
    return float(load)


@dataclass(frozen=True)
class LoadAware(Policy):
    """Send each request to the node of least load, a weighted sum of its reports.

    Idea
        load(node) = queue × requests there per unit of capacity + backlog × expected wait in services of this
        request + Σ weight × share of a resource in use, the request itself counted. The policy is reactive:
        the present state decides, without a forecast.
    Source
        Domenico Ferrari: "A study of load indices for load balancing schemes", University of California,
        Berkeley, UCB/CSD-86-262, 1985 (a linear combination of the queue lengths at a host's resources as
        its load index; from memory). This sum and its default weights are ours.
    Reads
        In-flight and running requests, slots, capacity, backlog and its time, use of resources of each node;
        the class's demand; models that each node holds and their sizes; which nodes are up, have room and
        serve the class.
    Cost
        O(nodes), and O(classes + resources) for each node that changed since the last decision.
    When it wins / loses
        Wins over queue length alone where requests lean on different resources. Does not look at the service
        time of this request on that node or at distances. Old reports mislead it, and each fleet
        needs its own weights.
    Deviations from the source
        Shares of resources in use instead of queue lengths at them, and fixed weights instead of a job's
        demands; the queue is relative to the node's capacity. Requests that were sent to a node and do not
        run yet are assumed to need the same resources as this request. Where no resources are modelled, slots
        are the only one: the queue's term.
    """

    name: ClassVar[str] = "load-aware"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESOURCES, Need.REPORTED_LOAD, Need.RESIDENCY})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESOURCES: "The request itself adds only to the queue.",
        Need.REPORTED_LOAD: "Load is the queue and the expected wait.",
        Need.RESIDENCY: NO_MODEL_MEMORY,
    }
    queue: NonNegative = 1.0  # weight of requests in flight per unit of capacity
    backlog: NonNegative = 1.0  # weight of the expected wait, in services of the request
    cpu: NonNegative = 0.5  # weight of the share of cores in use
    ram: NonNegative = 0.25  # weight of the share of memory in use
    io: NonNegative = 0.25  # weight of the share of I/O in use
    network: NonNegative = 0.25  # weight of the share of network bandwidth in use
    gpu: NonNegative = 0.5  # weight of the share of accelerators in use
    gpu_memory: NonNegative = 0.25  # weight of the share of accelerator memory in use

    def init(self, cluster: Cluster) -> Memory:
        """Weights, those of resources as in the cluster; notes, models' memory, and kept loads of nodes."""
        given = self.cpu, self.ram, self.io, self.network, self.gpu, self.gpu_memory
        of = dict(zip(RESOURCES, given, strict=True))
        column = memory_column(cluster)
        weights = [of.get(name, 0.0) for name in cluster.resource_names]  # type: ignore[call-overload]
        if models_take_memory(cluster) and column >= 0:
            weights[column] = 0.0  # it is counted once, with the models
        return kept_memory(cluster, [self.queue, self.backlog, self.gpu_memory, *weights])

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by load."""
        needs, floats, weights = needs_of(work), memory.floats, memory.params
        first, models, has_models = kept_at(view, needs, memory)
        for j in range(view.context.n_nodes):
            if floats[first + j] != floats[first + j]:  # not kept
                floats[first + j] = _resource_load(view, needs, j, weights)
            load = _queue_load(view, needs, j, weights) + floats[first + j]
            if has_models:
                share = memory_share(view, needs, floats, models, j, memory.ints[1])
                load += weights[_MEMORY] * min(1.0, share)
            floats[NOTES + j] = load if can_take(view, needs, j) else np.inf
        return int(rank_noted(floats, ranking, view.context.n_nodes))
