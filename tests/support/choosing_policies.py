"""Policies in plain Python: `choose`, with NumPy columns."""

from __future__ import annotations

from typing import Any

import numpy as np

import trimtab as tt
from trimtab.domain.cluster_state import ClusterState, Request
from trimtab.domain.policy import Policy
from trimtab.policies.shared.waits import OVERDUE_FRAC


class PlainEmptiest(Policy):
    def choose(self, cluster: ClusterState, request: Request) -> Any:
        return cluster.least(cluster.in_flight, request)


class MaskedEmptiest(Policy):
    def choose(self, cluster: ClusterState, request: Request) -> Any:
        able = cluster.can_take(request).nonzero()[0]
        return able[cluster.in_flight[able].argmin()] if len(able) else tt.HOLD


class PlainCompletion(Policy):
    """`least-expected-completion` with NumPy."""

    def choose(self, cluster: ClusterState, request: Request) -> Any:
        left_s = cluster.backlog_s - cluster.running * (cluster.now_s - cluster.anchor_s)
        left_s = np.where(left_s <= 0.0, OVERDUE_FRAC * cluster.outstanding_s, left_s)
        wait_s = np.where(cluster.in_flight < cluster.slots, 0.0, left_s / cluster.slots)
        own_s = cluster.missing_load_s(request) + cluster.estimate_s(request)
        ranked = np.argsort(np.where(cluster.can_take(request), wait_s + own_s, np.inf), kind="stable")
        return ranked[: min(8, int(cluster.can_take(request).sum()))]


class PlainRandom(Policy):
    draws = 1

    def choose(self, cluster: ClusterState, request: Request) -> int:
        return int(request.draws[0] * cluster.n_nodes)
