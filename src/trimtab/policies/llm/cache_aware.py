"""Cache-aware: the longest cached prefix while the load is balanced, else the fewest requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Fraction, Natural, OneOrMore
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.engine_load import NO_PREFIXES, NO_TOKENS, cached_of, prompt_of
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted

_THRESHOLD, _ABSOLUTE, _RELATIVE = range(3)  # params
_BY_LOAD, _BY_PREFIX, _BY_ROOM = range(3)


@helper
def _mode_of(view: View, work: Any, params: Any) -> int:
    """What decides: requests in flight, the cached prefix, or the room in caches."""
    least, most, longest = np.inf, 0.0, 0.0
    for j in range(view.context.n_nodes):
        if can_take(view, work, j):
            load = float(view.nodes.in_flight[j])
            least, most = min(least, load), max(most, load)
            longest = max(longest, cached_of(view, work, j))
    if most - least > params[_ABSOLUTE] and most > params[_RELATIVE] * least:
        return _BY_LOAD
    return _BY_PREFIX if longest > params[_THRESHOLD] * prompt_of(view, work) else _BY_ROOM


@dataclass(frozen=True)
class CacheAware(Policy):
    """Go to the longest cached prefix until the load is out of balance, then to the least busy node.

    Idea
        Out of balance: the most requests in flight of a node exceed the fewest by more than
        `balance_abs_threshold`, and `balance_rel_threshold` times the fewest. Then the node with the fewest
        gets the request. Otherwise, if some node has cached more than `cache_threshold` of the prompt, the
        one with the longest prefix; else the one whose cache has most room: to which the fewest prompt tokens
        were sent that it did not have. Ties by node.
    Source
        Lianmin Zheng and others: "SGLang v0.4", LMSYS blog, December 2024 (cache-aware load balancer), and
        the documentation of its router (thresholds 0.3, 64 and 1.5; docs.sglang.ai).
    Reads
        Requests in flight; prompt tokens that each node has cached; length of the prompt; which nodes are up,
        have room and serve the class.
    Cost
        O(nodes).
    When it wins / loses
        Wins where conversations and shared prefixes make prompts long. Within the thresholds load does not
        count at all, so with few nodes, or with prompts of unequal length, queues grow at one of them;
        `prefix-affinity` weighs both.
    Deviations from the source
        There the router keeps a tree of what it sent to each worker and guesses what is cached; here nodes,
        or the host's index, say it. Its trees are cut to a largest size; here what was sent is never
        forgotten.
    """

    name: ClassVar[str] = "cache-aware"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PREFIX, Need.TOKENS})
    degrades: ClassVar[Mapping[Need, str]] = {Need.PREFIX: NO_PREFIXES, Need.TOKENS: NO_TOKENS}
    cache_threshold: Fraction = 0.3
    balance_abs_threshold: Natural = 64
    balance_rel_threshold: OneOrMore = 1.5

    def init(self, cluster: Cluster) -> Memory:
        """Thresholds; notes of the nodes, and the new prompt tokens that each was sent."""
        params = [self.cache_threshold, self.balance_abs_threshold, self.balance_rel_threshold]
        return memory(params, floats=notes_room(cluster.n_nodes) + cluster.n_nodes)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by what decides, and count the tokens that are new to the first."""
        floats, n, mode = memory.floats, view.context.n_nodes, _mode_of(view, work, memory.params)
        sent = NOTES + n
        for j in range(n):
            floats[NOTES + j] = np.inf
            if can_take(view, work, j):
                if mode == _BY_LOAD:
                    floats[NOTES + j] = view.nodes.in_flight[j]
                else:
                    floats[NOTES + j] = -cached_of(view, work, j) if mode == _BY_PREFIX else floats[sent + j]
        count = int(rank_noted(floats, ranking, n))
        if count > 0:
            j = ranking.node_idx[0]
            floats[sent + j] += prompt_of(view, work) - cached_of(view, work, j)
        return count
