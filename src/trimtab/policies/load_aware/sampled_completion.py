"""Sampled completion: of a few nodes drawn by capacity, the node of least expected completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import Range
from trimtab.domain.view import MAX_RANKED, Memory, Plan, View, memory
from trimtab.policies.load_aware.least_expected_completion import expected_completion_s
from trimtab.policies.shared.sampling import SamplingPolicy, alias_table, weighted_able
from trimtab.policies.shared.selection import rank
from trimtab.policies.shared.unmet_needs import LoadsPolicy

_LATER_S = (
    1e-9  # of equals the one sampled first: by index, all dispatchers would herd on the first idle nodes
)


@dataclass(frozen=True)
class SampledCompletion(SamplingPolicy, LoadsPolicy):
    """Sample d nodes by capacity and send the request to where it is expected to complete first.

    Idea
        Chance keeps dispatchers with the same old reports from all choosing the same node; among its few
        samples each chooses by the expected completion as it stands now: the report's backlog, aged by what
        the node has worked off since, plus what this dispatcher itself has sent there and got back.
    Source
        Michael Mitzenmacher: "How useful is old information?", IEEE Transactions on Parallel and Distributed
        Systems 11(1), 2000 (two random choices under old reports); Michael Dahlin: "Interpreting stale load
        information", same journal 11(10), 2000 (reports read by their age).
    Reads
        Backlog and its time, running and in-flight requests, slots, resident models and weight of the sampled
        nodes; the estimated service time there; which nodes are up, have room and serve the class.
    Cost
        O(d); O(nodes) where a sampled node cannot take the request.
    When it wins / loses
        Wins where reports are a service time old or older and there are several dispatchers: there least
        completion herds, and two choices by count know neither sizes, nor speeds, nor the reports' age. Under
        fresh views a look at all nodes is better. A small d is for very old reports, a large one for fresh.
    Deviations from the source
        Completion in seconds, not queue lengths; samples in proportion to capacity, since evenly drawn ones
        overload slow nodes. Dahlin's probabilities, which even out the nodes over a report's life, are not
        used, because they bring no gain once each dispatcher counts its own work.
    """

    name: ClassVar[str] = "sampled-completion"
    d: Annotated[int, Range(1, MAX_RANKED)] = 3  # nodes sampled per request

    def init(self, cluster: Cluster) -> Memory:
        """The table to draw nodes by weight."""
        own_frac, other = alias_table(cluster.weight)
        return memory(ints=other, floats=own_frac)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Sample nodes and rank them."""
        count = 0
        for i in range(len(draws)):
            j = weighted_able(view, work, memory.floats, 0, memory.ints, 0, draws[i])
            if j < 0:
                return 0
            score_s = expected_completion_s(view, work, j) + i * _LATER_S
            count = rank(ranking, count, j, score_s)
        return count
