"""A job, its states and its result; how jobs are kept, what one tenant's may take, the refusals of more.

queued ──▶ dispatched ──▶ done | failed
  │  ▲         │ │  └──▶ unknown    contact to its worker was lost; the work may or may not be done
  │  └─────────┘ │                  back to queued: the work did not begin, or it may run twice
  └──────────────┴──▶ cancelled

The interface between the queue of jobs and the code that does the work.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from trimtab.jobs.job_files import ResultFile, StoredResult


class JobState(Enum):
    """The state of a job."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


ACTIVE = (JobState.QUEUED, JobState.DISPATCHED)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The work of a job. Only the runner reads `target`, `parameters` and `labels`."""

    tenant: str  # the owner: another tenant neither sees nor cancels the job
    queue: str  # jobs of one tenant and queue start in their order; queues take turns
    kind: str
    target: str
    input_type: str = ""  # content type of the input
    parameters: dict[str, Any] = field(default_factory=dict)  # JSON-compatible values
    labels: dict[str, str] = field(default_factory=dict)  # shown with the job
    priority: int = 0
    only_worker: str = ""  # the only worker that can run it; "" = any
    id_prefix: str = "job"

    def queued(self, place: str, created_s: float, input_bytes: int = 0) -> Job:
        """A new job that no process has claimed. `place` names the folder of its files."""
        return Job(
            id=f"{self.id_prefix}_{secrets.token_hex(16)}",
            tenant=self.tenant,
            queue=self.queue,
            kind=self.kind,
            target=self.target,
            input_type=self.input_type,
            parameters=self.parameters,
            labels=self.labels,
            priority=self.priority,
            place=place,
            only_worker=self.only_worker,
            created_s=created_s,
            input_bytes=input_bytes,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A snapshot of a job's row in the store. Times are seconds since 1970."""

    id: str
    tenant: str
    queue: str
    kind: str
    target: str
    input_type: str
    parameters: dict[str, Any]
    labels: dict[str, str]
    priority: int
    place: str
    only_worker: str
    created_s: float
    input_bytes: int = 0
    state: JobState = JobState.QUEUED
    owner: str | None = None  # the process that has claimed it
    attempt: int = 0
    worker: str = ""  # where it runs or has run
    remote_id: str = ""  # the worker's own id of it, with which a later process can resume it
    idempotent: bool = False
    cancel_requested: bool = False
    deleted: bool = False
    not_before_s: float = 0.0
    dispatched_s: float | None = None
    ended_s: float | None = None
    expires_s: float | None = None
    error_code: str = ""
    error: str = ""
    result_file: str = ""
    result_bytes: int = 0
    result_type: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a run. QUEUED = the work could not begin: retry after `retry_after_s`."""

    state: JobState
    file: StoredResult | None = None
    error_code: str = ""
    error: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How jobs are kept and run."""

    folder: Path  # of inputs and results; processes that share a database may share it
    result_ttl_s: float = 86_400.0
    result_max_bytes: int = 1 << 30
    row_ttl_s: float = 7 * 86_400.0  # how long an ended job is still known
    queue_max_s: float = 86_400.0  # a job that found no worker in this time has failed
    max_running: int = 64  # claimed by this process at a time
    max_active_per_tenant: int = 1000
    lease_s: float = 15.0
    min_free_bytes: int = 64 << 20  # of the folder's disk, else jobs are refused and wait
    poll_s: float = 1.0  # how often to look for jobs and cancellations of other processes
    sweep_s: float = 60.0


@dataclass(frozen=True, slots=True)
class TenantBounds:
    """The most that one tenant's jobs may take; None = no bound."""

    jobs: int | None = None  # unfinished ones
    bytes: int | None = None  # inputs of unfinished ones, and kept results


class TooManyJobs(Exception):  # noqa: N818 - reads as the sentence it prints
    """The tenant has as many unfinished jobs as it may: `most`."""

    def __init__(self, most: int) -> None:
        super().__init__(f"at most {most} unfinished jobs")
        self.most = most


class TooManyBytes(Exception):  # noqa: N818 - reads as the sentence it prints
    """The tenant's jobs take as much of the disk as they may: `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"at most {most} bytes of inputs and results")
        self.most = most


class RunProgress(Protocol):
    """Records the progress of a run. `started` and `returned` raise StoreUnavailable."""

    input: Path

    async def started(self, worker: str, idempotent: bool) -> bool:
        """Store that `worker` is about to begin. False = do not begin: the job is lost or cancelled.

        `idempotent`: the work may be done twice, so a job whose process dies goes back to the queue.
        """

    async def returned(self) -> None:
        """Record that the worker did no work. Another worker may be tried."""

    async def attached(self, remote_id: str) -> None:
        """Record the worker's own id of the job, with which a later process can resume it."""

    def result(self, content_type: str) -> ResultFile:
        """A new file for the result."""


class Runner(Protocol):
    """Does the work of jobs. A cancelled call stops the work that this process does for it."""

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        """Run a queued job to its end."""

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        """Wait for a job that a worker already has under `job.remote_id`."""

    async def cancel(self, job: Job) -> None:
        """Stop the job at its worker, if the worker has it as `job.remote_id`. Never raises."""


class JobObserver(Protocol):
    """Observes changes of jobs, for metrics and logs. Must not raise or wait."""

    def job_changed(self, job_id: str, state: JobState) -> None:
        """A job of this process changed to `state`."""
