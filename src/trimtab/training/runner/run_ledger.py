"""Records of a run in the journal: its jobs, each generation before it begins, and how it ended.

The journal is that of chains: a run is a run, a job an input, a generation an instance of the stage `train`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import platformdirs

from trimtab.domain.queue_tree import QueueScheme
from trimtab.errors import UsageError
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import ACTIVE, LEASE_S, AttemptRecord, ResultRecord, RunRecord
from trimtab.training.runner.job_list import JobList, JobSpec

STAGE: Final = "train"
HERE: Final = "processes"  # nodes are on this machine
STOPPED, DONE, FAILED = "stopped", "done", "failed"


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The record of a generation that ended."""

    job: int
    number: int
    ending: str
    problem: str
    gpus: int
    nodes: int
    samples: int
    step: int
    step_s: float
    sync_s: float
    seconds_s: float  # that it held its GPUs
    restart_s: float  # of them without progress
    grad_sqr: float = float("nan")
    grad_var: float = float("nan")
    batch: int = 0  # samples of a step; 0 = that of the job
    local_batch: int = 0
    accumulation: int = 0
    predicted_end_s: float = float("nan")  # of the job, at its admission, since the begin of the run
    ended_s: float = 0.0  # since the begin of the run


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run, besides its jobs."""

    policy: str
    slots: Mapping[str, int]  # node → slots
    name: str
    cuda: bool = False
    on: str = HERE  # where nodes are, by the name of the kind or an address
    rules: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, Any] = field(default_factory=dict)  # node → what the file says of it
    drained: tuple[str, ...] = ()  # nodes that get no jobs, by command
    all_nodes: bool = False  # whether it has those of its host, also ones that come
    queues: Mapping[str, Any] | None = None  # as in the file
    queue_scheme: str = QueueScheme.PREEMPTION


@dataclass(slots=True)
class KnownRun:
    """A run in the journal."""

    id: str
    settings: RunSettings
    listed: JobList
    created_s: float = 0.0
    generations: dict[int, int] = field(default_factory=dict)  # job → newest
    begun: list[tuple[int, int, float]] = field(default_factory=list)  # job, generation, when, of the run
    ended: list[GenerationEnd] = field(default_factory=list)
    states: dict[int, tuple[str, str]] = field(default_factory=dict)  # job → state, error


def default_runs() -> Path:
    """Where runs are kept by default."""
    return Path(platformdirs.user_data_dir("trimtab")) / "training"


def journal_url_of(folder: Path) -> str:
    """The journal's database in a folder of runs."""
    return f"sqlite:///{folder.absolute() / 'journal.db'}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"cannot be made: {why}", field="--journal", value=str(folder)) from error


def _options(settings: RunSettings) -> str:
    return json.dumps({**asdict(settings), "tags": {"policy": settings.policy}})


