"""Hierarchical queues of tenants in the states of pools, and their figures over all of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypedDict

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Queues
from trimtab.engine.state import State
from trimtab.validation.queue_section import QueueSpec, open_tree

Section = Mapping[str, QueueSpec]


class QueueFigures(TypedDict):
    """A queue as status and metrics show it, with all queues below it."""

    queue: str
    held: int  # requests in the central queue
    at_nodes: int
    share_frac: float  # dominant share of what all nodes have, of its requests there
    guarantee_frac: float
    limit_frac: float
    preempted: int  # requests that were taken back from nodes


class TenantQueues:
    """The queues of one pool, from state to state. A section is that of gateway.yaml.

    Attributes:
        leaf_of: tenant → row of its leaf; empty where there are no queues.
        default: row of the leaf of all other tenants.
        preempts: whether some queue takes places of others.
    """

    def __init__(self) -> None:
        self.leaf_of: dict[str, int] = {}
        self.default = 0
        self.preempts = False
        self._queues: Queues | None = None
        self._before: Counter[str] = Counter()  # path → preempted in earlier states

    def begin(self, section: Section | None, cluster: Cluster, tenants: int) -> Queues | None:
        """The queues of the next state; all tenants are in the leaf `default` until their first request."""
        if section is None:
            self._queues, self.leaf_of, self.preempts = None, {}, False
            return None
        tree, self.leaf_of, self.default = open_tree(section, cluster.resource_names)
        self.preempts = bool(np.isfinite(tree.notice_s).any())
        self._queues = Queues(tree, np.full(tenants, self.default))
        return self._queues

    def end(self, state: State) -> None:
        """A state is about to be replaced: keep what it counted."""
        if self._queues is not None:
            self._before.update(
                dict(zip(self._queues.tree.paths, state.tree["preempted"].tolist(), strict=True))
            )

    def figures(self, state: State) -> Iterator[QueueFigures]:
        """The queues in preorder, without the root."""
        if self._queues is None:
            return
        tree, paths = state.tree, self._queues.tree.paths
        guarantee = (state.tree_guarantee / state.pooled).max(axis=1)
        limit = np.minimum(state.tree_limit / state.pooled, 1.0).min(axis=1)
        for q in range(1, len(paths)):
            yield {
                "queue": paths[q],
                "held": int(tree["held"][q]),
                "at_nodes": int(tree["running"][q]),
                "share_frac": float(tree["share"][q]),
                "guarantee_frac": float(guarantee[q]),
                "limit_frac": float(limit[q]),
                "preempted": int(tree["preempted"][q]) + self._before[paths[q]],
            }


def summed(figures: Iterable[QueueFigures]) -> list[QueueFigures]:
    """One row per queue, over the pools of several policies."""
    by_queue: dict[str, QueueFigures] = {}
    for one in figures:
        known = by_queue.setdefault(one["queue"], one)
        if known is not one:
            known["held"] += one["held"]
            known["at_nodes"] += one["at_nodes"]
            known["preempted"] += one["preempted"]
            known["share_frac"] += one["share_frac"]
    return list(by_queue.values())
