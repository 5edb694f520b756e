"""Queues over requests and jobs on the same nodes: how many nodes serve in each round.

The tenants of these queues are classes and chains of the requests, and tenants of the jobs. Requests want
what they filled lately and a reserve, as under `lending`; jobs want what active ones ask for. The GPUs go
down the tree one by one (`queue_filling.fill`), and the nodes that requests get of them are the first ones.
Nodes with jobs stay with them until the jobs end, unless the scheme preempts: then requests that were below
their guarantee for its notice get it back at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from trimtab.domain.queue_claims import noted
from trimtab.domain.queue_filling import empty_filling, fill, rules_of, units_of
from trimtab.domain.queue_tree import QueueTree, fair_shares
from trimtab.domain.training_jobs import Flags, Floats, Ints
from trimtab.metrics.imbalance import jain_index


@dataclass
class QueueDivision:
    """The division of one run.

    Attributes:
        tree: the queues as declared.
        under: what holds of them; None = no queues.
        of_classes: [classes] leaf of each class of requests.
        of_tenants: [tenants] leaf of each tenant of jobs.
        capacity: [resources] of all nodes, GPUs first.
        request_amount: [resources] of each GPU that requests fill.
        gpus_per_node: of every node.
    """

    tree: QueueTree
    under: QueueTree | None
    of_classes: Ints
    of_tenants: Ints
    capacity: Floats
    request_amount: Floats
    gpus_per_node: int
    taken_back: int = 0  # times that requests got nodes back from jobs
    _short_since_s: Floats = field(init=False)
    _held: Floats = field(init=False)
    _fair: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._short_since_s = np.full(1, np.nan)
        self._held, self._fair = np.zeros((2, len(self.tree.leaf_paths)))

    @property
    def jain(self) -> float:
        """Jain's index over leaves of GPU time held ÷ fair share, at most 1 each."""
        is_used = self._fair > 0
        return jain_index(np.minimum(self._held[is_used] / self._fair[is_used], 1.0))

    def keeps(self, now_s: float, busy_gpus: Floats, wanted: Floats, trains: Flags) -> int:
        """How many nodes serve from now on, the first ones.

        Args:
            now_s: the time.
            busy_gpus: [classes] GPUs that requests want.
            wanted: [tenants, resources] what active jobs ask for.
            trains: [nodes] whether each has jobs.
        """
        n_nodes = len(trains)
        first_held = int(trains.argmax()) if trains.any() else n_nodes
        requests = np.zeros(len(self._held))
        np.add.at(requests, self.of_classes, busy_gpus)
        leaf_wants = np.zeros((len(self._held), len(self.capacity)))
        np.add.at(leaf_wants, self.of_tenants, wanted)
        asked = math.ceil(requests.sum() / self.gpus_per_node)
        if self.under is None:
            made = min(asked, first_held) if wanted.any() or trains.any() else n_nodes
            self._note(requests, leaf_wants, made)
            return max(made, 1)
        share, guarantee = self._shares(self.under, requests, leaf_wants)
        made = min(math.ceil(share / self.gpus_per_node), first_held)
        least = min(asked, math.floor(guarantee / self.gpus_per_node + 1e-9))
        self._short_since_s = noted(self._short_since_s, np.array([made < least]), now_s)
        notice_s = self._notice_s(self.under)
        if made < least and now_s - self._short_since_s[0] >= notice_s:
            self.taken_back += 1
            made = least
        self._note(requests, leaf_wants, made)
        return max(made, 1)

    def trained(self, gpus: Floats) -> None:
        """Jobs hold so many GPUs in this round, [tenants]."""
        self._held += np.bincount(self.of_tenants, gpus, len(self._held))

    def _shares(self, tree: QueueTree, requests: Floats, leaf_wants: Floats) -> tuple[float, float]:
        """GPUs that requests get, and those that they are guaranteed."""
        leaves = len(self._held)
        counts = np.ceil(np.where(self._is_of_requests, requests, leaf_wants[:, 0])).astype(np.int64)
        per_gpu = np.tile(self.request_amount, (leaves, 1))
        of_jobs = leaf_wants / np.maximum(leaf_wants[:, :1], 1e-9)
        amount = np.where(self._is_of_requests[:, None], per_gpu, of_jobs)
        amount[:, 0] = 1.0
        rules = rules_of(tree, self.capacity, np.arange(leaves))
        first = np.append(0, np.cumsum(counts))
        leaf = np.repeat(np.arange(leaves), counts)
        units, filling = units_of(first, amount[leaf], leaf), empty_filling(rules)
        fill(rules, filling, units, np.zeros((leaves, 1)))
        granted = np.bincount(leaf, units.granted, leaves)
        rows = self._own_rows(tree)
        return float(granted[self._is_of_requests].sum()), float(rules.amounts.guarantee[rows, 0].sum())

    @property
    def _is_of_requests(self) -> Flags:
        found = np.zeros(len(self._held), np.bool_)
        found[self.of_classes] = True
        return found

    def _own_rows(self, tree: QueueTree) -> list[int]:
        """The topmost queues whose leaves are all of requests."""
        shape, own = tree.shape, self._is_of_requests
        inside = [own[a:b].all() for a, b in zip(shape.first_leaf, shape.end_leaf, strict=True)]
        return [row for row in range(1, len(inside)) if inside[row] and not inside[shape.parent[row]]]

    def _notice_s(self, tree: QueueTree) -> float:
        return float(tree.notice_s[self._own_rows(tree)].min(initial=np.inf))

    def _note(self, requests: Floats, leaf_wants: Floats, nodes: int) -> None:
        """Add up what leaves have in this round and their fair shares by the declared queues."""
        wants = requests + leaf_wants[:, 0]
        amounts = self.tree.amounts(self.capacity)
        guarantee, limit = amounts.guarantee[:, 0].copy(), amounts.limit[:, 0].copy()
        share = fair_shares(self.tree.shape, guarantee, limit, wants, float(self.capacity[0]))
        self._fair += share[self.tree.shape.leaf_row]
        part = min(nodes * self.gpus_per_node / max(float(requests.sum()), 1e-9), 1.0)
        self._held += requests * part