class RunLedger:
    """The journal of one run.

    Args:
        folder: of all runs; this one's files are in a folder of its id.
        failed: called when something cannot be kept.

    Raises UsageError where there is no such folder and it cannot be made.
    """

    def __init__(self, folder: Path, failed: Callable[[BaseException], None] = lambda _: None) -> None:
        _make(folder)
        self.folder = folder.absolute()  # ranks are told of its files, and run in other folders
        self.journal = RunJournal(journal_url_of(folder), failed=failed, kind="train")
        self.run_id = ""

    async def open(self) -> None:
        """Open the journal. Raises UsageError."""
        await self.journal.open()

    async def close(self) -> None:
        """Store what waits."""
        await self.journal.close()

    @property
    def run_folder(self) -> Path:
        """Checkpoints, logs and the recording of the run."""
        return self.folder / self.run_id

    async def begin(self, listed: JobList, settings: RunSettings, source: str) -> KnownRun:
        """A new run."""
        self.run_id = f"train_{secrets.token_hex(8)}"
        record = RunRecord(
            id=self.run_id,
            chain=settings.name,
            tenant="",
            key=None,
            state=ACTIVE,
            options=_options(settings),
            source=source,
            created_s=time.time(),
            ended_s=None,
            owner=self.journal.owner,
            cancel_requested=False,
        )
        given = [(k, job.model_dump_json().encode()) for k, job in enumerate(listed.jobs)]
        await self.journal.begin(record, given)
        _make(self.run_folder)
        return KnownRun(self.run_id, settings, listed, record.created_s)

    async def take_over(self, run_id: str, *, retry_failed: bool) -> KnownRun:
        """Go on with a run that has stopped or was killed. Raises UsageError."""
        await self.journal.find(run_id)
        until_s = time.monotonic() + LEASE_S + 2.0
        while True:
            try:
                await self.journal.take_over(run_id)
                break
            except UsageError:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(0.5)  # a killed run seems alive for a while
        if retry_failed:
            await self.journal.begin_failed_again(run_id, ("failed",))
        self.run_id = run_id
        return await self.known(run_id)

    async def known(self, run_id: str) -> KnownRun:
        """The journal's records of a run."""
        record = await self.journal.find(run_id)
        options = json.loads(record.options)
        options.pop("tags")
        settings = RunSettings(**{**options, "drained": tuple(options.get("drained", ()))})
        inputs = await self.journal.inputs(run_id)
        jobs = tuple(JobSpec.model_validate_json(row.given) for row in inputs)
        nodes = settings.nodes or settings.slots
        of_file = {"queues": settings.queues, "queue_scheme": settings.queue_scheme}
        listed = JobList.model_validate(
            {"jobs": jobs, "nodes": nodes, "cuda": settings.cuda, "rules": settings.rules} | of_file
        )
        attempts = await self.journal.attempts(run_id)
        newest: dict[int, int] = {}
        for attempt in attempts:
            newest[attempt.number] = max(newest.get(attempt.number, 0), attempt.instance)
        begun = [(a.number, a.instance, a.started_s - record.created_s) for a in attempts]
        ended = [GenerationEnd(**json.loads(row.output)) for row in await self.journal.results(run_id)]
        ended.sort(key=lambda end: (end.job, end.number))
        states = {row.number: (row.state, row.error) for row in inputs}
        return KnownRun(run_id, settings, listed, record.created_s, newest, sorted(begun), ended, states)

    async def add_jobs(self, first: int, jobs: Sequence[JobSpec]) -> None:
        """Keep further jobs, numbered from `first` on."""
        given = [(k, job.model_dump_json().encode()) for k, job in enumerate(jobs, first)]
        await self.journal.add_inputs(self.run_id, given)

    async def change_job(self, number: int, job: JobSpec) -> None:
        """Keep a job that has changed."""
        await self.journal.change_input(self.run_id, number, job.model_dump_json().encode())

    async def change_settings(self, settings: RunSettings) -> None:
        """Keep other settings of the run."""
        await self.journal.change_options(self.run_id, _options(settings))

    def begins(self, job: int, number: int, where: str, durable: Callable[[], None]) -> None:
        """A generation is about to begin; `durable` is called when that is stored."""
        attempt = AttemptRecord(job, STAGE, number, 1, where, time.time())
        self.journal.note_attempt(self.run_id, attempt, durable)

    def ended(self, end: GenerationEnd, where: str) -> None:
        """A generation has ended."""
        record = ResultRecord(
            number=end.job,
            stage=STAGE,
            instance=end.number,
            attempt=1,
            node=where,
            output=json.dumps(asdict(end)).encode(),
            bytes=0,
            service_s=end.seconds_s,
            load_s=end.restart_s,
            peak_gib=0.0,
            ended_s=time.time(),
        )
        self.journal.note_result(self.run_id, record)

    def job_ended(self, job: int, state: str, error: str) -> None:
        """A job is over."""
        self.journal.note_input(self.run_id, job, state, error)

    async def end(self, state: str) -> None:
        """The run is over, or stopped."""
        await self.journal.end(self.run_id, state)
