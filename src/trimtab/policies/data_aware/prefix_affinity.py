"""Prefix affinity: the node that has the prompt's prefix in its cache, unless its queue is too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, OneOrMore
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    memory,
    missing_load_s,
    needs_of,
    service_s,
    type_of_node,
)
from trimtab.policies.load_aware.least_expected_completion import note_waits
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS

_ESCAPE, _WEIGHT, _HEADER = range(3)  # params: [header, work units of a prompt token by class]


@helper(inline=True)
def _saved_s(view: View, work: Any, per_token: float, j: int) -> float:
    """Service seconds that the cached part of the prompt saves on node j."""
    units = view.prefix_tokens[j] * per_token
    return float(view.unit_s[work.class_idx, type_of_node(view, j)] * min(units, work.units))


@helper(inline=True)
def _score_s(view: View, work: Any, params: Any, j: int, wait_s: float, least_wait_s: float) -> float:
    """Expected completion on node j minus the seconds that its cache saves."""
    escape, weight, per_token = params
    there_s = service_s(view, work, j)
    saved_s = _saved_s(view, work, per_token, j)
    own_s = missing_load_s(view, work, j) + there_s - saved_s
    is_calm = wait_s - least_wait_s <= escape * there_s
    bonus_s = (weight - 1.0) * saved_s
    return float(wait_s + (own_s - (bonus_s if is_calm else 0.0)))


@dataclass(frozen=True)
class PrefixAffinity(Policy):
    """Send each request where it completes first with what nodes have of its prompt, and keep prompts there.

    Idea
        completion(node) = wait + model load + service − saved service, where saved service = seconds per unit
        × work units of a prompt token × tokens of the prompt in the node's cache. Saved service counts
        `weight` times, because a prompt that stays at its node takes no room in other caches. Overload
        escape: it counts once on a node whose wait exceeds the least wait of all able nodes by more than
        `escape` × the request's own service there. So a hot prompt spreads to further nodes before its
        node's queue grows without bound. Least first, ties by node.
    Source
        Ruoyu Qin and others: "Mooncake: Trading more storage for less computation", FAST 2025 (the instance
        of least estimated time, of queue, prefill and cached prefix); the escape from overloaded nodes after
        Vikranth Srivatsa, Zijian He, Reyna Abhyankar, Dongming Li, Yiying Zhang: "Preble: Efficient
        distributed prompt scheduling for LLM serving", ICLR 2025.
    Reads
        Prompt tokens that each node has cached; backlog and its time, running and in-flight requests, slots,
        resident models; estimated service of this request per node type; which nodes are up, have room and
        serve the class; of the cluster, work units of a prompt token per class.
    Cost
        O(nodes).
    When it wins / loses
        Wins where prompts share long prefixes and no cache can hold all of them. Without prefixes the policy
        equals `least-expected-completion`. A large `weight` with a large `escape` lets a hot node's queue
        grow.
    Deviations from the source
        The estimate of service replaces Mooncake's table of prefill times; no copies of prompts are moved
        between nodes, and none is evicted by popularity. Preble's E2 is another policy, `e2`: here nothing
        compares cached with new tokens, evictions have no cost, and present waits replace the window of past
        load.
    """

    name: ClassVar[str] = "prefix-affinity"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY, Need.PREFIX})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.RESIDENCY: NO_LOADS,
        Need.PREFIX: "It is `least-expected-completion`.",
    }
    weight: OneOrMore = 2.0  # value of a saved second where the node is not overloaded
    escape: NonNegative = (
        1.0  # wait beyond the least, in services of the request, up to which `weight` applies
    )

    def init(self, cluster: Cluster) -> Memory:
        """Parameters, work units of a prompt token by class, and notes of the nodes."""
        units = cluster.prompt_token_units
        per_token = np.zeros(len(cluster.class_names)) if units is None else units
        return memory(params=[self.escape, self.weight, *per_token], floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by expected completion minus the seconds that their caches save."""
        needs, floats = needs_of(work), memory.floats
        given = memory.params
        params = given[_ESCAPE], given[_WEIGHT], given[_HEADER + needs.class_idx]
        least_wait_s = note_waits(view, needs, floats)
        for j in range(view.context.n_nodes):
            wait_s = floats[NOTES + j]
            if wait_s < np.inf:
                floats[NOTES + j] = _score_s(view, needs, params, j, wait_s, least_wait_s)
        return int(rank_noted(floats, ranking, view.context.n_nodes))
