"""Late binding whose scores learned weights correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    estimate_s,
    missing_load_s,
    needs_of,
    service_s,
    type_of_node,
)
from trimtab.policies.load_aware.late_binding import (
    INDEXED,
    SLOTS,
    LateBinding,
    note_idle,
    rank_groups,
    rank_idle,
    score_groups,
)
from trimtab.policies.shared.features import is_free, is_warm, note_group, note_node, note_request
from trimtab.policies.shared.learned_score import (
    CorrectedPolicy,
    correction,
    fast_at,
    has_weights,
    is_by_group,
    note_free,
    row_at,
)
from trimtab.policies.shared.node_words import n_groups, type_of_group
from trimtab.policies.shared.selection import NOTES
from trimtab.policies.shared.wait_index import add_to_free, load_of_kind_s, may_be_free, n_kinds
from trimtab.policies.shared.waits import idle_at, n_listed

_AT = 6  # in `memory.params`: after those of late-binding


@helper
def _correct_groups(view: View, memory: Memory, needs: Any, work: Any) -> None:
    """Correct the scores of idle nodes by group and kind."""
    floats, row = memory.floats, row_at(memory.floats)
    note_free(view, memory, work, memory.params[SLOTS], 0.0)
    for g in range(n_groups(memory)):
        t = type_of_group(memory, g)
        for kind in range(n_kinds(needs)):
            if may_be_free(memory, needs, g, kind):
                load_s, there_s = load_of_kind_s(view, needs, t, kind), estimate_s(view, needs, t)
                fast = floats[fast_at(view, floats, 1) + t]
                note_group(floats, row, needs.estimate_s, load_s, there_s, fast)
                add_to_free(memory, g, kind, needs.estimate_s * correction(memory.params, _AT, floats, row))


@helper
def _correct_idle(view: View, memory: Memory, needs: Any, work: Any) -> None:
    """Correct the notes of idle nodes."""
    floats, row, count = memory.floats, row_at(memory.floats), n_listed(memory.ints)
    idle, warm = 0, 0
    for i in range(count):
        j = idle_at(memory.ints, i)
        if is_free(view, j):
            idle += 1
            warm += 1 if is_warm(view, needs, j) else 0
    note_request(view, work, floats, row, memory.params[SLOTS], idle, warm, 0.0)
    for i in range(count):
        if floats[NOTES + i] < np.inf:
            j = idle_at(memory.ints, i)
            load_s, there_s = missing_load_s(view, needs, j), service_s(view, needs, j)
            fast = floats[fast_at(view, floats, 1) + type_of_node(view, j)]
            note_group(floats, row, needs.estimate_s, load_s, there_s, fast)
            note_node(view, floats, row, j, needs.estimate_s, 0.0)
            floats[NOTES + i] += needs.estimate_s * correction(memory.params, _AT, floats, row)


@dataclass(frozen=True)
class LearnedResidual(CorrectedPolicy, LateBinding):
    """Late binding, with learned weights that correct what a choice costs.

    Idea
        score(request, node) = that of `late-binding` + best service · c, where c is a small network's output
        for features of node and request (`policies/shared/features.py`), within ±`bound` / 2. So no choice
        has a score that is more than `bound` best services above the one that late binding would make. c is
        0 where a feature is outside of what training has seen (`in_range`). Without weights it is
        `late-binding`. `trimtab learn train` makes weights by evolution strategies on simulated runs.
    Source
        Tim Salimans, Jonathan Ho, Xi Chen, Szymon Sidor, Ilya Sutskever: "Evolution strategies as a scalable
        alternative to reinforcement learning", arXiv:1703.03864, 2017; a learned correction of a rule: Tom
        Silver, Kelsey Allen, Josh Tenenbaum, Leslie Kaelbling: "Residual policy learning",
        arXiv:1812.06298, 2018.
    Reads
        What `late-binding` reads; how many nodes are idle, and how many of these hold the model; held
        requests for it.
    Cost
        As `late-binding`, and O(hidden units · features) for each idle node, or with an index for each group
        and kind of nodes.
    When it wins / loses
        On unseen clusters of the family that it was trained on it moves along late binding's own front of
        mean against tail: no weights that were measured have a lower mean at the same p99 beyond chance
        (docs/benchmarks/learned.md). Worth training on the traffic that it will serve, and worth a test on
        requests that it has not seen.
    Deviations from the source
        The published residuals correct actions of robots; this one corrects scores, one small network for
        every node alike, so that clusters of any size take the same weights. The network has one hidden layer
        and softsign, so that its results have the same bits everywhere.
    """

    name: ClassVar[str] = "learned-residual"

    def init(self, cluster: Cluster) -> Memory:
        """That of late-binding, with the weights, and room for features."""
        made = self.memory_for(cluster, may_index=is_by_group(self.artifact))
        return self.with_correction(made, cluster)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank idle nodes by corrected score, unless a busy one is worth waiting for."""
        params, needs = memory.params, needs_of(work)
        aged_s = params[0] * (view.context.now_s - work.arrival_s)
        if params[INDEXED] == 1.0:
            idle_s = score_groups(view, memory, params, needs, aged_s)
            if has_weights(params, _AT):
                _correct_groups(view, memory, needs, work)
            return int(rank_groups(view, memory, params, needs, ranking, idle_s))
        idle_s = note_idle(view, memory, params, needs, aged_s)
        if has_weights(params, _AT):
            _correct_idle(view, memory, needs, work)
        return int(rank_idle(view, memory, params, needs, ranking, idle_s))
