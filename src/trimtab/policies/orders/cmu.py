"""The cμ rule and its generalisation: first the class whose waiting costs most for its service time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import OneOrMore
from trimtab.domain.policy import LaneBy, Policy
from trimtab.domain.view import Memory, Plan, View, memory
from trimtab.policies.shared.unmet_needs import NEVER_HELD

_LEAST_S = 1e-9  # of a mean service, so that an index is finite


@dataclass(frozen=True)
class CMu(Policy):
    """Serve the class of the highest index: marginal cost of waiting × service rate.

    Idea
        A request of class k that has been in the system for τ seconds has cost h_k × τ^power / power, with
        the class's `holding_cost` h_k. The index of a class is its service rate μ_k times the marginal cost
        of its oldest waiting request, h_k × age^(power − 1). Classes are served by the highest index, and
        each class first come first served. With power 1 the index is constant: the cμ rule, a fixed order of
        the classes. With power 2 costs are quadratic and the index grows with the age, so the ages of the
        classes stay in proportion. Keys are computed at every offer.
    Source
        David Cox, Walter Smith: "Queues", Methuen, 1961, chapter 3 (cμ rule; from memory). Jan van Mieghem:
        "Dynamic scheduling with convex delay costs: the generalized cμ rule", Annals of Applied Probability
        5(3), 1995: index μ_k C'_k(a_k) of the oldest waiting request, of age a_k, as its summary states it
        (zbMATH 0843.90047); C'_k(a) is h_k × a^(power − 1).
    Reads
        The class, its holding cost, the arrival and the estimate of the service time of the first request of
        each class; the time. A scenario gives `holding_cost` with the class; the gateway by model,
        `fairness.holding_cost`.
    Cost
        O(classes) for each request that is offered.
    When it wins / loses
        power 1 has the least mean holding cost of one server without preemption (M/G/1), and starves cheap
        classes under overload. power 2 is near the least quadratic cost under heavy load (asymptotically
        optimal), and no class waits for ever while another does not. With equal costs power 1 is shortest job
        first by class means; `sjf` knows single requests. It governs central queues; in the queues of nodes
        keys rest as they were on entry.
    Deviations from the source
        1/μ_k is the mean estimate, on the best node type, of the requests of the class that came to the head
        of its queue so far; the sources know it. Several unlike servers, where the second source allows
        several equal ones; the index is the same on all.
    """

    name: ClassVar[str] = "cmu"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CENTRAL_QUEUE})
    degrades: ClassVar[Mapping[Need, str]] = {Need.CENTRAL_QUEUE: NEVER_HELD}
    lane_by: ClassVar[LaneBy] = "class"
    power: OneOrMore = 1.0  # of the cost of delay; 1 = the cμ rule

    def init(self, cluster: Cluster) -> Memory:
        """The power and the holding costs; per class the requests counted and their last serial + 1; sums."""
        n = len(cluster.class_names)
        given = cluster.holding_cost
        costs = np.ones(n) if given is None else given
        return memory(params=[self.power - 1.0, *costs], ints=2 * n, floats=n)

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Minus the index of the class, with this request as its oldest."""
        c, n = work.class_idx, len(memory.floats)
        if work.serial >= memory.ints[n + c]:
            memory.ints[n + c] = work.serial + 1
            memory.ints[c] += 1
            memory.floats[c] += work.estimate_s
        mean_s = max(memory.floats[c] / max(memory.ints[c], 1), _LEAST_S)
        marginal = memory.params[1 + c]
        if memory.params[0] > 0.0:
            marginal *= math.pow(max(view.context.now_s - work.arrival_s, 0.0), memory.params[0])
        return float(-marginal / mean_s)
