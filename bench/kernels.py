"""Policies and kernels that only benchmarks need; in a module of their own, so that numba caches them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster_state import ClusterState, Request
from trimtab.domain.policy import Policy
from trimtab.domain.requests import HOLD, Hold
from trimtab.domain.view import estimate_s
from trimtab.engine.draws import stream, uniform


class BareLoop(Policy):
    """Nodes in turn by the request's number, nothing read or remembered: what the loop itself costs."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = work.serial % view.context.n_nodes
        return 1


def two_choices(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
    """Power of two as a user would write it."""
    n = view.context.n_nodes
    a, b = int(draws[0] * n), int(draws[1] * n)
    ranking[0] = a if view.nodes.in_flight[a] <= view.nodes.in_flight[b] else b
    return 1


class PlainTwoChoices(Policy):
    """In plain Python."""

    draws = 2
    dispatch = staticmethod(two_choices)


class ChooseTwoChoices(Policy):
    """The same with `choose`."""

    draws = 2

    def choose(self, cluster: ClusterState, request: Request) -> int:
        n, draws = cluster.n_nodes, request.draws
        a, b = int(draws[0] * n), int(draws[1] * n)
        return a if cluster.in_flight[a] <= cluster.in_flight[b] else b


class ChooseLeast(Policy):
    """Least connections with `choose`, over NumPy columns."""

    def choose(self, cluster: ClusterState, request: Request) -> int | Hold:
        return cluster.least(cluster.in_flight, request)


class ChooseLeastByMask(Policy):
    """The same, written with a mask of the nodes that can take the request."""

    def choose(self, cluster: ClusterState, request: Request) -> Any:
        able = cluster.can_take(request).nonzero()[0]
        return able[cluster.in_flight[able].argmin()] if len(able) else HOLD


class CompiledTwoChoices(Policy):
    """The very same function, compiled."""

    draws = 2
    dispatch = staticmethod(kernel(two_choices))


class ScanLeastConnections(Policy):
    """Least connections by looking at every node."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        best = 0
        for j in range(view.context.n_nodes):
            if view.nodes.in_flight[j] < view.nodes.in_flight[best]:
                best = j
        ranking[0] = best
        return 1


class ScanLeastExpectedWait(Policy):
    """Least expected wait by looking at every node."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        best, least = 0, np.inf
        for j in range(view.context.n_nodes):
            own_s = estimate_s(view, work, view.nodes.type_idx[j])
            score = (view.nodes.outstanding_s[j] + own_s) / view.nodes.slots[j]
            if score < least:
                best, least = j, score
        ranking[0] = best
        return 1


@kernel
def fill_draws(seed: int, draws: Any) -> None:
    """The uniform numbers that the loop gives a policy, [requests, draws per request]."""
    for r in range(draws.shape[0]):
        state = stream(seed, r, 0)
        for i in range(draws.shape[1]):
            draws[r, i] = uniform(state, i)
