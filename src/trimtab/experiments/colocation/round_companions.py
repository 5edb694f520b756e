"""Companions of the loop of training jobs: what a way of sharing does to requests around each decision.

Either nodes serve requests or train, for whole rounds each (`LoanedNodes`), or jobs are co-located with
requests on the same GPUs (`ColocatedJobs`). Then every GPU hosts an online service, whose load is that of its
node. A job beside it slows the requests while they compute; what they leave, the job may use.

The requests of a shared cluster: their simulation, one round at a time, on nodes that are on or off.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.options import FAULT
from trimtab.domain.requests import Status
from trimtab.domain.training_jobs import Flags, Floats, Ints, ServiceLoads, Workload
from trimtab.engine import simulator
from trimtab.engine.driver import Driver
from trimtab.experiments.colocation.queue_division import QueueDivision
from trimtab.experiments.colocation.sharing_policies import InQueues, Lending, Static
from trimtab.training.truths.progress import Running
from trimtab.training.truths.table_model import TableTruth

_AFTER_S = 1e-3  # a round's slow-down begins so long after the decision that it follows from


class RequestSide:
    """Nodes that are off take no new requests; those that run there go on to their end.

    Attributes:
        busy_nodes: [rounds] nodes that the requests in the system would fill, mean of each round.
        busy_by_class: [rounds, classes] the same by class.
        load: [rounds, nodes] share of each node's slots in use, mean of each round.
    """

    def __init__(self, driver: Driver, round_s: float, rounds: int, classes: int) -> None:
        self.driver, self._round_s = driver, round_s
        self._slots: Floats = driver.state.nodes["slots"].astype(np.float64)
        n_nodes = len(self._slots)
        self.busy_nodes, self.load = np.zeros(rounds), np.zeros((rounds, n_nodes))
        self.busy_by_class = np.zeros((rounds, classes))
        self._is_on = np.ones(n_nodes, np.bool_)
        self._on_from_s = np.full(n_nodes, np.inf)  # of nodes that are off; inf = not known yet

    def go_to(self, now_s: float) -> None:
        """Process all events up to this time."""
        for j in np.argsort(self._on_from_s, kind="stable"):
            at_s = float(self._on_from_s[j])
            if at_s <= now_s and at_s < np.inf:
                simulator.go_to(self.driver, at_s)
                simulator.switch(self.driver, int(j), True, at_s)
                self._is_on[j], self._on_from_s[j] = True, np.inf
        simulator.go_to(self.driver, now_s)

    def end_round(self, t: int) -> None:
        """Go to the end of round t, and note how full it was."""
        begin_s, end_s = t * self._round_s, (t + 1) * self._round_s
        self.go_to(end_s)
        n = self.driver.n_arrived
        rows, arrival_s = self.driver.state.requests[:n], self.driver.state.work["arrival_s"][:n]
        over_s = np.where(np.isnan(rows["ended_s"]), rows["finish_s"], rows["ended_s"])
        over_s = np.where(rows["status"] >= Status.FINISHED, over_s, np.inf)
        recent = np.flatnonzero(over_s > begin_s)
        rows, until_s = rows[recent], np.minimum(over_s[recent], end_s)
        here_s = until_s - np.maximum(arrival_s[recent], begin_s)
        self.busy_nodes[t] = here_s.sum() / (self._round_s * self._slots.mean())
        class_idx = self.driver.state.work["class_idx"][:n][recent]
        by_class_s = np.bincount(class_idx, here_s, self.busy_by_class.shape[1])
        self.busy_by_class[t] = by_class_s / (self._round_s * self._slots.mean())
        runs = ~np.isnan(rows["start_s"])
        ran_s = (until_s - np.maximum(rows["start_s"], begin_s))[runs]
        slot_s = np.bincount(rows["node_idx"][runs], ran_s, len(self._slots))
        self.load[t] = np.minimum(slot_s / (self._round_s * self._slots), 1.0)

    @property
    def is_empty(self) -> Flags:
        """Whether each node has no requests, [nodes]."""
        empty: Flags = self.driver.state.nodes["in_flight"] == 0
        return empty

    def set_on(self, wanted: Flags, now_s: float, later_s: Floats) -> None:
        """Which nodes take new requests from now on; those that were off do so `later_s` [nodes] later."""
        for j in np.flatnonzero(~wanted):
            self._on_from_s[j] = np.inf
            if self._is_on[j]:
                self._is_on[j] = False
                simulator.switch(self.driver, int(j), False, now_s)
        comes = wanted & ~self._is_on & (self._on_from_s == np.inf)
        self._on_from_s[comes] = now_s + later_s[comes]

    def slow(self, t: int, speed: Floats) -> None:
        """Requests run at these speeds [nodes] in round t; the run has `slow_downs` for it."""
        n = len(speed)
        self.driver.state.faults["factor"][t * n : (t + 1) * n] = speed


class LoanedNodes:
    """Lends nodes as a way of sharing says.

    A node that is loaned takes no new requests while jobs wait for it. It trains from the end of the round on
    in which its last request ended. While no job has it, it serves. One that trained serves again `return_s`
    after it was asked back. Nodes of a static partition only train.
    """

    def __init__(
        self,
        requests: RequestSide,
        sharing: Static | Lending | InQueues,
        round_s: float,
        return_s: float,
        division: QueueDivision | None = None,
        workload: Workload | None = None,
    ) -> None:
        self._requests, self._sharing = requests, sharing
        self._division, self._workload = division, workload
        self._round_s, self._return_s = round_s, return_s
        rounds, self._n_nodes = requests.load.shape
        self.trains = np.zeros((rounds, self._n_nodes), np.bool_)
        self._begun = 0  # rounds
        self._loaned = self._ready = np.zeros(self._n_nodes, np.bool_)

    def before(self, now_s: float, active: Ints) -> Flags:
        """Begin the round: which nodes may train."""
        t = round(now_s / self._round_s)
        self._pass(t)
        self._begin(t, active)
        return self._ready

    def after(self, now_s: float, running: Running, waiting: int) -> None:
        """Nodes with jobs take no more requests."""
        trains: Flags = np.any(running.gpus > 0, axis=0)
        if self._division is not None and self._workload is not None:
            tenant, n = self._workload.tenant_idx[running.job_idx], len(self._workload.tenant_names)
            self._division.trained(np.bincount(tenant, running.n_gpus, n).astype(np.float64))
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
            self._begin(self._begun, np.zeros(0, np.int64))
            self._serve(np.zeros(self._n_nodes, np.bool_), wanted=False)

    def _begin(self, t: int, active: Ints) -> None:
        if t > 0:
            self._requests.end_round(t - 1)
        if isinstance(self._sharing, InQueues):
            keeps = self._keeps_by_queues(self._sharing, t, active)
        else:
            keeps = self._sharing.keeps(self._requests.busy_nodes[:t], self._n_nodes)
        self._loaned = np.arange(self._n_nodes) >= keeps
        self._ready = self._loaned & (self._requests.is_empty | self._sharing.is_partition)
        self._begun = t + 1

    def _keeps_by_queues(self, sharing: InQueues, t: int, active: Ints) -> int:
        assert self._division is not None
        assert self._workload is not None
        if t == 0:
            return self._n_nodes
        lately = self._requests.busy_by_class[max(t - sharing.rounds, 0) : t]
        fullest = lately[lately.sum(axis=1).argmax()]
        spare = sharing.spare * fullest / max(float(fullest.sum()), 1e-9)
        busy_gpus = (fullest * (1.0 + sharing.reserve_frac) + spare) * self._division.gpus_per_node
        jobs, n = self._workload, len(self._workload.tenant_names)
        asks = np.array([[1.0, ask.cpus_per_gpu] for ask in jobs.asks])[active] if jobs.asks else 1.0
        amount = jobs.gpus_requested[active, None] * np.broadcast_to(asks, (len(active), 2))
        wanted = np.zeros((n, 2))
        np.add.at(wanted, jobs.tenant_idx[active], amount)
        wanted = wanted[:, : len(self._division.capacity)]
        return self._division.keeps(t * self._round_s, busy_gpus, wanted, self.trains[t - 1])

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

    def before(self, now_s: float, active: Ints) -> Flags:
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
