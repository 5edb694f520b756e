"""E2: exploit a cached prefix where it is most of the prompt, else explore the node of least load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel, plain
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Range
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    memory,
    needs_of,
    service_s,
    type_of_node,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted

STEPS = 16  # in which the window moves on
_PERIOD = 0  # in `ints`: the number of the step in which the last request came
_WINDOW, _REBALANCE, _UNITS = range(3)  # params: [header, work units of a prompt token by class]
# In `floats` behind the notes of the nodes, three tables [STEPS + 1, nodes] of what was sent to each node in
# each step, and in the last row in the whole window:
_WORK, _HITS, _PROMPTS, _TABLES = range(4)  # seconds of work; prompt tokens found cached; prompt tokens


@helper(inline=True)
def _table(floats: Any, n: int, table: int, step: int) -> int:
    """Where the row of a step lies; step STEPS is the whole window."""
    return NOTES + n + (table * (STEPS + 1) + step) * n


@helper
def _move_window(ints: Any, floats: Any, n: int, period: int) -> None:
    """Forget the steps that have left the window, up to this one."""
    last = ints[_PERIOD]
    ints[_PERIOD] = period
    for new in range(max(last + 1, period - STEPS + 1), period + 1):
        for table in range(_TABLES):
            row = _table(floats, n, table, new % STEPS)
            for j in range(n):
                floats[row + j] = 0.0
    if period > last:
        for table in range(_TABLES):
            total = _table(floats, n, table, STEPS)
            for j in range(n):
                floats[total + j] = 0.0
                for step in range(STEPS):
                    floats[total + j] += floats[_table(floats, n, table, step) + j]


@helper(inline=True)
def _count(floats: Any, n: int, period: int, table: int, j: int, amount: float) -> None:
    floats[_table(floats, n, table, period % STEPS) + j] += amount
    floats[_table(floats, n, table, STEPS) + j] += amount


@helper(inline=True)
def _new_tokens(view: View, j: int) -> float:
    """Tokens of the prompt that node j would have to compute."""
    return max(0.0, float(view.context.prompt_tokens - view.prefix_tokens[j]))


@helper(inline=True)
def _token_s(view: View, work: Any, j: int, units: float) -> float:
    """Seconds that a prompt token takes on node j."""
    return float(view.unit_s[work.class_idx, type_of_node(view, j)] * units)


@helper(inline=True)
def _load_cost_s(view: View, work: Any, floats: Any, n: int, j: int, units: float) -> float:
    """Seconds of load at node j if it takes the work: of the window, of evictions, of this prompt."""
    prompts = floats[plain(_table(floats, n, _PROMPTS, STEPS) + j)]
    hits = floats[plain(_table(floats, n, _HITS, STEPS) + j)]
    reuse_frac = hits / prompts if prompts > 0.0 else 0.0
    prefill_s = _token_s(view, work, j, units) * _new_tokens(view, j)
    return float(
        floats[plain(_table(floats, n, _WORK, STEPS) + j)] / view.nodes.slots[j]
        + (1.0 + reuse_frac) * prefill_s
    )


@helper(inline=True)
def _longest_prefix(view: View, work: Any, n: int) -> float:
    """Tokens of the prompt in the cache of the able node that has most of it."""
    longest = 0.0
    for j in range(n):
        if can_take(view, work, j):
            longest = max(longest, view.prefix_tokens[j])
    return longest


@helper(inline=True)
def _is_overloaded(view: View, work: Any, floats: Any, n: int, j: int, rebalance: float) -> bool:
    """Whether node j has the most load of all able nodes, `rebalance` times the least."""
    row = _table(floats, n, _WORK, STEPS)
    least = most = floats[row + j] / view.nodes.slots[j]
    for i in range(n):
        if can_take(view, work, i):
            load_s = floats[row + i] / view.nodes.slots[i]
            least, most = min(least, load_s), max(most, load_s)
    load_s = floats[row + j] / view.nodes.slots[j]
    return bool(load_s >= most and load_s > rebalance * least)


@dataclass(frozen=True)
class E2(Policy):
    """Go where most of the prompt is cached; where no node has most of it, go where load costs least.

    Idea
        Exploit: if a node has more tokens of the prompt in its cache than remain to be computed, take the
        nodes with the longest cached prefix, and of these the one of least load cost. Explore: otherwise take
        the node of least load cost. Load cost(node) = L + M + P, in seconds: L = work sent there in the last
        `window_s`, cached parts excluded; M = cost of what its cache must evict for the new part of the
        prompt; P = computing that part. If exploiting would choose the node of most load, more than
        `rebalance` times the least, the request goes to the node of least load cost instead.
    Source
        Vikranth Srivatsa, Zijian He, Reyna Abhyankar, Dongming Li, Yiying Zhang: "Preble: Efficient
        distributed prompt scheduling for LLM serving", ICLR 2025 (arXiv 2407.00023), §3.2 (from memory). The
        authors' code was read: WukLab/preble, multi_node/global_scheduler_with_time.py.
    Reads
        Length of the prompt; prompt tokens that each node has cached; slots; the estimated service time of
        this request per node type; which nodes are up, have room and serve the class; of the cluster, work
        units of a prompt token per class.
    Cost
        O(nodes).
    When it wins / loses
        Wins where prompts share long prefixes and nodes are equal: popular prefixes stay where they are, and
        prompts without one spread by load. Its load looks back, so it does not see queues as they are:
        `prefix-affinity` follows bursts better. Without prompts it balances work over the window only.
    Deviations from the source
        The policy cannot see what a cache would evict. Caches count as full, so that as many tokens go as
        come, and their cost is that of computing them times the share of prompt tokens that the node found
        cached in the window (there: of each tree node the requests that shared it). The window moves in 16
        steps. The work of a request is its estimate, per slot, as long as it is in the window (there: prefill
        by regression, and decoding only while the request is active). P counts (in their code it is 0). Past
        `rebalance` single requests turn away from the node of most load, as in the paper; the code moves
        whole prefixes, at a ratio of 15, and the version that was read has that switched off. The default is
        ours. A hot prefix is not copied ahead of time (there: when its time to the first token doubles within
        a window), decoding nodes are not preferred for prefill, and waiting requests are not ordered by their
        cached share.
    """

    name: ClassVar[str] = "e2"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PREFIX})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.PREFIX: "No prompt counts as cached: requests go where load costs least.",
    }
    window_s: Annotated[float, Range(1e-3)] = 180.0  # H
    rebalance: Annotated[float, Range(1.0, may_be_infinite=True)] = (
        2.0  # ratio of the most to the least load above which exploiting stops; inf = never
    )

    def init(self, cluster: Cluster) -> Memory:
        """Parameters, work units of a prompt token by class; notes of the nodes, and the window."""
        units, n = cluster.prompt_token_units, cluster.n_nodes
        per_token = np.zeros(len(cluster.class_names)) if units is None else units
        params = [self.window_s, self.rebalance, *per_token]
        return memory(params=params, ints=1, floats=notes_room(n) + _TABLES * (STEPS + 1) * n)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes with the longest prefix, or all, by load cost, and count the work of the first."""
        needs, floats, n = needs_of(work), memory.floats, view.context.n_nodes
        units, window_s = memory.params[_UNITS + needs.class_idx], memory.params[_WINDOW]
        period = int(view.context.now_s // (window_s / STEPS))
        _move_window(memory.ints, floats, n, period)
        longest = _longest_prefix(view, needs, n)
        least = longest if longest > view.context.prompt_tokens - longest else 0.0
        for _ in range(2):
            for j in range(n):
                is_one = can_take(view, needs, j) and view.prefix_tokens[j] >= least
                floats[NOTES + j] = _load_cost_s(view, needs, floats, n, j, units) if is_one else np.inf
            count = int(rank_noted(floats, ranking, n))
            if count == 0 or least == 0.0:
                break
            if not _is_overloaded(view, needs, floats, n, ranking.node_idx[0], memory.params[_REBALANCE]):
                break
            least = 0.0
        if count > 0:
            j = ranking.node_idx[0]
            cached = min(float(view.prefix_tokens[j]), float(view.context.prompt_tokens))
            there_s = service_s(view, needs, j)
            work_s = max(0.0, there_s - cached * _token_s(view, needs, j, units))
            _count(floats, n, period, _WORK, j, work_s)
            _count(floats, n, period, _HITS, j, cached)
            _count(floats, n, period, _PROMPTS, j, float(view.context.prompt_tokens))
        return count
