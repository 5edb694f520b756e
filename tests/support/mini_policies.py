"""Small policies that tests steer by hand; the compiled ones cost one compilation each, once."""

from __future__ import annotations

from typing import Any

from trimtab.compiled.kernel import kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, can_take, memory

HOLD = -1
SECOND = 1000  # key = first + SECOND × (second + 1) names two candidates


class Scripted(Policy):
    """Sends each request where its affinity key says; HOLD holds it."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        if work.key < 0:
            return 0
        ranking[0] = work.key % SECOND
        if work.key < SECOND:
            return 1
        ranking[1] = work.key // SECOND - 1
        return 2


class InTurn(Policy):
    """Round robin, with the two nodes after it as second and third choice."""

    def init(self, cluster: Any) -> Memory:
        return memory(ints=1)

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        first = memory.ints[0]
        n = view.context.n_nodes
        memory.ints[0] = (first + 1) % n
        for i in range(min(3, n)):
            ranking[i] = (first + i) % n
        return int(min(3, n))


class Emptiest(Policy):
    """The node with the fewest requests in flight among those that can take one; ties by index."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        best = -1
        for j in range(view.context.n_nodes):
            better = best < 0 or view.nodes.in_flight[j] < view.nodes.in_flight[best]
            if better and can_take(view, work, j):
                best = j
        if best < 0:
            return 0
        ranking[0] = best
        return 1


class Anywhere(Policy):
    """A node drawn evenly."""

    draws = 1

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        ranking[0] = int(draws[0] * view.context.n_nodes)
        return 1


class TwoChoices(Policy):
    """The emptier of two nodes drawn with replacement."""

    draws = 2

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        n = view.context.n_nodes
        a, b = int(draws[0] * n), int(draws[1] * n)
        ranking[0] = a if view.nodes.in_flight[a] <= view.nodes.in_flight[b] else b
        return 1


class ByDeadline(Policy):
    """Order: earliest deadline first."""

    @staticmethod
    @kernel
    def order(view: Any, plan: Any, work: Any, memory: Memory) -> float:
        return float(work.deadline_s)


class ByPriority(Policy):
    """Order: most urgent first."""

    @staticmethod
    @kernel
    def order(view: Any, plan: Any, work: Any, memory: Memory) -> float:
        return float(-work.priority)
