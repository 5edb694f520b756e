"""The state of every job of a run, and its journal."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.service_loads import SLOWDOWN_LIMIT
from trimtab.domain.training_jobs import JOBS, Flags, Floats, Ints, Records, Workload
from trimtab.training.job_records import JobRecords, Outcome
from trimtab.training.restart_costs import Change
from trimtab.training.truths.progress import Running

_UNFINISHED = int(Outcome.UNFINISHED)
_OF_WORKLOAD = {
    "submit_s": "submit_s",
    "deadline_s": "deadline_s",
    "model_idx": "model_idx",
    "gpus_requested": "gpus_requested",
    "gpus_min": "gpus_min",
    "gpus_max": "gpus_max",
    "batch": "batch",
    "work_total": "declared_work",
    "priority": "priority",
    "tenant_idx": "tenant_idx",
    "preemptible": "preemptible",
    "scales": "scales",
}  # field of JOBS → column of the workload


class WorkLeft(Protocol):
    """The fields of a JOBS record about the work left. A `Truth` and a run of real jobs know them."""

    def work_left(self, job_idx: Ints) -> Floats:
        """As declared; nan = not known."""

    def reports(self, job_idx: Ints) -> tuple[Floats, Floats]:
        """Load and slowdown of services; 0 and 1 of other jobs."""

    def true_work_left(self, job_idx: Ints) -> Floats:
        """For allocators that need the oracle."""


class RestartEstimate(Protocol):
    """The fields of a JOBS record about restarts: from a `RestartCost`, or measured."""

    def expected_s(self, job_idx: Ints, n_gpus: Ints) -> Floats:
        """Seconds of a restart with so many GPUs."""


class JobStates:
    """The events of each job so far."""

    def __init__(self, workload: Workload) -> None:
        n = len(workload)
        self.workload = workload
        self.jobs = np.zeros(n, JOBS)
        self.jobs["job_idx"] = np.arange(n)
        for field, column in _OF_WORKLOAD.items():
            self.jobs[field] = getattr(workload, column)
        if workload.pinned is not None:
            self.jobs["pinned"] = workload.pinned
        if workload.services is not None:
            self.jobs["service"] = workload.services.is_service
        self.served_s, self.slowed_s, self.over_limit_s = np.zeros(n), np.zeros(n), np.zeros(n)
        self.outcome = np.full(n, Outcome.UNFINISHED, np.int64)
        self.start_s, self.finish_s = np.full(n, np.nan), np.full(n, np.nan)
        self.restart_left_s, self.restart_s = np.zeros(n), np.zeros(n)
        self.shared_gpu_s, self.lost_gpu_s = np.zeros(n), np.zeros(n)
        self.admitted = self.jobs["admitted"]
        self.reasons: dict[int, str] = {}
        self.n_ended = 0
        self._count = np.zeros(n, np.int64)
        self._is_work_known = bool(np.isfinite(workload.work).all())
        self._decided: list[tuple[float, float, int, int, float]] = []
        alone_gpu_s = workload.duration_s * workload.gpus_requested
        self._alone_gpu_s = np.where(np.isfinite(alone_gpu_s), alone_gpu_s, 0.0)
        self._finished_gpu_s = 0.0
        self._changes: list[tuple[Ints, Ints, Ints]] = []  # decision, job, GPUs

    def grown(self, workload: Workload) -> JobStates:
        """These states, with those of further jobs at the end of the workload."""
        made = JobStates(workload)
        for name, old in vars(self).items():
            if isinstance(old, np.ndarray):
                getattr(made, name)[: len(old)] = old
            elif name != "workload":
                setattr(made, name, old)
        return made

    @property
    def decisions(self) -> int:
        """How many were made."""
        return len(self._decided)

    def goes_on(self, job_idx: Ints) -> Flags:
        """Whether each of these jobs has neither finished nor been rejected."""
        unfinished: Flags = self.outcome[job_idx] == _UNFINISHED
        return unfinished

    def view(
        self,
        active: Ints,
        now_s: float,
        truth: WorkLeft,
        restart: RestartEstimate,
        *,
        is_oracle: bool = False,
    ) -> Records:
        """JOBS records of the active jobs. `is_oracle`: with their true work."""
        jobs = self.jobs.take(active)  # many times as fast as an index, for records
        jobs["work_left"] = truth.true_work_left(active) if is_oracle else truth.work_left(active)
        jobs["load"], jobs["slowdown"] = truth.reports(active)
        jobs["age_s"] = now_s - jobs["submit_s"]
        jobs["restart_left_s"] = self.restart_left_s[active]
        jobs["restart_s"] = restart.expected_s(
            active, np.maximum(self._count[active], jobs["gpus_requested"])
        )
        return jobs

    def ran(
        self, running: Running, restart_s: Floats, seconds: Floats, charged_s: Floats, shared_s: Floats
    ) -> None:
        """Jobs held their GPUs for these seconds, the first of them in a restart.

        Of GPUs that two hold, each pays a part: `charged_s` of its seconds, `shared_s` of them for such GPUs.
        """
        note_time(self.jobs, running.job_idx, running.n_gpus, seconds, restart_s, charged_s)
        self.shared_gpu_s[running.job_idx] += shared_s * running.n_gpus
        self.restart_s[running.job_idx] += restart_s
        self.restart_left_s[running.job_idx] -= restart_s

    def served(self, job_idx: Ints, slowdown: Floats, seconds: float) -> None:
        """Services among these jobs answered so much more slowly than alone for these seconds."""
        rows, factor = job_idx[self.jobs["service"][job_idx]], slowdown[self.jobs["service"][job_idx]]
        self.served_s[rows] += seconds
        self.slowed_s[rows] += seconds * factor
        self.over_limit_s[rows] += np.where(factor > SLOWDOWN_LIMIT, seconds, 0.0)

    def finish(self, job_idx: Ints, at_s: Floats) -> None:
        """These jobs are done."""
        self.outcome[job_idx], self.finish_s[job_idx] = Outcome.FINISHED, at_s
        self.n_ended += len(job_idx)
        self._finished_gpu_s += float(self._alone_gpu_s[job_idx].sum())
        self.note_counts(job_idx, np.zeros(len(job_idx), np.int64))

    def stop(self, job_idx: int, at_s: float, gpu_s: float) -> None:
        """This job has learned enough, after the work of so much GPU time."""
        self.outcome[job_idx], self.finish_s[job_idx] = Outcome.STOPPED, at_s
        self.n_ended += 1
        self._finished_gpu_s += gpu_s

    def reject(self, job_idx: int, reason: str) -> None:
        """This job ends without having finished."""
        self.outcome[job_idx], self.reasons[job_idx] = Outcome.REJECTED, reason
        self.n_ended += 1

    def lost(self, job_idx: Ints, gpu_s: Floats) -> None:
        """The work of so much GPU time was lost when a node failed."""
        self.lost_gpu_s[job_idx] += gpu_s

    def restarted(self, change: Change, cost_s: Floats, now_s: float) -> None:
        """A decision was made: these jobs hold GPUs, and some of them restart."""
        rows = change.job_idx
        charged = ~np.isnan(cost_s)
        self.restart_left_s[rows[charged]] = cost_s[charged]
        is_first = np.isnan(self.start_s[rows])
        self.start_s[rows[is_first]] = now_s
        self.jobs["restarts"][rows[change.changed & ~is_first]] += 1
        self.note_counts(rows, change.n_gpus)

    def note_counts(self, job_idx: Ints, counts: Ints) -> None:
        """Write down which jobs have another number of GPUs than before."""
        other = self._count[job_idx] != counts
        if other.any():
            self._count[job_idx] = counts
            self._changes.append((np.full(int(other.sum()), self.decisions), job_idx[other], counts[other]))

    def done_gpu_s(self, active: Ints, truth: WorkLeft) -> float:
        """Work done so far by all jobs, these being the active ones; see `work_done_gpu_s`."""
        return self._finished_gpu_s + self.work_done_gpu_s(active, truth)

    def work_done_gpu_s(self, active: Ints, truth: WorkLeft) -> float:
        """Work that these jobs have done, as GPU seconds of each alone with the GPUs that it asked for.

        Of the true work where it is known before, else of the declared work.
        """
        true_work = self.workload.work[active]
        is_known = self._is_work_known or bool(np.isfinite(true_work).all())
        work_left = truth.true_work_left(active) if is_known else truth.work_left(active)
        total = true_work if is_known else self.jobs["work_total"][active]
        is_sized = (total > 0) & (total < np.inf)
        left_frac = np.divide(work_left, total, out=np.zeros(len(active)), where=is_sized)
        done_frac = np.minimum(np.maximum(1.0 - left_frac, 0.0), 1.0)
        done_gpu_s = self._alone_gpu_s[active] * done_frac
        total_s = float(done_gpu_s.sum())
        return float(np.nansum(done_gpu_s)) if math.isnan(total_s) else total_s

    def decided(
        self, now_s: float, spent_s: float, waiting: int, running: Running, done_gpu_s: float
    ) -> None:
        """Write a decision down, and the work that was done before it."""
        second = (running.partner_job_idx >= 0) & (running.partner_job_idx < running.job_idx)
        used_gpus = int(running.n_gpus.sum()) - int(running.n_gpus[second].sum())
        self._decided.append((now_s, spent_s, waiting, used_gpus, done_gpu_s))

    def records(self, total_gpus: int, end_s: float) -> JobRecords:
        """The records of the run."""
        decided = np.array(self._decided, np.float64).reshape(-1, 5)
        changes = [np.concatenate(part) for part in zip(*self._changes, strict=True)] or [
            np.zeros(0, int)
        ] * 3
        return JobRecords(
            workload=self.workload,
            outcome=self.outcome,
            start_s=self.start_s,
            finish_s=self.finish_s,
            gpu_s=self.jobs["attained_gpu_s"].copy(),
            run_s=self.jobs["run_s"].copy(),
            restart_s=self.restart_s,
            shared_gpu_s=self.shared_gpu_s,
            lost_gpu_s=self.lost_gpu_s,
            admitted=self.admitted.copy(),
            served_s=self.served_s,
            slowed_s=self.slowed_s,
            over_limit_s=self.over_limit_s,
            restarts=self.jobs["restarts"].astype(np.int64),
            reasons=self.reasons,
            decided_s=decided[:, 0],
            spent_s=decided[:, 1],
            waiting=decided[:, 2].astype(np.int64),
            used_gpus=decided[:, 3].astype(np.int64),
            done_gpu_s=decided[:, 4],
            change_decision=changes[0],
            change_job=changes[1],
            change_gpus=changes[2],
            total_gpus=total_gpus,
            end_s=end_s,
        )


@kernel
def note_time(jobs: Any, job_idx: Any, n_gpus: Any, seconds: Any, restart_s: Any, charged_s: Any) -> None:
    """What the JOBS records of these jobs say of their time with GPUs."""
    for i in range(len(job_idx)):
        job = jobs[job_idx[i]]
        job.run_s += seconds[i]
        job.attained_gpu_s += charged_s[i] * n_gpus[i]
        job.progress_s += seconds[i] - restart_s[i]
        if seconds[i] > restart_s[i]:
            job.profiled_gpus_max = max(job.profiled_gpus_max, n_gpus[i])
