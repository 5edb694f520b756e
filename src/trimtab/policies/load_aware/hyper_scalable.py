"""Hyper-scalable JSQ: rare reports of queue lengths, and between them the dispatcher's own count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import NonNegative
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory
from trimtab.policies.shared.trees import forest, n_trees, rank_head, set_key, type_of

# In `floats` behind the trees: when the next report is due, then each node's estimate.


@helper(inline=True)
def _note_room(view: View, memory: Memory, estimates_at: int, j: int) -> None:
    """Give node j its estimate as key, or inf while it is down or full."""
    is_open = view.nodes.up[j] == 1 and view.nodes.room[j] > 0
    set_key(memory, view.nodes.group_idx[j], j, memory.floats[estimates_at + j] if is_open else np.inf)


@helper(inline=True)
def _take_report(view: View, memory: Memory, estimates_at: int) -> None:
    """Set the estimates to the true queue lengths, if a report is due."""
    due_at, now_s, every_s = estimates_at - 1, view.context.now_s, memory.params[0]
    if now_s >= memory.floats[due_at]:
        memory.floats[due_at] = (1.0 + now_s // every_s) * every_s if every_s > 0.0 else now_s
        for j in range(view.context.n_nodes):
            memory.floats[estimates_at + j] = view.nodes.in_flight[j]
            _note_room(view, memory, estimates_at, j)
        return
    for i in range(view.context.n_changed):  # whether a node is up and has room is always known
        _note_room(view, memory, estimates_at, view.changed[i])


@dataclass(frozen=True)
class HyperScalable(Policy):
    """Join the shortest queue by estimate: the last report of each node, plus what was sent there since.

    Idea
        Every `report_s` seconds all nodes report how many requests they have. In between the dispatcher adds
        1 for each request that it sends, and learns nothing of completions, so its estimate is an upper
        bound. Each request goes to the node of least estimate. With reports at all times this is join the
        shortest queue, without reports on equal nodes round robin: messages can be far fewer than requests.
    Source
        Mark van der Boor, Sem Borst, Johan van Leeuwaarden: "Hyper-scalable JSQ with sparse feedback",
        Proceedings of the ACM on Measurement and Analysis of Computing Systems 3(1), 2019 (arXiv 1903.02337;
        the abstract was read; the scheme SUJSQ, with updates at fixed intervals, from memory). The periodic
        reports are the bulletin board of Michael Mitzenmacher: "How useful is old information?", IEEE
        Transactions on Parallel and Distributed Systems 11(1), 2000.
    Reads
        Requests in flight, once every `report_s`; which nodes are up, have room and serve the class.
    Cost
        O(log nodes) per decision and node group (tournament trees); O(nodes) per report.
    When it wins / loses
        Wins over sampling with as many messages, and does not herd on old reports as long as there are few
        dispatchers. With fresh reports at hand it throws information away. Blind to speed and size.
    Deviations from the source
        One dispatcher there; here each has its own estimates, and others' requests enter with the next
        report. A report is read at the first decision after it is due. Ties by node. The rest of the view
        (which nodes are up or full) is always read.
    """

    name: ClassVar[str] = "hyper-scalable"
    report_s: NonNegative = 1.0  # seconds between reports; 0 = before each decision

    def init(self, cluster: Cluster) -> Memory:
        """A tree of estimates per node group; when a report is due; the estimates."""
        trees = forest(cluster)
        floats = np.concatenate([trees.floats, np.zeros(1 + cluster.n_nodes)])
        return memory(params=[self.report_s], ints=trees.ints, floats=floats)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the heads of the groups that serve this class, and count the request at the first."""
        estimates_at = len(memory.floats) - view.context.n_nodes
        _take_report(view, memory, estimates_at)
        count = 0
        for g in range(n_trees(memory)):
            if view.fixed_s[work.class_idx, type_of(memory, g)] < np.inf:
                count = rank_head(memory, ranking, count, g, 0.0, 1.0)
        if count > 0:
            memory.floats[estimates_at + ranking.node_idx[0]] += 1.0
            _note_room(view, memory, estimates_at, ranking.node_idx[0])
        return int(count)
