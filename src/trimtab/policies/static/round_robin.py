"""Round robin: the nodes take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, memory
from trimtab.policies.shared.selection import next_able, rank_from


@dataclass(frozen=True)
class RoundRobin(Policy):
    """Send requests to the nodes in turn.

    Idea
        A pointer walks around the nodes; each request goes to the next one that can take it, and that node
        after the pointer comes next. Second candidate: the following able node.
    Source
        Mor Harchol-Balter: Performance Modeling and Design of Computer Systems, Cambridge University Press,
        2013, §24.1 (task assignment "Round-Robin").
    Reads
        Which nodes are up, have room and serve the class.
    Cost
        O(1); O(nodes) where most nodes cannot take the request.
    When it wins / loses
        Arrivals at each node are more regular than random's, so it waits less at no cost. Blind to load and
        speed: loses where sizes vary much or nodes differ.
    Deviations from the source
        Nodes that cannot take the request lose their turn. Each dispatcher turns on its own.
    """

    name: ClassVar[str] = "round-robin"

    def init(self, cluster: Cluster) -> Memory:
        """One number: the node whose turn it is."""
        return memory(ints=1)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Take the next able node."""
        j = next_able(view, work, memory.ints[0])
        if j < 0:
            return 0
        memory.ints[0] = j + 1 if j + 1 < view.context.n_nodes else 0
        return rank_from(view, work, ranking, j)
