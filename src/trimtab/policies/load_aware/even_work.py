"""Even work: among the nodes of nearly the best completion, the node with the least work so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel, plain
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import NonNegative, Tunable
from trimtab.domain.view import Memory, Plan, View, can_take, estimate_s, memory, needs_of
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy

_AWAY = -1.0  # work of a node that is down; `_welcome_back` sets its work when it returns
_SENT = 0  # place in `ints`: requests sent
# In `floats`: notes of the nodes, work per slot of each, seconds that the best type would take for all sent.


@helper(inline=True)
def _note_completions(view: View, work: Any, floats: Any) -> float:
    """Note each node's expected completion, inf where it can't take the work; returns the least."""
    best_s = np.inf
    for j in range(view.context.n_nodes):
        completion_s = expected_completion_s(view, work, j) if can_take(view, work, j) else np.inf
        floats[NOTES + j] = completion_s
        best_s = min(best_s, completion_s)
    return best_s


@helper(inline=True)
def _welcome_back(view: View, floats: Any, work_at: int) -> None:
    """Note which nodes are down. A node that returns starts with the least work of the other nodes."""
    returned = 0
    for j in range(view.context.n_nodes):
        if view.nodes.up[j] == 0:
            floats[work_at + j] = _AWAY
        elif floats[work_at + j] == _AWAY:
            returned += 1
    if returned > 0:
        least_s = np.inf
        for j in range(view.context.n_nodes):
            if floats[work_at + j] != _AWAY:
                least_s = min(least_s, floats[work_at + j])
        for j in range(view.context.n_nodes):
            if view.nodes.up[j] != 0 and floats[work_at + j] == _AWAY:
                floats[work_at + j] = least_s if least_s < np.inf else 0.0


@dataclass(frozen=True)
class EvenWork(LoadsPolicy):
    """Send each request to the node with the least work so far, among those about as fast as the best.

    Idea
        A node is good enough where the request is expected to complete within `slack` mean services of the
        best completion; of these, the one that has been sent the fewest seconds of work per slot takes it.
        So nodes are used evenly over time, at a bounded price for each request.
    Source
        Ronald Graham: "Bounds for certain multiprocessing anomalies", Bell System Technical Journal 45(9),
        1966 (list scheduling: the machine with the least work so far is next).
    Reads
        Backlog and its time, running and in-flight requests, slots, resident models of each node; the
        estimated service time of this request per node type, and the best of these; which nodes are up, have
        room and serve the class.
    Cost
        O(nodes).
    When it wins / loses
        Wins where wear, heat, rent or fairness ask for even use, and on unequal nodes also in the tail, as
        work goes where queues are short. Its mean is above that of policies that prefer fast nodes,
        most of all at low load, where these would do everything.
    Deviations from the source
        Graham's list is known at the start and is to end early; here requests come over time, and work that
        is done still counts. Work is counted in seconds of the node that was sent it, by estimate; only nodes
        near the best completion compete; a mean service is that of the requests sent so far. A failed node
        returns with the least work of the other nodes, so that it is not flooded. Each dispatcher counts its
        own work.
    """

    name: ClassVar[str] = "even-work"
    slack: Annotated[NonNegative, Tunable(0.1, 20.0, "log")] = (
        2.0  # mean services that a completion may be later than the best
    )

    def init(self, cluster: Cluster) -> Memory:
        """The slack; requests sent; notes of the nodes, work per slot of each, best seconds of all sent."""
        room = notes_room(cluster.n_nodes) + cluster.n_nodes + 1
        return memory(params=[self.slack], ints=1, floats=room)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the nodes that are good enough by work so far."""
        floats, n = memory.floats, view.context.n_nodes
        work_at, sent_at = len(floats) - 1 - n, len(floats) - 1
        best_s = _note_completions(view, needs_of(work), floats)
        if best_s == np.inf:
            return 0
        _welcome_back(view, floats, work_at)
        limit_s = best_s + memory.params[0] * floats[sent_at] / max(1, memory.ints[_SENT])
        for j in range(n):
            done_s = floats[plain(work_at + j)]
            floats[NOTES + j] = done_s if floats[NOTES + j] <= limit_s else np.inf
        count = rank_noted(floats, ranking, n)
        j = ranking.node_idx[0]
        floats[work_at + j] += estimate_s(view, work, view.nodes.type_idx[j]) / view.nodes.slots[j]
        floats[sent_at] += work.estimate_s
        memory.ints[_SENT] += 1
        return int(count)
