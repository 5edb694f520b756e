"""The power of d choices: sample a few nodes, take the least busy of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.parameters import Range
from trimtab.domain.view import MAX_RANKED, Memory, Plan, View
from trimtab.policies.shared.sampling import SamplingPolicy
from trimtab.policies.shared.selection import rank, uniform_able


@dataclass(frozen=True)
class PowerOfD(SamplingPolicy):
    """Sample d nodes at random and send the request to the one with the fewest in flight.

    Idea
        Two choices already make queues doubly exponentially short: the share of nodes with at least i
        requests falls from λ^i (random) to λ^((d^i − 1)/(d − 1)). The samples are the candidates, least busy
        first; of equals, the one sampled first.
    Source
        Michael Mitzenmacher: "The power of two choices in randomized load balancing", IEEE Transactions on
        Parallel and Distributed Systems 12(10), 2001, §2 (the supermarket model).
    Reads
        Requests in flight on the sampled nodes; which nodes are up, have room and serve the class.
    Cost
        O(d); O(nodes) where a sampled node cannot take the request.
    When it wins / loses
        Nearly as good as looking at all nodes, at constant cost, and robust to stale views, where the exact
        minimum herds. Blind to speed and size: loses to least-expected-wait on unequal nodes.
    Deviations from the source
        Sampled with replacement, as there, but among able nodes only. Requests in flight are compared
        whatever the number of slots; there each server serves one customer at a time.
    """

    name: ClassVar[str] = "power-of-d"
    d: Annotated[int, Range(1, MAX_RANKED)] = 2  # nodes sampled per request

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Sample nodes and rank them."""
        count = 0
        for i in range(len(draws)):
            j = uniform_able(view, work, draws[i])
            if j < 0:
                return 0
            score = (
                view.nodes.in_flight[j] + i / MAX_RANKED
            )  # less than one apart: only equals are told apart
            count = rank(ranking, count, j, score)
        return count
