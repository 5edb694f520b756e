"""Companions of the loop of training jobs: what a way of sharing does to requests around each decision.

Either nodes serve requests or train, for whole rounds each (`LoanedNodes`), or jobs are co-located with
requests on the same GPUs (`ColocatedJobs`). Then every GPU hosts an online service, whose load is that of its
node. A job beside it slows the requests while they compute; what they leave, the job may use.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.options import FAULT
from trimtab.domain.training_jobs import Flags, Ints, ServiceLoads
from trimtab.experiments.colocation.request_side import RequestSide
from trimtab.experiments.colocation.sharing_policies import Lending, Static
from trimtab.training.truths.progress import Running
from trimtab.training.truths.table_model import TableTruth

_AFTER_S = 1e-3  # a round's slow-down begins so long after the decision that it follows from


class LoanedNodes:
    """Lends nodes as a way of sharing says.

    A node that is loaned takes no new requests while jobs wait for it. It trains from the end of the round on
    in which its last request ended. While no job has it, it serves. One that trained serves again `return_s`
    after it was asked back. Nodes of a static partition only train.
    """

    def __init__(
        self, requests: RequestSide, sharing: Static | Lending, round_s: float, return_s: float
    ) -> None:
        self._requests, self._sharing = requests, sharing
        self._round_s, self._return_s = round_s, return_s
        rounds, self._n_nodes = requests.load.shape
        self.trains = np.zeros((rounds, self._n_nodes), np.bool_)
        self._begun = 0  # rounds
        self._loaned = self._ready = np.zeros(self._n_nodes, np.bool_)

    def before(self, now_s: float) -> Flags:
        """Begin the round: which nodes may train."""
        t = round(now_s / self._round_s)
        self._pass(t)
        self._begin(t)
        return self._ready

    def after(self, now_s: float, running: Running, waiting: int) -> None:
        """Nodes with jobs take no more requests."""
        trains: Flags = np.any(running.gpus > 0, axis=0)
        self._serve(trains, wanted=waiting > 0)

    def finish(self) -> None:
        """The rounds after the last decision; then all nodes serve."""
        rounds = len(self.trains)
        self._pass(rounds)
        self._requests.end_round(rounds - 1)
        back_s = np.where(self.trains[-1], self._return_s, 0.0)
        keeps = ~self._loaned if self._sharing.is_partition else np.ones_like(self._loaned)
        self._requests.set_on(keeps, rounds * self._round_s, back_s)
        self._requests.go_to(np.inf)

    def _pass(self, t: int) -> None:
        """Rounds up to t in which there were no jobs, so that no decision was due."""
        while self._begun < t:
            self._begin(self._begun)
            self._serve(np.zeros(self._n_nodes, np.bool_), wanted=False)

    def _begin(self, t: int) -> None:
        if t > 0:
            self._requests.end_round(t - 1)
        keeps = self._sharing.keeps(self._requests.busy_nodes[:t], self._n_nodes)
        self._loaned = np.arange(self._n_nodes) >= keeps
        self._ready = self._loaned & (self._requests.is_empty | self._sharing.is_partition)
        self._begun = t + 1

    def _serve(self, trains: Flags, *, wanted: bool) -> None:
        t = self._begun - 1
        self.trains[t] = trains
        off = trains | (self._loaned & ~self._ready & wanted)
        if self._sharing.is_partition:
            off = self._loaned
        trained = self.trains[max(t - 1, 0)]
        self._requests.set_on(~off, t * self._round_s, np.where(trained, self._return_s, 0.0))


class ColocatedJobs:
    """Tells services the load of the last round, and requests how co-located jobs slow them in the next."""

    def __init__(
        self, requests: RequestSide, services: ServiceLoads, truth: TableTruth, gpus: Ints, round_s: float
    ) -> None:
        assert services.series is not None
        self._requests, self._services, self._series = requests, services, services.series
        self._truth, self._gpus, self._round_s = truth, gpus, round_s
        self.trains = np.zeros(requests.load.shape, np.bool_)
        self._begun = 1  # rounds
        self._node_of = np.full(int(services.is_service.sum()), -1)  # [services]

    def before(self, now_s: float) -> Flags:
        """Begin the round; all nodes are up."""
        self._begin(round(now_s / self._round_s))
        return np.ones(len(self._gpus), np.bool_)

    def after(self, now_s: float, running: Running, waiting: int) -> None:
        """Slow the requests of this round."""
        services = np.flatnonzero(self._services.is_service[running.job_idx])
        node = running.gpus[services].argmax(axis=1)
        self._node_of[running.job_idx[services]] = node
        slowdown = self._truth.host_slowdown(running)[services]
        more = np.bincount(node, slowdown - 1.0, len(self._gpus)) / self._gpus
        hosts = np.bincount(node, running.partner_job_idx[services] >= 0, len(self._gpus)) > 0
        t = self._begun - 1
        if t < len(self.trains):
            self.trains[t] = hosts
            self._requests.slow(t, 1.0 / (1.0 + more))

    def finish(self) -> None:
        """The rounds after the last decision, and the last requests."""
        self._begin(len(self.trains))
        self._requests.go_to(np.inf)

    def _begin(self, t: int) -> None:
        for k in range(self._begun - 1, t):
            self._requests.end_round(k)
            load = self._requests.load[k]
            self._series[k, : len(self._node_of)] = np.where(
                self._node_of >= 0, load[self._node_of], load.mean()
            )
        self._begun = t + 1


def slow_downs(rounds: int, n_nodes: int, round_s: float) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """FAULT [rounds · nodes]: a slow-down of each node in each round, without effect until it is set."""
    faults = np.zeros(rounds * n_nodes, FAULT)
    t, j = np.divmod(np.arange(len(faults)), n_nodes)
    faults["node_idx"], faults["factor"], faults["mtbf_s"] = j, 1.0, np.inf
    faults["start_s"], faults["end_s"] = t * round_s + _AFTER_S, (t + 1) * round_s
    return faults
