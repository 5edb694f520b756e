"""What queues of jobs got: integrals over a run, against their guarantees and fair shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.domain.queue_tree import fair_shares
from trimtab.domain.training_jobs import Floats, GpuCluster, Ints, JobQueues, Records
from trimtab.training.queue_shares import QueueShares

_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class QueueRecords:
    """Leaves over a run. Fair shares are those of the queues as declared, whatever scheme held."""

    paths: tuple[str, ...]  # [leaves]
    leaf_of: Ints  # [tenants]
    guaranteed_gpu_s: Floats  # [leaves] GPUs of the guarantee times seconds of the run
    fair_gpu_s: Floats  # [leaves] of the fair share, by what the jobs of all leaves wanted
    wanting_s: Floats  # [leaves] seconds in which jobs wanted GPUs
    below_s: Floats  # [leaves] of them, below the guarantee while a job waited that fitted into it
    preempted: Ints  # [leaves] jobs that lost their place to a queue that took back what was its


class QueueBook:
    """Adds up what queues have, decision by decision. `declared`: the queues, whatever scheme holds."""

    def __init__(self, declared: JobQueues) -> None:
        self.declared = declared
        leaves = len(declared.tree.leaf_paths)
        self._now = np.zeros((4, leaves))  # as the fields of QueueRecords: what is added up
        self._sums = np.zeros((4, leaves))
        self._preempted = np.zeros(leaves, np.int64)
        self._since_s = np.nan

    def decided(
        self, jobs: Records, cluster: GpuCluster, counts: Ints, now_s: float, shares: QueueShares | None
    ) -> None:
        """A decision was made: jobs have so many GPUs from now on, [jobs]."""
        self._pass(now_s)
        tree = self.declared.tree
        leaves, leaf = len(tree.leaf_paths), self.declared.leaf_of[jobs["tenant_idx"]]
        asked = np.maximum(jobs["gpus_requested"].astype(np.int64), counts)
        room = np.where(cluster.nodes["up"][:, None], self.declared.room, 0.0).sum(axis=0)
        amounts = tree.amounts(np.append(float(cluster.n_gpus), room))
        guarantee, limit = amounts.guarantee[:, 0].copy(), amounts.limit[:, 0].copy()
        demand = np.bincount(leaf, asked, leaves).astype(np.float64)
        fair = fair_shares(tree.shape, guarantee, limit, demand, float(cluster.n_gpus))
        held, rows = np.bincount(leaf, counts, leaves), tree.shape.leaf_row
        fits = (counts == 0) & (held[leaf] + asked <= guarantee[rows][leaf] + _ROUNDING)
        below = np.bincount(leaf, fits, leaves) > 0
        self._now = np.stack([guarantee[rows], fair[rows], demand > 0, below]).astype(np.float64)
        if shares is not None:
            self._preempted += np.bincount(leaf, shares.preempted, leaves).astype(np.int64)

    def _pass(self, now_s: float) -> None:
        if not np.isnan(self._since_s):
            self._sums += self._now * (now_s - self._since_s)
        self._since_s = now_s

    def records(self, end_s: float) -> QueueRecords:
        """What was added up so far."""
        self._pass(end_s)
        paths, leaf_of = self.declared.tree.leaf_paths, self.declared.leaf_of
        guaranteed, fair, wanting, below = (row.copy() for row in self._sums)
        return QueueRecords(paths, leaf_of, guaranteed, fair, wanting, below, self._preempted.copy())
