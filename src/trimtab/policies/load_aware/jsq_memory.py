"""Join the shortest queue of d samples and of m nodes remembered from earlier decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import Range
from trimtab.domain.view import MAX_RANKED, Memory, Plan, View, can_take, memory
from trimtab.errors import UsageError
from trimtab.policies.shared.sampling import SamplingPolicy
from trimtab.policies.shared.selection import rank, uniform_able

_NONE = -1  # in `ints`: no node is remembered here


@helper(inline=True)
def _is_among(ranking: Any, count: int, j: int) -> bool:
    """Whether node j is one of the candidates."""
    for i in range(count):  # noqa: SIM110 - numba compiles no generator expressions
        if ranking.node_idx[i] == j:
            return True
    return False


@helper(inline=True)
def _remember(memory: Memory, ranking: Any, count: int) -> None:
    """Remember the candidates with the fewest requests, the first one after it got this request.

    Scores are requests in flight plus less than one; with one more request the first candidate comes after
    every other candidate that has as few.
    """
    m, scores = len(memory.ints), ranking.score
    first, placed = ranking.node_idx[0], int(scores[0]) + 1
    kept, is_out = 0, True  # the first candidate isn't in the new list yet
    for i in range(1, count):
        if is_out and kept < m and placed < int(scores[i]):
            memory.ints[kept] = first
            kept, is_out = kept + 1, False
        if kept < m:
            memory.ints[kept] = ranking.node_idx[i]
            kept += 1
    if is_out and kept < m:
        memory.ints[kept] = first
        kept += 1
    for i in range(kept, m):
        memory.ints[i] = _NONE


@dataclass(frozen=True)
class JsqMemory(SamplingPolicy):
    """Sample d nodes, add the m best of the last decision, and take the one with the fewest in flight.

    Idea
        A node that was good a moment ago is still good. After each decision the m least loaded of its
        candidates are remembered, the chosen one with its new request; they are candidates of the next one.
        When n balls are placed in n bins by one sample and one remembered bin, the fullest has log log n /
        (2 log φ) + O(1), φ = (1 + √5)/2: fewer than with two samples. Of equals, the remembered come first.
    Source
        Michael Mitzenmacher, Balaji Prabhakar, Devavrat Shah: "Load balancing with memory", FOCS 2002 (one
        remembered node and the bound as its abstract states them; m above 1 from memory).
    Reads
        Requests in flight on the sampled and remembered nodes; which nodes are up, have room and serve the
        class.
    Cost
        O(d + m); O(nodes) where a sampled node cannot take the request.
    When it wins / loses
        Wins over `power-of-d` with as many samples. One sample and one remembered node are far better than
        `random`; their mean is above that of two samples (many nodes, load 0.9: 3.2 against 2.6 services),
        only their longest queues are shorter. With several dispatchers or old views the remembered node is no
        better than a sample. Blind to speed and size.
    Deviations from the source
        Sampled with replacement among able nodes only; a node that is sampled twice or remembered too counts
        once. A remembered node that cannot take a request is left out and forgotten. Remembered nodes, too,
        are compared by the requests that they have now.
    """

    name: ClassVar[str] = "jsq-memory"
    d: Annotated[int, Range(1, MAX_RANKED - 1)] = 1  # nodes sampled per request
    m: Annotated[int, Range(1, MAX_RANKED - 1)] = 1  # nodes remembered

    def __post_init__(self) -> None:
        """Check the sum of d and m."""
        super().__post_init__()
        if self.d + self.m > MAX_RANKED:
            field, expected = "jsq-memory.m", f"d + m at most {MAX_RANKED}"
            raise UsageError("out of range", field=field, value=self.m, expected=expected)

    def init(self, cluster: Cluster) -> Memory:
        """The remembered nodes."""
        return memory(ints=[_NONE] * self.m)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank the remembered and the sampled nodes, and remember the best."""
        count = 0
        for i in range(len(memory.ints)):
            j = memory.ints[i]
            if j >= 0 and can_take(view, work, j):
                score = view.nodes.in_flight[j] + count / (MAX_RANKED + 1)
                count = rank(ranking, count, j, score)
        for i in range(len(draws)):
            j = uniform_able(view, work, draws[i])
            if j < 0:
                return 0
            if not _is_among(ranking, count, j):
                score = view.nodes.in_flight[j] + count / (MAX_RANKED + 1)
                count = rank(ranking, count, j, score)
        _remember(memory, ranking, count)
        return int(count)
