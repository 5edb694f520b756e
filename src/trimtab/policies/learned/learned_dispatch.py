"""Least expected completion whose scores learned weights correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, Plan, View, can_take, estimate_s, memory, needs_of
from trimtab.policies.load_aware.cost_index import least_wait_s
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.shared.features import N_FEATURES, fill_features, note_group
from trimtab.policies.shared.learned_score import (
    CorrectedPolicy,
    correction,
    fast_at,
    has_weights,
    is_by_group,
    note_free,
    row_at,
)
from trimtab.policies.shared.node_words import n_groups, refresh_nodes, type_of_group
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy
from trimtab.policies.shared.wait_index import (
    Cost,
    is_indexable,
    load_of_kind_s,
    may_be_free,
    n_kinds,
    own_of_kind_s,
    rank_free,
    rank_waiting,
    score_free,
    score_of,
    wait_index,
)

_AT = 2  # in `memory.params`: after whether there is an index, and the slots


@helper
def _cost_of(view: View, memory: Memory, work: Any, g: int, kind: int) -> Cost:
    """The addition to the wait of nodes of a group and kind."""
    t, floats = type_of_group(memory, g), memory.floats
    load_s, there_s, extra_s = load_of_kind_s(view, work, t, kind), estimate_s(view, work, t), 0.0
    if has_weights(memory.params, _AT):
        row = row_at(floats)
        note_group(floats, row, work.estimate_s, load_s, there_s, floats[fast_at(view, floats, 1) + t])
        extra_s = work.estimate_s * correction(memory.params, _AT, floats, row)
    return Cost(load_s + there_s, 0.0, 0.0, extra_s, 0.0, 0.0, np.inf)


@helper
def _rank_indexed(view: View, memory: Memory, needs: Any, work: Any, ranking: Any) -> int:
    """As the scan, by the index. Free nodes come first, because they bound the waits that count."""
    refresh_nodes(view, memory)
    if has_weights(memory.params, _AT):
        note_free(view, memory, work, memory.params[1], least_wait_s(view, memory, needs, ranking))
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(needs)):
            score = np.inf
            if may_be_free(memory, needs, g, kind) and own_of_kind_s(view, memory, needs, g, kind) < np.inf:
                score = score_of(_cost_of(view, memory, needs, g, kind), 0.0)
            score_free(memory, g, kind, score)
    count = rank_free(view, memory, needs, ranking)
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(needs)):
            if own_of_kind_s(view, memory, needs, g, kind) < np.inf:
                cost = _cost_of(view, memory, needs, g, kind)
                count = rank_waiting(view, memory, needs, ranking, count, g, kind, cost)
    return int(count)


@helper
def _rank_scanned(view: View, memory: Memory, needs: Any, work: Any, ranking: Any) -> int:
    """Rank all nodes by expected completion and correction."""
    floats, n = memory.floats, view.context.n_nodes
    has, at = has_weights(memory.params, _AT), NOTES + n
    if has:
        fill_features(view, work, floats, at, memory.params[1])
    rows = at + view.fixed_s.shape[1]
    for j in range(n):
        score_s = np.inf
        if can_take(view, needs, j):
            score_s = expected_completion_s(view, needs, j)
            if has:
                row = rows + j * N_FEATURES
                score_s += needs.estimate_s * correction(memory.params, _AT, floats, row)
        floats[NOTES + j] = score_s
    return int(rank_noted(floats, ranking, n))


@dataclass(frozen=True)
class LearnedDispatch(CorrectedPolicy, LoadsPolicy):
    """Send each request to the node of least expected completion, corrected by learned weights.

    Idea
        score(node) = expected completion + best service · c, where c is a small network's output for features
        of node and request (`policies/shared/features.py`), within ±`bound` / 2. So the node that is chosen
        is expected to complete at most `bound` best services later than the best one. c is 0 where a feature
        is outside of what training has seen (`in_range`). Without weights it is `least-expected-completion`.
        `trimtab learn train` makes weights: by evolution strategies, or by reinforcement learning.
    Source
        Tim Salimans, Jonathan Ho, Xi Chen, Szymon Sidor, Ilya Sutskever: "Evolution strategies as a scalable
        alternative to reinforcement learning", arXiv:1703.03864, 2017; a learned correction of a rule: Tom
        Silver, Kelsey Allen, Josh Tenenbaum, Leslie Kaelbling: "Residual policy learning",
        arXiv:1812.06298, 2018.
    Reads
        What `least-expected-completion` reads; how many requests are held, also for
        its model, and how many nodes are idle.
    Cost
        With weights that read nothing of single nodes as `least-expected-completion`, and O(hidden units ·
        features) for each group and kind of nodes; otherwise O(nodes · hidden units · features).
    When it wins / loses
        It binds a request when it comes, so it can at best avoid what least completion spoils for later
        requests: `late-binding`, which learns nothing, is ahead of both (docs/benchmarks/learned.md). For
        clusters where requests cannot be held, and for comparing methods of learning.
    Deviations from the source
        The published residuals correct actions of robots; this one corrects scores, one small network for
        every node alike, so that clusters of any size take the same weights. The network has one hidden layer
        and softsign, so that its results have the same bits everywhere.
    """

    name: ClassVar[str] = "learned-dispatch"

    def init(self, cluster: Cluster) -> Memory:
        """Whether there is an index of waits, the slots, the weights; the index or notes, and features."""
        is_indexed = is_indexable(cluster) and is_by_group(self.artifact)
        made = wait_index(cluster) if is_indexed else memory(floats=notes_room(cluster.n_nodes))
        made = made._replace(params=np.array([float(is_indexed), float(cluster.slots.sum())]))
        rows = 1 if is_indexed else cluster.n_nodes
        return self.with_correction(made, cluster, rows)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by corrected completion."""
        needs = needs_of(work)
        if memory.params[0] == 1.0:
            return int(_rank_indexed(view, memory, needs, work, ranking))
        return int(_rank_scanned(view, memory, needs, work, ranking))
