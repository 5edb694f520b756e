"""Jobs as guests on the GPUs of requests: a companion of the loop of training jobs.

Every GPU hosts an online service, whose load is that of its node. A job beside it slows the requests while
they compute; what they leave, the job may use.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.options import FAULT
from trimtab.domain.training_jobs import Flags, Ints, ServiceLoads
from trimtab.experiments.shared.request_side import RequestSide
from trimtab.training.truths.progress import Running
from trimtab.training.truths.table_model import TableTruth

_AFTER_S = 1e-3  # a round's slow-down begins so long after the decision that it follows from


class Guests:
    """Tells services the load of the last round, and requests how guests slow them in the next."""

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
