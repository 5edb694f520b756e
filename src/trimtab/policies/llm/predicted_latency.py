"""Predicted latency: the node whose predicted times of tokens fit the SLOs best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Fraction, NonNegative
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory
from trimtab.policies.shared.engine_load import (
    NO_ENGINE_TIMES,
    NO_PREFIXES,
    NO_TOKENS,
    cached_of,
    first_token_s,
    prompt_of,
    token_s,
    token_times,
)
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import NO_LOADS

_TTFT, _TPOT, _AFFINITY, _EXPLORE, _WEIGHT, _IS_DRAWN, _TIMES = range(7)  # params
_PREFERRED = 1e6  # subtracted from the scores of nodes that meet both SLOs


@helper
def _bring_forward(ranking: Any, count: int, u: float) -> None:
    """Move a candidate to the front, drawn by weights that fall evenly from `count` for the first to 1."""
    left, drawn = u * 0.5 * count * (count + 1), 0
    while drawn < count - 1 and left >= count - drawn:
        left -= count - drawn
        drawn += 1
    node, score = ranking.node_idx[drawn], ranking.score[drawn]
    for i in range(drawn, 0, -1):
        ranking.node_idx[i], ranking.score[i] = ranking.node_idx[i - 1], ranking.score[i - 1]
    ranking.node_idx[0], ranking.score[0] = node, score


@dataclass(frozen=True)
class PredictedLatency(Policy):
    """Send each request where its predicted latencies meet its SLOs with the least headroom, or are least.

    Idea
        If nodes have cached more than `affinity` of the prompt, only these count, but for a share `explore`
        of the requests. headroom = SLO − predicted, of the time to the first token (weight `ttft_weight`) and
        of the time between tokens (the rest), each in parts of the largest among the candidates. Nodes with
        headroom in both come first, the one with the least of it best, so that others stay free for stricter
        requests. Then those that exceed least. Without SLOs (0) the least latency is best. With `pick` =
        weighted the first candidate is drawn, the better ones more often.
    Source
        llm-d and the Gateway API inference extension, "Predicted latency-based scheduling", 2025 (llm-d.ai,
        gateway-api-inference-extension.sigs.k8s.io: affinity filter 0.8, exploration 0.01, weights 0.8 and
        0.2, strategy "least").
    Reads
        Iteration, batch, use of KV memory and prompts that wait at each node; tokens of this request and how
        many of them are cached; deadline; models that nodes hold; backlog and slots of other nodes; which
        nodes are up, have room and serve the class; of the cluster, the times of tokens by node type.
    Cost
        O(nodes).
    When it wins / loses
        Wins where prompts and answers vary much. Packing by least headroom fills one node to its bound, where
        a burst or a wrong prediction breaks many SLOs at once.
    Deviations from the source
        A formula over what nodes report replaces the boosted trees that are trained on measured requests. The
        SLOs are the policy's, not a request's; where `ttft_slo_s` is 0, a request with a deadline has the
        time that its answer leaves before it. Scores are ranks, not the published maps to 0 to 100, and
        there is no gate that drops the affinity where its nodes are much slower.
    """

    name: ClassVar[str] = "predicted-latency"
    draws = 2
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.ENGINE_LOAD, Need.PREFIX, Need.TOKENS, Need.RESIDENCY, Need.DEADLINES}
    )
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.ENGINE_LOAD: NO_ENGINE_TIMES,
        Need.PREFIX: NO_PREFIXES,
        Need.TOKENS: NO_TOKENS,
        Need.RESIDENCY: NO_LOADS,
        Need.DEADLINES: "Requests have the SLOs of the parameters alone.",
    }
    ttft_slo_s: NonNegative = 0.0  # 0 = none
    tpot_slo_s: NonNegative = 0.0  # 0 = none
    affinity: Fraction = 0.8  # cached share of the prompt above which only such nodes count
    explore: Fraction = 0.01  # share of requests for which all nodes count
    ttft_weight: Fraction = 0.8
    pick: Literal["best", "weighted"] = "best"

    def init(self, cluster: Cluster) -> Memory:
        """Parameters and times of tokens; notes of the nodes, and both predictions for each."""
        params = [self.ttft_slo_s, self.tpot_slo_s, self.affinity, self.explore, self.ttft_weight]
        times = token_times(cluster)
        n = cluster.n_nodes
        return memory([*params, float(self.pick == "weighted"), *times], floats=notes_room(n) + 2 * n)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes that count by headroom."""
        floats, n, params = memory.floats, view.context.n_nodes, memory.params
        first, after, times, prompt = NOTES + n, NOTES + 2 * n, params[_TIMES:], prompt_of(view, work)
        least_cached, most_first_s, most_next_s = 0.0, 1e-9, 1e-9
        if draws[0] >= params[_EXPLORE]:
            for j in range(n):
                if can_take(view, work, j) and cached_of(view, work, j) > params[_AFFINITY] * prompt:
                    least_cached = params[_AFFINITY] * prompt
        for j in range(n):
            floats[NOTES + j] = np.inf
            if can_take(view, work, j) and cached_of(view, work, j) >= least_cached:
                floats[NOTES + j] = 0.0
                floats[first + j] = first_token_s(view, work, j, times)
                floats[after + j] = token_s(view, work, j, times)
                most_first_s = max(most_first_s, floats[first + j])
                most_next_s = max(most_next_s, floats[after + j])
        for j in range(n):
            if floats[NOTES + j] < np.inf:
                ttft_s, tpot_s = params[_TTFT], params[_TPOT]
                if ttft_s == 0.0 and work.deadline_s < np.inf:
                    answer_s = max(0, work.output_tokens - 1) * floats[after + j]
                    ttft_s = max(0.0, work.deadline_s - view.context.now_s - answer_s)
                over_first = (floats[first + j] - ttft_s) / most_first_s
                over_next = (floats[after + j] - tpot_s) / most_next_s
                score = params[_WEIGHT] * over_first + (1.0 - params[_WEIGHT]) * over_next
                meets = (over_first <= 0.0 or ttft_s == 0.0) and (over_next <= 0.0 or tpot_s == 0.0)
                if meets and ttft_s + tpot_s > 0.0:
                    score = -score - _PREFERRED
                floats[NOTES + j] = score
        count = int(rank_noted(floats, ranking, n))
        if params[_IS_DRAWN] == 1.0 and count > 1:
            _bring_forward(ranking, count, draws[1])
        return count
