"""Scorers: the node with the best weighted sum of scores from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, Tunable
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.engine_load import (
    NO_PREFIXES,
    NO_TOKENS,
    cached_of,
    kv_in_use,
    prompt_of,
    reports_memory,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted

_PREFIX, _QUEUE, _KV, _RUNNING, _LORA = range(5)  # params: weights
_TIE = 1e-9  # by which equal nodes are told apart, per place


@helper(inline=True)
def _waiting(view: View, j: int) -> int:
    """Requests at node j that are not served yet."""
    return int(max(0, view.nodes.in_flight[j] - view.nodes.running[j]))


@helper(inline=True)
def _free_frac(view: View, j: int) -> float:
    """Free share of node j's KV memory; of its slots where it reports no memory."""
    if reports_memory(view, j):
        return 1.0 - min(1.0, kv_in_use(view, j) / view.engines.kv_tokens[j])
    return 1.0 - min(1.0, view.nodes.running[j] / view.nodes.slots[j])


@helper(inline=True)
def _among(value: float, least: float, most: float) -> float:
    """1 for the least of the values, 0 for the most, 1 where all are equal."""
    return (most - value) / (most - least) if most > least else 1.0


@dataclass(frozen=True)
class Scorers(Policy):
    """Send each request to the node with the best weighted sum of scores: prefix, queue, KV memory.

    Idea
        Each scorer gives a node 0 to 1: prefix = cached share of the prompt; queue = waiting requests, 1 at
        the shortest queue and 0 at the longest; kv = free share of the KV memory; running = as queue, of
        running requests; lora = 1 where the adapter is loaded or none is needed. Highest weighted sum first;
        equals by turns from a random node on.
    Source
        Kubernetes Gateway API inference extension and llm-d inference scheduler, 2025 (llm-d.ai/docs,
        "Request scheduler"; default profile: prefix cache 3, queue 2, KV cache utilisation 2, picker of the
        maximum).
    Reads
        Use of KV memory with its growth, running and in-flight requests, resident adapters; prompt tokens
        that each node has cached; length of the prompt; which nodes are up, have room and serve the class.
    Cost
        O(nodes).
    When it wins / loses
        Robust where one signal lies. Loses where what differs is the speed of nodes or the length of prompts
        that wait: a queue of one long prompt looks like one of a short prompt, and the queue scorer knows
        only the order between the extremes.
    Deviations from the source
        The lora scorer has no middle score for nodes with room for another adapter, which no host reports.
        The default profile has neither running
        nor lora; here lora counts, which changes nothing without adapters.
    """

    name: ClassVar[str] = "scorers"
    draws = 1
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENGINE_LOAD, Need.PREFIX, Need.TOKENS, Need.RESIDENCY})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.ENGINE_LOAD: "Slots in use stand for KV memory in use.",
        Need.PREFIX: NO_PREFIXES,
        Need.TOKENS: NO_TOKENS,
        Need.RESIDENCY: "Every node counts as having the adapter.",
    }
    prefix: Annotated[NonNegative, Tunable(0.0, 8.0)] = 3.0
    queue: Annotated[NonNegative, Tunable(0.0, 8.0)] = 2.0
    kv: Annotated[NonNegative, Tunable(0.0, 8.0)] = 2.0
    running: Annotated[NonNegative, Tunable(0.0, 8.0)] = 0.0
    lora: Annotated[NonNegative, Tunable(0.0, 8.0)] = 1.0

    def init(self, cluster: Cluster) -> Memory:
        """Weights, and notes of the nodes."""
        weights = [self.prefix, self.queue, self.kv, self.running, self.lora]
        return memory(weights, floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by their score."""
        floats, n, weights, prompt = memory.floats, view.context.n_nodes, memory.params, prompt_of(view, work)
        least_queue = least_running = np.inf
        most_queue = most_running = 0.0
        for j in range(n):
            if can_take(view, work, j):
                queue, running = float(_waiting(view, j)), float(view.nodes.running[j])
                least_queue, most_queue = min(least_queue, queue), max(most_queue, queue)
                least_running, most_running = min(least_running, running), max(most_running, running)
        start = int(draws[0] * n)
        for j in range(n):
            floats[NOTES + j] = np.inf
            if can_take(view, work, j):
                has_adapter = work.adapter_idx < 0 or view.resident[j, work.adapter_idx] == 1
                score = weights[_PREFIX] * cached_of(view, work, j) / prompt
                score += weights[_QUEUE] * _among(float(_waiting(view, j)), least_queue, most_queue)
                score += weights[_KV] * _free_frac(view, j)
                score += weights[_RUNNING] * _among(view.nodes.running[j], least_running, most_running)
                score += weights[_LORA] * (1.0 if has_adapter else 0.0)
                floats[NOTES + j] = _TIE * ((j + n - start) % n) - score
        return int(rank_noted(floats, ranking, n))
