"""A job of a run as a row of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.training.runner.live_decisions import LiveDecisions
from trimtab.training.runner.live_job import LiveJob


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a table of the run."""

    id: str
    state: str
    gpus: int
    gpus_requested: int
    samples: int
    samples_total: int
    samples_per_s: float  # nan = not running
    restarts: int
    expected_end_s: float  # from the begin of the run; inf = unknown
    problem: str  # the newest


def job_row(job: LiveJob, decisions: LiveDecisions, now_s: float) -> JobRow:
    """A job, as it is now."""
    generation = job.current
    speed = math.nan
    if generation is not None and generation.makes_progress and generation.step_s > 0:
        speed = generation.plan.batch / generation.step_s
    return JobRow(
        id=job.spec.id,
        state=_state(job),
        gpus=0 if generation is None else generation.n_gpus,
        gpus_requested=job.spec.gpus,
        samples=int(decisions.done.work[job.idx]),
        samples_total=job.spec.samples,
        samples_per_s=speed,
        restarts=int(decisions.states.jobs["restarts"][job.idx]),
        expected_end_s=decisions.expected_end_s(job.idx, now_s),
        problem=job.problems[-1].split("\n", 1)[0] if job.problems else "",
    )


def _state(job: LiveJob) -> str:
    if job.current is not None:
        if job.current.is_stopping:
            return "stopping"
        if job.current.is_finishing:
            return "finishing"
        return "running" if job.current.has_reported else "starting"
    return "waiting" if job.state == "active" else str(job.state)
