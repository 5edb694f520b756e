"""The records of a run: one row per job, and its decisions with their times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from trimtab.domain.training_jobs import Flags, Floats, Ints, Workload
from trimtab.training.queue_records import QueueRecords


class Outcome(IntEnum):
    """How a job ended."""

    UNFINISHED = 0  # still waiting or running when the run ended
    FINISHED = 1
    REJECTED = 2
    STOPPED = 3  # by an allocator for which what it had learned was enough


@dataclass(frozen=True)
class JobRecords:
    """The run of one allocator. Times in seconds from the trace's zero."""

    workload: Workload
    outcome: Ints  # [jobs] Outcome
    start_s: Floats  # [jobs] first GPUs; nan = never
    finish_s: Floats  # [jobs] nan = not finished
    gpu_s: Floats  # [jobs] GPUs held times seconds; of GPUs that two jobs hold, each has its part
    shared_gpu_s: Floats  # [jobs] of them, with another job on the same GPUs
    lost_gpu_s: Floats  # [jobs] of them, whose work was lost in failures of nodes
    run_s: Floats  # [jobs] seconds with GPUs
    restart_s: Floats  # [jobs] seconds of restarts
    served_s: Floats  # [jobs] seconds that an online service ran
    slowed_s: Floats  # [jobs] of them, times its latency over that alone
    over_limit_s: Floats  # [jobs] of them, with a latency above its limit
    admitted: Flags  # [jobs] whether the allocator promised to finish each in time
    restarts: Ints  # [jobs] changes after the first start
    reasons: dict[int, str]  # job → why it was rejected
    decided_s: Floats  # [decisions] time of each
    spent_s: Floats  # [decisions] seconds that the allocator took
    waiting: Ints  # [decisions] active jobs without GPUs after it
    used_gpus: Ints  # [decisions] GPUs given
    done_gpu_s: Floats  # [decisions] work done before it: GPU seconds of jobs alone with what they asked
    change_decision: Ints  # [changes] decision
    change_job: Ints  # [changes] job
    change_gpus: Ints  # [changes] GPUs that it has from then on
    total_gpus: int
    end_s: float
    usd_per_gpu_hour: float = 0.0
    isolated_s: Floats | None = None  # [jobs] alone on a fair share of the cluster; None = not known
    queues: QueueRecords | None = None  # None = there are no queues

    @property
    def is_job(self) -> Flags:
        """Whether each is a job that ends, not an online service, [jobs]."""
        services = self.workload.services
        return np.ones(len(self.workload), np.bool_) if services is None else ~services.is_service

    @property
    def finished(self) -> Flags:
        """Whether each job finished, all its work done or stopped before, [jobs]."""
        return (self.outcome == Outcome.FINISHED) | (self.outcome == Outcome.STOPPED)

    @property
    def mean_active(self) -> Floats:
        """Mean number of jobs in the system while each job was, [jobs]."""
        begin_s = self.workload.submit_s
        end_s = np.where(self.finished, self.finish_s, self.end_s)
        end_s = np.where(self.outcome == Outcome.REJECTED, begin_s, end_s)
        times_s, at = np.unique(np.concatenate([begin_s, end_s]), return_inverse=True)
        steps = np.bincount(at, np.repeat([1.0, -1.0], len(begin_s)), len(times_s))
        area = np.append(0.0, np.cumsum(np.cumsum(steps)[:-1] * np.diff(times_s)))
        n = len(begin_s)
        length_s = np.maximum(end_s - begin_s, 1e-9)
        return np.asarray((area[at[n:]] - area[at[:n]]) / length_s, np.float64)

    @property
    def on_time(self) -> Flags:
        """Whether each job finished by its deadline, [jobs]; True where it has none and finished."""
        return self.finished & (np.nan_to_num(self.finish_s, nan=np.inf) <= self.workload.deadline_s)
