"""What a job is, and who runs one.

queued ──▶ dispatched ──▶ done | failed
  │  ▲         │ │  └──▶ unknown    its backend was lost from sight, and may or may not have done it
  │  └─────────┘ │                  back: nothing was sent after all, or it may run twice
  └──────────────┴──▶ cancelled
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from trimtab.gateway.jobs.results import ResultFile, StoredResult
from trimtab.gateway.model import Facts


class State(Enum):
    """Where a job stands."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


VIDEOS = "/v1/videos"  # where jobs are made, in OpenAI's API and at nodes that have it

ACTIVE = (State.QUEUED, State.DISPATCHED)


@dataclass(frozen=True, slots=True)
class Job:
    """A row of the store, at one moment. Times are seconds since 1970."""

    id: str
    tenant: str
    model: str
    kind: str
    method: str
    target: str
    request_type: str
    facts: Facts
    shown: dict[str, str]
    priority: int
    place: str
    only_node: str
    state: State
    owner: str | None
    attempt: int
    node: str
    backend_job_id: str
    idempotent: bool
    cancel_requested: bool
    deleted: bool
    not_before_s: float
    created_s: float
    dispatched_s: float | None
    ended_s: float | None
    expires_s: float | None
    error_code: str
    error: str
    result_file: str
    result_bytes: int
    result_type: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a run ended. QUEUED = it could not be sent now: again after `retry_after_s`."""

    state: State
    file: StoredResult | None = None
    error_code: str = ""
    error: str = ""
    retry_after_s: float = 0.0


class Delivery(Protocol):
    """What a runner tells while a job runs. `dispatched` and `returned` raise StoreUnavailable."""

    body: Path

    async def dispatched(self, node: str, idempotent: bool) -> bool:
        """Durable before the first byte: it goes to `node`. False = not ours, or cancelled: send nothing."""

    async def returned(self) -> None:
        """Nothing was done at that node; another may be tried."""

    async def attached(self, backend_job_id: str) -> None:
        """The backend has accepted it under this id."""

    def result(self, content_type: str) -> ResultFile:
        """A new file for the result."""


class Runner(Protocol):
    """Sends jobs to backends. A cancelled call closes its upstream connection."""

    async def run(self, job: Job, deliver: Delivery) -> JobResult:
        """Dispatch a queued job and wait for its end."""

    async def poll(self, job: Job, deliver: Delivery) -> JobResult:
        """Wait for a job that its backend knows as `backend_job_id`."""

    async def cancel(self, job: Job) -> None:
        """Tell its backend, if that knows the job by an id, that nobody waits for it. Never raises."""


class Observer(Protocol):
    """Who wants to know of changes: metrics, logs. Must not raise or wait."""

    def job_changed(self, job_id: str, state: State) -> None:
        """A job of this process came to `state`."""


Observers = Sequence[Observer]
