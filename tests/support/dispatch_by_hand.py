"""A dispatcher at its desk: nodes set by hand, one decision at a time, no simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from support.builders import requests
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Plan, View, empty_plan
from trimtab.engine.bound_state import Columns, Ranking, python_memory, python_plan, python_view, record_of
from trimtab.engine.new_state import new_state


class Desk:
    """One policy before one cluster. `set` changes a node and logs the change, as the host does."""

    def __init__(self, cluster: Cluster, policy: Policy, *, n_requests: int = 1) -> None:
        self.cluster = cluster
        self.state = new_state(cluster, requests(cluster, n_requests), Options(), Decider.of(policy), 0)
        self.nodes, self.work = self.state.nodes, self.state.work
        self._view = python_view(self.state.views[0])
        self._plan = python_plan(empty_plan())
        self._record = record_of(Columns(self.work))
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Let another policy take over, with memory of its own."""
        self._policy, self.memory = policy, python_memory(policy.init(self.cluster))
        self._changed: set[int] = set()

    def follow(self, plan: Plan) -> None:
        """Put a plan in force."""
        self._plan = python_plan(plan)

    def set(self, j: int, **fields: float) -> None:
        for name, value in fields.items():
            self.nodes[name][j] = value
        self._changed.add(j)

    def seen(self) -> View:
        """What a planner is shown."""
        host, nodes, *rest = self.state.views[0]
        return View(host.view(np.recarray)[0], nodes.view(np.recarray), *rest)

    def at(self, now_s: float) -> None:
        self.state.contexts["now_s"] = now_s

    def decide(self, draws: Sequence[float] = (), *, request: int = 0) -> list[int]:
        """Candidates for a request, best first."""
        return self.state.ranking["node_idx"][: self.answer(draws, request=request)].tolist()

    def score(self) -> float:
        """What the first candidate of the last decision scored."""
        return float(self.state.ranking["score"][0])

    def answer(self, draws: Sequence[float] = (), *, request: int = 0) -> int:
        """How many candidates there are; -r where the request is rejected for reason r."""
        self.state.contexts["n_changed"] = len(self._changed)
        self.state.changed[0][: len(self._changed)] = sorted(self._changed)
        self._changed.clear()
        self._record.row = request
        ranking = Ranking(self.state.ranking)
        numbers = memoryview(np.array(draws, np.float64))
        dispatch = interpreted(self._policy.dispatch)
        return int(dispatch(self._view, self._plan, self._record, self.memory, numbers, ranking))

    def key(self, policy: Policy, *, request: int = 0) -> float:
        """The key by which an order serves a request."""
        self._record.row = request
        memory = python_memory(policy.init(self.cluster))
        return float(interpreted(policy.order)(self._view, self._plan, self._record, memory))
