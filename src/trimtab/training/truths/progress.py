"""The truth about running jobs, as a protocol: what the loop asks, and no allocator can.

A model of jobs is a pair: a `Truth`, which only the loop holds, and the `Speed` that allocators get. What
jobs report on their way goes from the truth to the estimate, never back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trimtab.domain.allocator import Speed
from trimtab.domain.training_jobs import Flags, Floats, Ints, Workload

TOLERANCE_S = 1e-6  # a job this close to its finish has finished: sums of times are not exact


@dataclass(frozen=True, slots=True)
class Running:
    """The jobs that hold GPUs, one row each."""

    job_idx: Ints  # [rows] position among all jobs
    gpus: Ints  # [rows, nodes] on each node
    type_idx: Ints  # [rows] type of their GPUs; the slowest type where a job holds several
    n_nodes: Ints  # [rows]
    n_gpus: Ints  # [rows]
    local_batch: Floats  # [rows] 0 = as the job asked; AGENT_BATCH = its agent chooses
    accumulation: Ints  # [rows]
    partner_job_idx: Ints  # [rows] job on the same GPUs; -1 = none
    share_frac: Floats  # [rows] of the time of its GPUs

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.job_idx)

    def of(self, rows: Ints) -> Running:
        """Some of the rows."""
        return Running(*(getattr(self, name)[rows] for name in self.__slots__))


class Truth(Protocol):
    """The true progress of jobs. It keeps that of every job of the run."""

    def begin(self, workload: Workload) -> Speed:
        """Forget all progress, and return the estimate that allocators get."""

    def oracle(self) -> Speed:
        """The true speed over the rest of each job, for allocators that need the oracle."""

    def advance(self, running: Running, seconds: Floats) -> Floats:
        """Let each row run for its seconds, restarts already taken off.

        Returns the seconds after which a row finished, inf if it did not. What jobs report on the way goes
        to the estimate.
        """

    def save(self, job_idx: Ints) -> None:
        """Keep the progress of these jobs as a checkpoint. Raises UsageError if it has none."""

    def go_back(self, job_idx: Ints) -> None:
        """Progress of these jobs is again as at their checkpoints."""

    def time_to_finish_s(self, running: Running) -> Floats:
        """Seconds that each row needs to finish if nothing changes, restarts not counted; inf = never."""

    def work_left(self, job_idx: Ints) -> Floats:
        """The estimate that a JOBS record shows: declared work less the work done; nan = not known."""

    def slowest_type(self, job_idx: Ints, n_gpus: Ints, held: Flags) -> Ints:
        """Of the types that each job holds GPUs of, `held` [rows, types], the one on which it is slowest."""

    def reports(self, job_idx: Ints) -> tuple[Floats, Floats]:
        """Load of services now, and their slowdown over the last interval; 0 and 1 of other jobs."""

    def true_work_left(self, job_idx: Ints) -> Floats:
        """True work left, for allocators that need the oracle and for bounds; nan = not known."""
