"""A job of a run: its files, its present generation, and what a rank of it is started with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from trimtab.training.runner.batch_plan import checkpoint_work
from trimtab.training.runner.checkpoint_files import Checkpoint, generation_folder
from trimtab.training.runner.generation import Generation
from trimtab.training.runner.job_list import JobSpec, RunRules
from trimtab.training.runner.node_programs import RankStart
from trimtab.training.runner.slot_pool import Warm, warm_program

JobState = Literal["pending", "active", "done", "failed", "rejected"]
_FENCE: Final = "generation"


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
    retry_s: float = -math.inf  # not to be started before
    problems: list[str] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        """Its checkpoints, of all generations."""
        return self.folder / "checkpoints"

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
            yield rank.node_idx, RankStart(self.key(i), argv, env, gpus, cwd, log)

    def _shared_variables(
        self, generation: Generation, rules: RunRules, meeting_point: tuple[str, int]
    ) -> dict[str, str]:
        address, port = meeting_point
        plan = generation.plan
        return {
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
