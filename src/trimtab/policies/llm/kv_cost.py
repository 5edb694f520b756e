"""KV cost: prompt tokens that the node has to read, plus tokens that it holds in its KV memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.engine_load import (
    NO_ENGINES,
    NO_PREFIXES,
    NO_TOKENS,
    cached_of,
    held_tokens,
    prompt_of,
    unread_tokens,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted

_OVERLAP, _TEMPERATURE = range(2)  # params


@helper
def _draw(floats: Any, n: int, temperature: float, u: float) -> int:
    """A node drawn by the softmax of costs in parts of their range; -1 = none can take the work."""
    least, most, total = np.inf, -np.inf, 0.0
    for j in range(n):
        if floats[NOTES + j] < np.inf:
            least, most = min(least, floats[NOTES + j]), max(most, floats[NOTES + j])
    scale = max(most - least, 1e-9) * temperature
    for j in range(n):
        total += math.exp((least - floats[NOTES + j]) / scale)
    left, drawn = u * total, -1
    for j in range(n):
        if floats[NOTES + j] < np.inf and (drawn < 0 or left > 0.0):
            left -= math.exp((least - floats[NOTES + j]) / scale)
            drawn = j
    return drawn


@dataclass(frozen=True)
class KvCost(Policy):
    """Send each request where the least is to be read and held: unread prompts, and tokens in the KV memory.

    Idea
        cost(node) = `overlap_weight` × (tokens of prompts that wait there + tokens of this prompt that it has
        not cached) + tokens that it holds, with those of this prompt. The first part delays the first token,
        the second every later one. Least first, ties by node. With a `temperature` above 0 the first
        candidate is drawn by the softmax of −cost / temperature, with costs in parts of their range.
    Source
        NVIDIA Dynamo, "KV router", 2025 (docs.nvidia.com/dynamo, cost function: overlap weight × prefill
        blocks + decode blocks; defaults 1 and temperature 0).
    Reads
        Use of KV memory with its growth, prompt tokens that wait, requests in flight; prompt tokens that each
        node has cached; tokens of this request; which nodes are up, have room and serve the class.
    Cost
        O(nodes).
    When it wins / loses
        Wins where prompts share prefixes and answers are long: it weighs reading against holding. Blind to
        the speed of nodes, to the size of their memories, and to prompts that end soon. Old reports lack the
        prompts that other dispatchers have sent since.
    Deviations from the source
        Tokens replace blocks, whose size cancels out of every comparison. What a node reports replaces the
        router's own books of active blocks; a prompt that is partly read counts in both parts. Newer
        versions give partial credit to slower tiers of the cache, which no host has here.
    """

    name: ClassVar[str] = "kv-cost"
    draws = 1
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENGINE_LOAD, Need.PREFIX, Need.TOKENS})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.ENGINE_LOAD: NO_ENGINES,
        Need.PREFIX: NO_PREFIXES,
        Need.TOKENS: NO_TOKENS,
    }
    overlap_weight: NonNegative = 1.0  # of a token to read, over one to hold
    temperature: NonNegative = 0.0  # 0 = always the least cost

    def init(self, cluster: Cluster) -> Memory:
        """Parameters, and notes of the nodes."""
        return memory([self.overlap_weight, self.temperature], floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by cost."""
        floats, n, overlap = memory.floats, view.context.n_nodes, memory.params[_OVERLAP]
        prompt = prompt_of(view, work)
        for j in range(n):
            cost = np.inf
            if can_take(view, work, j):
                new = prompt - cached_of(view, work, j)
                cost = overlap * (unread_tokens(view, j) + new) + held_tokens(view, work, j) + new
            floats[NOTES + j] = cost
        if memory.params[_TEMPERATURE] > 0.0:
            drawn = _draw(floats, n, memory.params[_TEMPERATURE], draws[0])
            if drawn >= 0:
                floats[NOTES + drawn] = -1.0
        return int(rank_noted(floats, ranking, n))
