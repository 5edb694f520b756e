"""The end of a generation: what its ranks and its files say, and what is kept of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.training.runner.checkpoint_files import (
    Checkpoint,
    generation_folder,
    link_newest,
    newest_checkpoint,
    prune,
    set_aside,
)
from trimtab.training.runner.generation import Ending, Generation, Verdict
from trimtab.training.runner.live_job import LiveJob, log_end
from trimtab.training.runner.run_ledger import GenerationEnd


@dataclass(frozen=True, slots=True)
class SettledEnd:
    """How a generation ended, and the checkpoint from which its job goes on."""

    verdict: Verdict
    checkpoint: Checkpoint | None
    problems: list[str]

    def goes_on_from(self, problem: str) -> str:
        """The problem, with the checkpoint that is left to go on from."""
        if self.verdict.ending is Ending.FINISHED:
            return problem
        found = self.checkpoint
        good = "none" if found is None else f"step {found.step}, {found.samples} samples"
        what, *log = problem.split("\n", 1)
        return "\n".join([f"{what}; its last good checkpoint: {good}", *log])

    def record(
        self, job_idx: int, generation: Generation, predicted_end_s: float, now_s: float
    ) -> GenerationEnd:
        """What the journal keeps."""
        return GenerationEnd(
            job=job_idx,
            number=generation.number,
            ending=self.verdict.ending.value,
            problem=self.verdict.problem,
            gpus=generation.n_gpus,
            nodes=len(generation.slots),
            samples=generation.samples,
            step=generation.step,
            step_s=generation.step_s,
            sync_s=generation.sync_s,
            grad_sqr=generation.grad_sqr,
            grad_var=generation.grad_var,
            batch=generation.plan.batch,
            local_batch=generation.plan.local_batch,
            accumulation=generation.plan.accumulation,
            predicted_end_s=predicted_end_s,
            seconds_s=now_s - generation.started_s,
            restart_s=generation.restart_s,
            ended_s=now_s,
        )


def end_of(job: LiveJob, generation: Generation) -> SettledEnd:
    """The end of a job's generation, all of whose ranks have ended; its doubtful checkpoints are set aside.

    It reads files: whole checkpoints, and the log of the rank whose fault it is.
    """
    verdict = generation.verdict(job.log)
    if verdict.is_doubtful:
        folder = generation_folder(job.checkpoints, generation.number)
        for step in generation.stops:
            set_aside(folder / f"step-{step:012d}")
    found, problems = _tidied(job)
    if verdict.rank >= 0:
        log = log_end(Path(job.log.format(rank=verdict.rank)))
        verdict = replace(verdict, problem=verdict.problem + log)
    problems += [verdict.problem] if verdict.problem else []
    return SettledEnd(verdict, found, problems or _unsaved(generation, found, verdict))


def _tidied(job: LiveJob) -> tuple[Checkpoint | None, list[str]]:
    """The newest good checkpoint, linked, the older ones deleted; and what is wrong with newer ones."""
    found, problems = newest_checkpoint(job.checkpoints)
    prune(job.checkpoints)
    if found is not None:
        with contextlib.suppress(OSError):  # a full disk: the checkpoint itself is there
            link_newest(found, job.model)
    return found, problems


def _unsaved(generation: Generation, found: Checkpoint | None, verdict: Verdict) -> list[str]:
    """The problem of a generation that stopped as it should and has no checkpoint of that step."""
    if verdict.ending is not Ending.PREEMPTED or not generation.stops or generation.samples == 0:
        return []
    step = max(generation.stops)
    if found is not None and (found.generation, found.step) == (generation.number, step):
        return []
    return [f"no good checkpoint of step {step}, at which it stopped"]
