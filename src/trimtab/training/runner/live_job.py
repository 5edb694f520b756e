"""A job of a run: its files, its present generation, and what a rank of it is started with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np

from trimtab.training.runner.batch_plan import checkpoint_work
from trimtab.training.runner.checkpoint_files import Checkpoint, generation_folder
from trimtab.training.runner.generation import Generation
from trimtab.training.runner.job_list import JobSpec, RunRules
from trimtab.training.runner.live_decisions import LiveDecisions
from trimtab.training.runner.node_program import RankStart, Warm
from trimtab.training.runner.slot_pool import warm_program

JobState = Literal["pending", "active", "done", "failed", "rejected", "cancelled"]
_FENCE: Final = "generation"
SILENT_GAPS: Final = 20.0  # times the longest gap between two reports, after which a job seems frozen
LEAST_SILENT_S: Final = 60.0
LOG_END_LINES: Final = 8  # that are told of a rank that failed
LOG_END_BYTES: Final = 2000
UNKNOWN_S: Final = 600.0  # the same for a job that has not reported twice: its first steps may compile


def job_folder(run_folder: Path, job_id: str) -> Path:
    """Checkpoints and logs of a job of a run."""
    return run_folder / "jobs" / job_id


def model_link(folder: Path) -> Path:
    """The link to the newest good checkpoint in a job's folder."""
    return folder / "model"


@dataclass(slots=True)
class LiveJob:
    """A job, and how far it is."""

    idx: int
    spec: JobSpec
    folder: Path
    state: JobState = "pending"
    number: int = 0  # newest generation
    current: Generation | None = None
    checkpoint: Checkpoint | None = None
    failures: int = 0  # in a row, without progress
    silences: int = 0  # of them because it stopped reporting
    gap_s: float = math.nan  # the same as `longest_gap_s`, of earlier generations
    retry_s: float = -math.inf  # not to be started before
    problems: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        """Its checkpoints, of all generations."""
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        """A link to its newest good checkpoint."""
        return model_link(self.folder)

    @property
    def samples(self) -> int:
        """Samples of its checkpoint."""
        return 0 if self.checkpoint is None else self.checkpoint.samples

    @property
    def work(self) -> float:
        """Work that its checkpoint has."""
        return 0.0 if self.checkpoint is None else checkpoint_work(self.checkpoint)

    @property
    def warm(self) -> Warm:
        """The program that starts its ranks."""
        return warm_program(self.spec.command, self.spec.preload)

    @property
    def log(self) -> str:
        """Where the output of its newest generation is; {rank} stands for the rank."""
        return str(self.folder / "logs" / f"g{self.number:06d}-rank{{rank}}.log")

    def silent_s(self, rules: RunRules) -> float:
        """How long its ranks may report nothing: as stated, else by the reports that it made so far.

        One that was killed for its silence gets twice the time: it may have been at work.
        """
        if rules.silent_s is not None:
            return rules.silent_s
        gap_s = self.longest_gap_s
        known_s = UNKNOWN_S if math.isnan(gap_s) else max(LEAST_SILENT_S, SILENT_GAPS * gap_s)
        return known_s * 2.0**self.silences

    @property
    def is_finishing(self) -> bool:
        """Whether its samples are done, and its programs go on to their ends."""
        return self.state == "active" and self.current is not None and self.current.is_finishing

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two reports so far; nan = it never reported twice."""
        now_s = math.nan if self.current is None else self.current.gap_s
        return float(np.fmax(self.gap_s, now_s))

    def expected_gap(self, rules: RunRules) -> str:
        """Why that is too long, in words."""
        if rules.silent_s is not None:
            return ""
        gap_s = self.longest_gap_s
        took = "no second one yet" if math.isnan(gap_s) else f"at most {gap_s:.3g} s apart so far"
        return f" ({took}); rules.silent_s, or ElasticJob.quiet(seconds), allows more"

    def key(self, rank: int) -> str:
        """The name of a rank."""
        return f"{self.idx}/{self.number}/{rank}"

    def begin(self, generation: Generation) -> None:
        """Make the folders of a new generation, and fence off older ones. Raises OSError."""
        self.number, self.current = generation.number, generation
        checkpoints = generation_folder(self.checkpoints, self.number)
        checkpoints.mkdir(parents=True, exist_ok=True)
        generation.plan.write(checkpoints)
        (self.folder / "logs").mkdir(exist_ok=True)
        fence = self.folder / _FENCE
        new = fence.with_suffix(".new")
        new.write_text(str(self.number))
        new.rename(fence)

    def rank_starts(
        self, rules: RunRules, meeting_point: tuple[str, int], *, cuda: bool
    ) -> Iterator[tuple[int, RankStart]]:
        """The commands of the ranks of the present generation, and their nodes."""
        generation = self.current
        assert generation is not None
        shared = self._shared_variables(generation, rules, meeting_point)
        groups = list(generation.slots)
        for i, rank in enumerate(generation.ranks):
            slots = generation.slots[rank.node_idx]
            own = {
                "RANK": str(i),
                "LOCAL_RANK": str(rank.local),
                "LOCAL_WORLD_SIZE": str(len(slots)),
                "GROUP_RANK": str(groups.index(rank.node_idx)),
                "TRIMTAB_SLOTS": ",".join(map(str, slots)),
            }
            log = Path(self.log.format(rank=i))
            cwd = self.spec.cwd or Path.cwd()
            gpus = slots if cuda else ()
            argv, env = self.spec.command, {**shared, **own}
            memory_gib = self.spec.memory_gib_per_gpu
            yield rank.node_idx, RankStart(self.key(i), argv, env, gpus, cwd, log, memory_gib)

    def _shared_variables(
        self, generation: Generation, rules: RunRules, meeting_point: tuple[str, int]
    ) -> dict[str, str]:
        address, port = meeting_point
        plan = generation.plan
        threads = max(int(self.spec.cpus_per_gpu), 1)
        return {
            **({"OMP_NUM_THREADS": str(threads)} if threads > 1 else {}),
            **self.spec.env,
            "WORLD_SIZE": str(generation.n_gpus),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "TRIMTAB_JOB": self.spec.id,
            "TRIMTAB_GENERATION": str(generation.number),
            "TRIMTAB_CHECKPOINTS": str(generation_folder(self.checkpoints, generation.number)),
            "TRIMTAB_RESUME": "" if self.checkpoint is None else str(self.checkpoint.path),
            "TRIMTAB_FENCE": str(self.folder / _FENCE),
            "TRIMTAB_SAMPLES": str(plan.samples_total(self.spec.samples)),
            "TRIMTAB_BATCH": str(plan.batch),
            "TRIMTAB_LOCAL_BATCH": str(plan.local_batch),
            "TRIMTAB_ACCUMULATION": str(plan.accumulation),
            "TRIMTAB_LEARNING_RATE_FACTOR": repr(plan.learning_rate_factor),
            "TRIMTAB_CHECKPOINT_PERIOD_S": f"{rules.checkpoint_period_s:g}",
        }


def log_end(log: Path) -> str:
    """The last lines of a log, to follow a sentence; empty if there are none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - LOG_END_BYTES, 0))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "".join(f"\n    {line}" for line in lines[-LOG_END_LINES:] if line.strip())


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
    queue: str = ""  # the path of its leaf; empty = there are no queues


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
        queue=decisions.queue_of(job.idx),
    )


def _state(job: LiveJob) -> str:
    if job.current is not None:
        if job.current.is_stopping:
            return "stopping"
        if job.current.is_finishing:
            return "finishing"
        return "running" if job.current.has_reported else "starting"
    return "waiting" if job.state == "active" else str(job.state)
