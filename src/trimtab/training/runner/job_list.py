"""The file of a run: jobs, the nodes that they share, and the rules of the run."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from trimtab.domain.training_jobs import Workload
from trimtab.errors import UsageError
from trimtab.validation.base import NonNegative, Positive, Spec
from trimtab.validation.names import FieldError, raise_field_errors
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml


def _words(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,99}$")]
Command = Annotated[tuple[str, ...], BeforeValidator(_words)]


class BatchRange(Spec):
    """Batches among which the run chooses, by measured speed and gradient noise."""

    min: int = Field(ge=1, description="the batch of which `samples` are counted; none is smaller")
    max: int = Field(ge=1, description="largest batch")
    local_max: int | None = Field(
        None, ge=1, description="most samples of a rank in one pass; larger batches take several"
    )
    learning_rate: Literal["none", "linear", "sqrt", "adascale"] = Field(
        "none", description="how the learning rate grows with the batch, from that of `min` on"
    )

    @model_validator(mode="after")
    def _ordered(self) -> BatchRange:
        if self.max < self.min:
            raise_field_errors([FieldError(("max",), self.max, f"at least min, {self.min}")], "batch")
        return self


class JobSpec(Spec):
    """A training job: a command that is started once for each of its slots."""

    id: Name = Field(description="name, also of its folder")
    command: Command = Field(
        description="what each rank runs: words or a line; python is the one that runs trimtab"
    )
    samples: int = Field(ge=1, description="samples to train on in all")
    batch: Annotated[int, Field(ge=1)] | BatchRange = Field(
        1, description="samples of a step, of all ranks together; or a range: min, max"
    )
    gpus: int = Field(1, ge=1, description="slots that it asks for")
    gpus_min: int | None = Field(None, ge=1, description="fewest slots; null = as many as it asks for")
    gpus_max: int | None = Field(None, ge=1, description="most slots; null = as many as it asks for")
    submit_s: NonNegative = Field(0.0, description="when it is submitted, from the begin of the run")
    deadline_s: Positive | None = Field(None, description="when it is due, from the begin of the run")
    model: str = Field("", description="jobs of one model and batch are equally fast; empty = its id")
    samples_per_s: Mapping[int, Positive] = Field(
        default_factory=dict, description="slots → samples per second, as far as known before it runs"
    )
    priority: int = Field(0, description="higher is more urgent")
    tenant: str = Field("", description="whose it is")
    preemptible: bool = Field(True, description="whether it may lose its slots once it has started")
    preload: tuple[str, ...] = Field(
        (), description="modules that a warm process has imported, such as torch; for `python FILE …`"
    )
    cwd: Path | None = Field(None, description="working directory; null = that of the file")
    env: Mapping[str, str] = Field(default_factory=dict, description="further environment variables")

    @model_validator(mode="after")
    def _limits(self) -> JobSpec:
        raise_field_errors(self._out_of_order(), "job")
        return self

    def _out_of_order(self) -> Iterator[FieldError]:
        least, most = self.limits
        if not self.command:
            yield FieldError(("command",), [], "a program")
        if least > self.gpus:
            yield FieldError(("gpus_min",), least, f"at most gpus, {self.gpus}")
        if most < self.gpus:
            yield FieldError(("gpus_max",), most, f"at least gpus, {self.gpus}")
        if most > self.least_batch:
            yield FieldError(("batch",), self.least_batch, f"a sample at least for each of {most} ranks")
        if self.deadline_s is not None and self.deadline_s < self.submit_s:
            yield FieldError(("deadline_s",), self.deadline_s, f"after submit_s, {self.submit_s:g}")

    @property
    def batch_range(self) -> BatchRange | None:
        """Its batches, if they are a range."""
        return self.batch if isinstance(self.batch, BatchRange) else None

    @property
    def least_batch(self) -> int:
        """Its batch, or the least one."""
        return self.batch.min if isinstance(self.batch, BatchRange) else self.batch

    @property
    def limits(self) -> tuple[int, int]:
        """Fewest and most slots."""
        return self.gpus_min or self.gpus, self.gpus_max or self.gpus

    @property
    def model_name(self) -> str:
        """Its model."""
        return self.model or self.id


class RunRules(Spec):
    """How a run goes."""

    clock: str = Field("", description="when allocators decide; empty = as the allocator's source")
    round_s: Positive | None = Field(
        None, description="length of rounds of allocators that count in them; null = as the source"
    )
    placement: str = Field("", description="how nodes are found; empty = as the allocator's source")
    restart_s: Positive = Field(5.0, description="seconds of a restart, until some were measured")
    grace_s: Positive = Field(30.0, description="from SIGTERM to SIGKILL")
    report_within_s: Positive = Field(120.0, description="from a start to the first report")
    silent_s: Positive | None = Field(
        None,
        description="longest time between two reports; null = 20 times that of the job so far, 60 at least",
    )
    end_within_s: Positive = Field(
        3600.0, description="from the end of a job's training loop to that of its program"
    )
    checkpoint_period_s: NonNegative = Field(60.0, description="0 = only when a job is stopped")
    adapt_s: Positive = Field(30.0, description="how often the batch of a running job is chosen anew")
    stays: bool = Field(
        False, description="whether the run waits for further jobs when all have ended, until it is stopped"
    )
    retries: int = Field(3, ge=0, description="failures in a row, without progress, after which a job fails")
    retry_s: Positive = Field(1.0, description="before the first retry; doubled for each further one")


class JobList(Spec):
    """The file."""

    nodes: Mapping[Name, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, description="name → slots; on this machine, or machines of a Ray cluster"
    )
    cuda: bool = Field(False, description="whether slots are GPUs: ranks see those of their job")
    rules: RunRules = Field(RunRules(), description="clock, times, retries")
    jobs: tuple[JobSpec, ...] = Field(description="the jobs")

    @model_validator(mode="after")
    def _own_ids(self) -> JobList:
        if not self.jobs:
            raise_field_errors([FieldError(("jobs",), [], "at least one job")], "jobs")
        twice = [name for name, count in Counter(job.id for job in self.jobs).items() if count > 1]
        raise_field_errors((FieldError(("jobs",), name, "an id of its own each") for name in twice), "jobs")
        return self


def read_job_list(path: Path) -> JobList:
    """The file, checked. Raises UsageError."""
    return job_list_of(read_yaml(path, UsageError), str(path), path.absolute().parent)


def job_list_of(text: str, file: str, folder: Path) -> JobList:
    """The file of this text; working directories lie under `folder`. Raises UsageError."""
    data = parsed_yaml(text, file, UsageError, "no list of jobs", "the key jobs")
    defaults = data.pop("defaults", None) or {}
    if not isinstance(defaults, dict):
        raise UsageError("cannot be used", file=file, field="defaults", expected="a table: key: value")
    if isinstance(data.get("jobs"), list):
        data["jobs"] = [{**defaults, **job} if isinstance(job, dict) else job for job in data["jobs"]]
    made = checked(lambda: JobList.model_validate(data), JobList, file, UsageError)
    jobs = tuple(job.model_copy(update={"cwd": folder / (job.cwd or "")}) for job in made.jobs)
    ordered = sorted(jobs, key=lambda job: job.submit_s)  # allocators see jobs by submission
    return made.model_copy(update={"jobs": tuple(ordered)})


def workload_of_jobs(jobs: Sequence[JobSpec], name: str) -> Workload:
    """The jobs as allocators see them. Their work is samples."""
    models = list(dict.fromkeys(job.model_name for job in jobs))  # further jobs come behind
    tenants = list(dict.fromkeys(job.tenant for job in jobs))

    def column(values: Iterator[Any], kind: type = np.float64) -> Any:
        return np.fromiter(values, kind, len(jobs))

    samples = column(job.samples for job in jobs)
    return Workload(
        name=name,
        job_ids=tuple(job.id for job in jobs),
        model_names=tuple(models),
        submit_s=column(job.submit_s for job in jobs),
        deadline_s=column(math.inf if job.deadline_s is None else job.deadline_s for job in jobs),
        model_idx=column((models.index(job.model_name) for job in jobs), np.int64),
        gpus_requested=column((job.gpus for job in jobs), np.int64),
        gpus_min=column((job.limits[0] for job in jobs), np.int64),
        gpus_max=column((job.limits[1] for job in jobs), np.int64),
        batch=column(job.least_batch for job in jobs),
        work=samples,
        declared_work=samples.copy(),
        duration_s=np.full(len(jobs), np.nan),
        priority=column((job.priority for job in jobs), np.int64),
        tenant_idx=column((tenants.index(job.tenant) for job in jobs), np.int64),
        tenant_names=tuple(tenants),
        preemptible=column((job.preemptible for job in jobs), np.bool_),
        scales=column((job.limits[0] < job.limits[1] for job in jobs), np.bool_),
    )
