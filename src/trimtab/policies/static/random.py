"""Random: every node that can take the request is equally likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.compiled.kernel import kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View
from trimtab.policies.shared.selection import rank_from, uniform_able


@dataclass(frozen=True)
class Random(Policy):
    """Send each request to a node chosen uniformly at random.

    Idea
        Splits a Poisson stream into independent Poisson streams, so each node is a queue of its own: the
        baseline against which the value of looking at load is measured. Second candidate: the next able node.
    Source
        Mor Harchol-Balter: Performance Modeling and Design of Computer Systems, Cambridge University Press,
        2013, §24.1 (task assignment "Random").
    Reads
        Which nodes are up, have room and serve the class.
    Cost
        O(1); O(nodes) where the first node drawn cannot take the request.
    When it wins / loses
        Needs no state, so stale views do not hurt it. Loses to everything that sees load: some nodes queue
        while others idle; blind to differences of speed.
    Deviations from the source
        Nodes that cannot take the request are left out.
    """

    name: ClassVar[str] = "random"
    draws = 1

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Draw a node."""
        return rank_from(view, work, ranking, uniform_able(view, work, draws[0]))
