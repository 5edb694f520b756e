"""Tiresias: the jobs that have received the least service go first, in a few queues."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from trimtab.domain.allocator import Allocation, Allocator, Speed
from trimtab.domain.parameters import NonNegative, NumberList
from trimtab.domain.training_jobs import Flags, GpuCluster, Ints, Records
from trimtab.training.allocators.shared.in_order import given_in_order
from trimtab.training.gang_placement import most_free

THRESHOLDS = NumberList("/")


@dataclass
class Queues:
    """The queues of a run: job → position."""

    jobs: list[list[int]]  # of each queue, in its order
    queue_of: dict[int, int] = field(default_factory=dict)
    since_s: dict[int, float] = field(default_factory=dict)  # progress at the last promotion
    waits_since_s: dict[int, float] = field(default_factory=dict)  # of jobs that wait


@dataclass(frozen=True)
class Tiresias(Allocator):
    """Discretised least attained service: jobs fall to lower queues as they use GPU time.

    Idea
        A job starts in the first queue. When its GPU seconds reach a queue's threshold, it falls to the next.
        Queues are served in order, jobs within a queue first come first served; a job that does not fit is
        passed over, and jobs that no longer fit are preempted.
    Source
        Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, §3 (2D-LAS), and
        the versions in the simulators of Pollux (OSDI 2021) and ElasticFlow (ASPLOS 2023).
    Reads
        progress_s or run_s, gpus_requested, submit_s.
    Cost
        O(jobs) a decision.
    When it wins / loses
        It wins on mean completion time when nothing is known of jobs and sizes vary much. Long jobs wait
        behind all short ones; GPU counts never change.
    Deviations from the source
        The queues' thresholds are those of Pollux' evaluation (one, of 16 GPU hours). Profile-based placement
        is not part of it; the run's placement rule places. `requeue` and `jump` "artifact" are ElasticFlow's
        version: waiting jobs go behind the running ones of their queue at each decision, and the next
        demotion is foreseen at (threshold − seconds) / GPUs, which is too early for jobs of several GPUs.
        `service` "held" and `place` "spread" are Pollux's version: restarts count as service, and jobs that
        start take the nodes with the most free GPUs in the order of the queues.
    """

    name: ClassVar[str] = "tiresias"
    clock: ClassVar[str] = "events(slot_s=60)"
    thresholds: Annotated[str, THRESHOLDS] = "57600"  # GPU seconds at the end of each queue
    promote: NonNegative = (
        0.0  # times its run time that a job waits before it goes up to the first queue; 0 = never
    )
    requeue: bool = False
    jump: Literal["exact", "artifact"] = "exact"
    service: Literal["progress", "held"] = "progress"
    place: Literal["rule", "spread"] = "rule"

    def init(self, cluster: GpuCluster, n_jobs: int) -> Queues:
        """Empty queues."""
        return Queues([[] for _ in range(len(self._limits()) + 1)])

    def allocate(
        self, jobs: Records, cluster: GpuCluster, now_s: float, speed: Speed, memory: Queues
    ) -> Allocation:
        """Move jobs between queues, then serve queue after queue."""
        row_of = {int(j): i for i, j in enumerate(jobs["job_idx"])}
        runs = cluster.runs
        self._update(memory, jobs, row_of, runs, now_s)
        order = np.array([row_of[j] for queue in memory.jobs for j in queue], np.int64)
        counts = given_in_order(jobs, cluster, order, may_pass=True)
        is_given: Flags = np.any(counts > 0, axis=1)
        self._note_waiting(memory, jobs, is_given, now_s)
        if self.requeue:
            for k, queue in enumerate(memory.jobs):
                memory.jobs[k] = sorted(queue, key=lambda j: not is_given[row_of[j]])
        wake_s = self._wake_s(memory, jobs, is_given, now_s)
        if self.place == "spread":
            return Allocation(gpus=_spread(counts, cluster, order), wake_s=wake_s)
        return Allocation(counts=counts, wake_s=wake_s)

    def _seconds(self, jobs: Records) -> Any:
        return jobs["progress_s" if self.service == "progress" else "run_s"]

    def _limits(self) -> list[float]:
        return THRESHOLDS.numbers(self.thresholds)

    def _update(self, memory: Queues, jobs: Records, row_of: dict[int, int], runs: Any, now_s: float) -> None:
        for k, queue in enumerate(memory.jobs):
            memory.jobs[k] = [j for j in queue if j in row_of]
        for j in row_of.keys() - memory.queue_of.keys():
            memory.queue_of[j] = 0
        known = {j for queue in memory.jobs for j in queue}
        memory.jobs[0] += sorted(j for j in row_of if j not in known)
        limits = self._limits()
        for row in np.flatnonzero(runs):
            job = int(jobs["job_idx"][row])
            k = memory.queue_of[job]
            if k < len(limits) and self._service(memory, jobs, row) >= limits[k]:
                self._move(memory, job, k + 1)
        if self.promote > 0:
            self._promote(memory, jobs, runs, now_s)

    def _promote(self, memory: Queues, jobs: Records, runs: Any, now_s: float) -> None:
        for row in np.flatnonzero(~runs):
            job = int(jobs["job_idx"][row])
            ran_s = self._seconds(jobs)[row] - memory.since_s.get(job, 0.0)
            waited_s = now_s - memory.waits_since_s.get(job, now_s)
            if memory.queue_of[job] > 0 and ran_s > 0 and waited_s >= self.promote * ran_s:
                memory.since_s[job] = float(self._seconds(jobs)[row])
                self._move(memory, job, 0)

    def _move(self, memory: Queues, job: int, to: int) -> None:
        memory.jobs[memory.queue_of[job]].remove(job)
        memory.jobs[to].append(job)
        memory.queue_of[job] = to

    def _service(self, memory: Queues, jobs: Records, row: Any) -> float:
        since_s = memory.since_s.get(int(jobs["job_idx"][row]), 0.0)
        return float((self._seconds(jobs)[row] - since_s) * jobs["gpus_requested"][row])

    def _note_waiting(self, memory: Queues, jobs: Records, is_given: Any, now_s: float) -> None:
        if self.promote > 0:
            for row, given in enumerate(is_given):
                job = int(jobs["job_idx"][row])
                if given:
                    memory.waits_since_s.pop(job, None)
                else:
                    memory.waits_since_s.setdefault(job, now_s)

    def _wake_s(self, memory: Queues, jobs: Records, is_given: Any, now_s: float) -> float:
        """When the next running job reaches the end of its queue."""
        limits, first_s = self._limits(), math.inf
        for row in np.flatnonzero(is_given):
            k = memory.queue_of[int(jobs["job_idx"][row])]
            if k < len(limits):
                gpus = int(jobs["gpus_requested"][row])
                service = self._service(memory, jobs, row)
                left = limits[k] - (service / gpus if self.jump == "artifact" else service)
                first_s = min(first_s, now_s + math.ceil(left / gpus))
        return first_s


def _spread(counts: Ints, cluster: GpuCluster, order: Ints) -> Ints:
    """Jobs that run go on where they are; the others take the nodes with the most free GPUs, in order."""
    is_given: Flags = np.any(counts > 0, axis=1)
    goes_on = is_given & (counts == cluster.held).all(axis=1)
    gpus = np.where(goes_on[:, None], cluster.gpus, 0)
    free = cluster.capacity - gpus.sum(axis=0)
    for row in order[is_given[order] & ~goes_on[order]]:
        for t in np.flatnonzero(counts[row]):
            nodes = np.flatnonzero(cluster.nodes["type_idx"] == t)
            gpus[row, nodes] = most_free(free[nodes], int(counts[row, t]))
            free[nodes] -= gpus[row, nodes]
    return gpus
