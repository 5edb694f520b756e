"""A rank of a training job, for jobs in any framework: position, reports, checkpoints. Standard library only.

    job = ElasticJob()
    if job.resume_from is not None:
        state = read(job.resume_from / "state")
    while not job.is_done:
        samples = job.shard()                       # numbers of this rank's samples in this step
        ...                                         # gradients, their sum over all ranks, the step
        wish = largest_over_all_ranks(job.wish())   # in the same all-reduce
        job.step_done(sync_s=seconds_of_the_all_reduce)
        job.obey(wish, lambda folder: write(folder / "state"))
    job.finish(lambda folder: write(folder / "state"))
    if job.rank == 0:
        evaluate()                                  # the program goes on to its end

A job that loses its slots, or whose run is stopped, ends in `obey`, at a checkpoint: what is after the loop
runs only when all samples were trained on.

Outside of a run of `trimtab train run` the same program is one rank that reports nothing and keeps no
checkpoints. `trimtab.training.torch` does all of this for PyTorch.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from trimtab.training.runner.checkpoint_files import (
    Checkpoint,
    StaleGeneration,
    read_checkpoint,
    write_checkpoint,
)
from trimtab.training.runner.rank_protocol import (
    GO_ON,
    NOT_SAVED,
    PREEMPTED,
    SAVE,
    STALE,
    STOP,
    report_line,
)

REPORT_PERIOD_S: Final = 0.1  # reports of steps in between are averaged
WRITING_S: Final = 3600.0  # so long a checkpoint may take

Write = Callable[[Path], Any]


class ElasticJob:
    """This process's part of a job.

    Attributes:
        rank, world: its number, and how many ranks there are.
        batch: samples of a step, of all ranks together.
        accumulation: passes of a step, beyond one, that a rank divides its samples into.
        learning_rate_factor: by which the learning rate is multiplied for this batch.
        step, samples: steps done and samples trained on since the job's beginning, of all ranks.
        resume_from: folder with the state to go on from; None = a new job.
    """

    def __init__(
        self, samples: int = 0, batch: int = 0, *, environment: Mapping[str, str] = os.environ
    ) -> None:
        """`samples` in all and `batch` of a step hold where the run's file says none."""
        given = environment.get
        self.rank, self.world = int(given("RANK", "0")), int(given("WORLD_SIZE", "1"))
        self.local_rank = int(given("LOCAL_RANK", "0"))
        self.generation = int(given("TRIMTAB_GENERATION", "1"))
        self.samples_total = int(given("TRIMTAB_SAMPLES", "0")) or samples
        self.batch = int(given("TRIMTAB_BATCH", "0")) or batch or 1
        self.accumulation = int(given("TRIMTAB_ACCUMULATION", "0"))
        self.learning_rate_factor = float(given("TRIMTAB_LEARNING_RATE_FACTOR", "1"))
        self.step = self.samples = 0
        self.resume_from: Path | None = None
        self._folder = Path(given("TRIMTAB_CHECKPOINTS", "")) if given("TRIMTAB_CHECKPOINTS") else None
        self._fence = Path(given("TRIMTAB_FENCE", "")) if given("TRIMTAB_FENCE") else None
        self._period_s = float(given("TRIMTAB_CHECKPOINT_PERIOD_S", "0"))
        self._reports = int(given("TRIMTAB_REPORT_FD", "-1"))
        self._is_stopping = False
        if given("TRIMTAB_RESUME"):
            self._resume(read_checkpoint(Path(given("TRIMTAB_RESUME", ""))))
        self._reported_s = self._saved_s = time.perf_counter()
        self._begun_s = math.nan  # the first step of a process, with its start, tells nothing of the speed
        self._steps, self._step_s, self._sync_s = 0, 0.0, 0.0
        self._noise: dict[str, float] = {}
        with contextlib.suppress(ValueError):  # not the main thread: it gets no signals
            signal.signal(signal.SIGTERM, self._stop)

    def _resume(self, checkpoint: Checkpoint) -> None:
        self.step, self.samples, self.resume_from = checkpoint.step, checkpoint.samples, checkpoint.path

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_stopping = True

    @property
    def is_done(self) -> bool:
        """Whether all samples were trained on."""
        return self.samples >= self.samples_total

    @property
    def step_samples(self) -> int:
        """Samples of the next step, of all ranks."""
        return min(self.batch, self.samples_total - self.samples)

    def shard(self) -> range:
        """The numbers of this rank's samples in the next step.

        They count from the job's beginning, so each sample is one rank's once, whatever the number of ranks
        becomes. It may be empty in a last, smaller step.
        """
        return range(self.samples + self.rank, self.samples + self.step_samples, self.world)

    def begin_step(self) -> None:
        """The time of the next step counts from now; otherwise from the end of the one before."""
        self._begun_s = time.perf_counter()

    def wish(self) -> int:
        """The wish of this rank after this step: 0 for none, 1 for a checkpoint, 2 for the end."""
        if self._is_stopping:
            return STOP
        is_due = 0 < self._period_s <= time.perf_counter() - self._saved_s
        return SAVE if is_due and self.rank == 0 else GO_ON

    def step_done(
        self, *, sync_s: float = 0.0, grad_sqr: float = math.nan, grad_var: float = math.nan
    ) -> None:
        """All ranks have done a step."""
        now_s = time.perf_counter()
        self.step, self.samples = self.step + 1, self.samples + self.step_samples
        if not math.isnan(self._begun_s):
            self._steps += 1
            self._step_s += now_s - self._begun_s
            self._sync_s += sync_s
        self._begun_s = now_s
        if grad_sqr == grad_sqr:
            self._noise = {"grad_sqr": grad_sqr, "grad_var": grad_var}
        if now_s - self._reported_s >= REPORT_PERIOD_S or self.is_done:
            self._report_steps(now_s)

    def _report_steps(self, now_s: float) -> None:
        n = self._steps or math.nan
        means = {"step_s": self._step_s / n, "sync_s": self._sync_s / n}
        self.report(step=self.step, samples=self.samples, **means, **self._noise)
        self._reported_s, self._steps, self._step_s, self._sync_s = now_s, 0, 0.0, 0.0

    def report(self, **told: Any) -> None:
        """Tell the run something. A run that is gone stops the job."""
        if self._reports < 0:
            return
        try:
            os.write(self._reports, report_line(**told))
        except BrokenPipeError:
            self._is_stopping, self._reports = True, -1

    def obey(self, wish: int, write: Write) -> None:
        """Do what the ranks agreed on. Ends the process if that is to stop."""
        if wish == GO_ON:
            return
        is_kept = self._save(write)
        self._begun_s = time.perf_counter()
        if wish == STOP:
            self._end(PREEMPTED if is_kept else NOT_SAVED)

    def finish(self, write: Write) -> None:
        """All samples were trained on: keep the last state. The program goes on.

        The run then waits for its end, and gives its slots to no other job; what it does is in no checkpoint.
        If it is stopped before its end, it begins again after the loop.
        """
        if not self._save(write):
            self._end(NOT_SAVED)
        self.report(step=self.step, samples=self.samples, stopped=self.step, finished=True)

    def quiet(self, seconds: float) -> None:
        """The next step may be so long in coming: to be said before an evaluation in the loop."""
        self.report(quiet_s=seconds)

    def _save(self, write: Write) -> bool:
        """Rank 0 writes a checkpoint. False if it could not."""
        self._saved_s = time.perf_counter()
        if self.rank != 0 or self._folder is None:
            return True
        self.quiet(WRITING_S)
        try:
            write_checkpoint(self._folder, self.generation, self.step, self.samples, write, self._fence)
        except StaleGeneration as stale:
            self.report(error=str(stale))
            self._end(STALE)
        except OSError as error:
            why = error.strerror or error  # no step: the run tells equal problems once
            self.report(error=f"{self._folder}: checkpoint not written: {why}")
            return False
        return True

    def _end(self, code: int) -> NoReturn:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # too late: it must not change the exit code
        self.report(step=self.step, samples=self.samples, stopped=self.step)
        sys.exit(code)
