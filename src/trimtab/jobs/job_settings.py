"""How jobs are kept and run, what one tenant's may take, and the refusals of more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
