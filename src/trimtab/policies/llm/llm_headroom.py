"""LLM headroom: the node where the fewest latency targets are missed because of the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import NonNegative, Positive, Range
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.engine_load import (
    NO_PREFIXES,
    NO_TOKENS,
    cached_of,
    first_token_s,
    prompt_of,
    prompt_token_s,
    row_s,
    tells_iterations,
    token_s,
    token_times,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS

_TTFT, _TPOT, _OTHERS, _STEEPNESS, _TIMES = range(5)  # params
_NEWEST = 1 / 64  # weight of the newest request in the means
_LARGEST = 1e6  # ratio of a latency to its target: no power of it overflows


@helper(inline=True)
def _miss(latency_s: float, target_s: float, steepness: float) -> float:
    """Probability that a latency exceeds its target, by its expectation: one half where they are equal."""
    grown, ratio = 1.0, min(latency_s / target_s, _LARGEST)
    for _ in range(int(steepness)):
        grown *= ratio
    return float(grown / (1.0 + grown))


@helper
def _misses(view: View, work: Any, j: int, params: Any, mean_new: float, mean_output: float) -> float:
    """Targets that are missed because of this work on node j, expected: by itself, and by others."""
    ttft_s, tpot_s, steepness = params[_TTFT], params[_TPOT], params[_STEEPNESS]
    times, output, n = params[_TIMES:], max(1.0, float(work.output_tokens)), float(view.nodes.in_flight[j])
    first_s, next_s = first_token_s(view, work, j, times), token_s(view, work, j, times)
    if not tells_iterations(view, j):
        return _miss(first_s + output * next_s, ttft_s + output * tpot_s, steepness)
    prompt, new = prompt_of(view, work), prompt_of(view, work) - cached_of(view, work, j)
    own_s = new * prompt_token_s(view, work, times, j)
    # A request sees about as many prompts read during its answer as there are requests beside it.
    next_s += (n * mean_new * prompt_token_s(view, work, times, j) + own_s) / mean_output
    next_before_s = next_s - own_s / mean_output - row_s(view, times, j, prompt + 0.5 * mean_output)
    late, slow = _miss(first_s, ttft_s, steepness), _miss(next_s, tpot_s, steepness)
    slower = n * (slow - _miss(max(next_before_s, 0.0), tpot_s, steepness))
    # As many requests come before what waits here is read, at the rate at which requests end here.
    coming = first_s * n / (mean_output * max(next_s, 1e-9))
    later = coming * (late - _miss(max(first_s - own_s, 0.0), ttft_s, steepness))
    return float(late + slow - late * slow + params[_OTHERS] * (slower + later))


@dataclass(frozen=True)
class LlmHeadroom(Policy):
    """Send each request where the fewest requests are expected to miss their latency targets because of it.

    Idea
        misses(node) = P(this request misses a target there) + `others` × (requests there × growth of
        P(too slow) + requests that will come there × growth of P(too late)). P(r) = r^`steepness` / (1 +
        r^`steepness`) of r = expected latency / target. Time to the first token = half an iteration + reading
        of all prompts that wait there and of what this one has not cached; where batch or KV memory will be
        full, the time in which that share of what is there ends. Time between tokens = the iteration with
        everything there in the batch + the prompts that are read meanwhile, one of mean length for each
        request there. Least first, ties by node. So a request that is too late everywhere goes where it
        delays the fewest others: long prompts gather at few nodes, and the others stay within the targets.
    Source
        This project's own, 2026. The objective is goodput under two latency targets: Yinmin Zhong and others,
        "DistServe: Disaggregating prefill and decoding for goodput-optimized large language model serving",
        OSDI 2024.
    Reads
        Iteration, batch, use of KV memory and prompts that wait at each node; tokens of this request and how
        many of them are cached; models that nodes hold; backlog and slots of other nodes; which nodes are up,
        have room and serve the class; of the cluster, the times of tokens by node type.
    Cost
        O(nodes).
    When it wins / loses
        Wins on goodput near saturation, most with unequal nodes and prompts of very unequal length. Below
        that all routers that see load are alike. Loses on the largest latency: the few longest prompts wait
        several times as long as elsewhere; `others` = 0 gives each request the best node for itself. With
        targets that no request comes near, only the order of expected latencies is left.
    Deviations from the source
        There goodput decides how many GPUs read prompts and how many decode, not where a request goes.
    """

    name: ClassVar[str] = "llm-headroom"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENGINE_LOAD, Need.PREFIX, Need.TOKENS, Need.RESIDENCY})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.ENGINE_LOAD: "Requests go where they are expected to complete first.",
        Need.PREFIX: NO_PREFIXES,
        Need.TOKENS: NO_TOKENS,
        Need.RESIDENCY: NO_LOADS,
    }
    ttft_s: Positive = 2.0  # target of the time to the first token
    tpot_s: Positive = 0.1  # target of the time between tokens
    others: NonNegative = 1.0  # weight of a target that another request misses
    steepness: Annotated[int, Range(1, 32)] = 8  # of P; larger = latencies are taken for more certain

    def init(self, cluster: Cluster) -> Memory:
        """Parameters and times of tokens; notes of the nodes, mean new prompt tokens and mean answer."""
        params = [self.ttft_s, self.tpot_s, self.others, self.steepness, *token_times(cluster)]
        return memory(params, floats=notes_room(cluster.n_nodes) + 2)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by misses, and note what the request adds to the first."""
        floats, n, prompt = memory.floats, view.context.n_nodes, prompt_of(view, work)
        new, output = NOTES + n, NOTES + n + 1
        if floats[output] == 0.0:
            floats[new], floats[output] = prompt, max(1.0, float(work.output_tokens))
        floats[output] += _NEWEST * (max(1.0, float(work.output_tokens)) - floats[output])
        for j in range(n):
            floats[NOTES + j] = np.inf
            if can_take(view, work, j):
                floats[NOTES + j] = _misses(view, work, j, memory.params, floats[new], floats[output])
        count = int(rank_noted(floats, ranking, n))
        if count > 0:
            floats[new] += _NEWEST * (prompt - cached_of(view, work, ranking.node_idx[0]) - floats[new])
        return count
