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

from trimtab.domain.job_places import JobAsk, NodeOffer, misfit, places_of
from trimtab.domain.queue_tree import QueueScheme
from trimtab.domain.training_jobs import JobQueues, Workload
from trimtab.errors import UsageError
from trimtab.training.queue_shares import capacity_of, job_queues, most_gpus, resources_of
from trimtab.validation.base import NonNegative, Positive, Spec, Texts
from trimtab.validation.names import FieldError, raise_field_errors
from trimtab.validation.problems import checked
from trimtab.validation.queue_section import Queues, Scheme, tree_of, unknown_tenants
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
    priority: int = Field(0, description="higher is more urgent; see the rule priorities")
    partition: Texts = Field((), description="partitions, in one of which its nodes must be; none = any")
    labels: Texts = Field((), description="labels that its nodes must have, all of them")
    cpus_per_gpu: NonNegative = Field(0.0, description="CPUs of its node for each of its slots")
    memory_gib_per_gpu: NonNegative = Field(
        0.0, description="memory of its node for each of its slots; a rank that uses more is ended"
    )
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
    def ask(self) -> JobAsk:
        """What it asks of its nodes."""
        return JobAsk(self.partition, self.labels, self.cpus_per_gpu, self.memory_gib_per_gpu)

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
    priorities: Literal["strict", "policy"] = Field(
        "strict",
        description="strict: slots go to jobs of higher priority first; policy: as the allocator reads them",
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


class NodeSpec(Spec):
    """A node, where more is to be said of it than its slots."""

    slots: int = Field(ge=1, description="how many ranks it takes at once")
    partition: Texts = Field((), description="partitions that it is in")
    labels: Texts = Field((), description="labels, such as a100 or nvlink")
    cpus: Positive | None = Field(None, description="CPUs that jobs may ask for; null = any number")
    memory_gib: Positive | None = Field(None, description="memory that jobs may ask for; null = any amount")

    @property
    def offer(self) -> NodeOffer:
        """What jobs find there."""
        cpus, memory_gib = self.cpus or math.inf, self.memory_gib or math.inf
        return NodeOffer(frozenset(self.partition), frozenset(self.labels), cpus, memory_gib)


def _node(value: object) -> object:
    return {"slots": value} if isinstance(value, int) and not isinstance(value, bool) else value


class JobList(Spec):
    """The file."""

    nodes: Mapping[Name, Annotated[NodeSpec, BeforeValidator(_node)]] = Field(
        default_factory=dict,
        description="name → slots, or slots and more; on this machine, or machines of a Ray cluster",
    )
    cuda: bool = Field(False, description="whether slots are GPUs: ranks see those of their job")
    rules: RunRules = Field(RunRules(), description="clock, times, retries")
    queues: Queues | None = Field(
        None, description="name → queue, for the tenants of jobs; null = no queues; gpus are slots"
    )
    queue_scheme: Scheme = QueueScheme.PREEMPTION
    jobs: tuple[JobSpec, ...] = Field(description="the jobs")

    @property
    def slots(self) -> dict[str, int]:
        """Node → slots."""
        return {name: node.slots for name, node in self.nodes.items()}

    def on(self, slots: Mapping[str, int]) -> JobList:
        """The same on these nodes: what the file says of a node holds for one of its name."""
        nodes = {
            name: self.nodes[name].model_copy(update={"slots": count})
            if name in self.nodes
            else NodeSpec(slots=count)
            for name, count in slots.items()
        }
        return self.model_copy(update={"nodes": nodes})

    @model_validator(mode="after")
    def _own_ids(self) -> JobList:
        if not self.jobs:
            raise_field_errors([FieldError(("jobs",), [], "at least one job")], "jobs")
        twice = [name for name, count in Counter(job.id for job in self.jobs).items() if count > 1]
        raise_field_errors((FieldError(("jobs",), name, "an id of its own each") for name in twice), "jobs")
        if self.queues is not None:
            found = unknown_tenants(
                self.queues, {job.tenant for job in self.jobs}, are_all=not self.rules.stays
            )
            raise_field_errors((error._replace(path=("queues", *error.path)) for error in found), "jobs")
        return self

    def job_queues(self, tenants: Sequence[str]) -> JobQueues | None:
        """The queues as declared, for jobs of these tenants; None = there are none. Raises UsageError."""
        if self.queues is None:
            return None
        offers = [node.offer for node in self.nodes.values()]
        return job_queues(tree_of(self.queues, resources_of(offers)), tenants, offers)


def read_job_list(path: Path) -> JobList:
    """The file, checked. Raises UsageError."""
    return job_list_of(read_yaml(path, UsageError), str(path), path.absolute().parent)


def read_rules(path: Path | None) -> RunRules:
    """The rules in a file that has nothing else, or the default ones. Raises UsageError."""
    if path is None:
        return RunRules()
    data = parsed_yaml(read_yaml(path, UsageError), str(path), UsageError, "no rules", "clock: …, grace_s: …")
    return checked(lambda: RunRules.model_validate(data), RunRules, str(path), UsageError)


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


def refuse_too_large(listed: JobList) -> None:
    """Raise UsageError for a job that would wait for ever on these nodes, and queues that do not add up."""
    if (queues := listed.job_queues(())) is not None:
        queues.tree.refuse_misfits(capacity_of(queues, sum(listed.slots.values())))
    why = too_large(listed.jobs, listed)
    for k, (job, reason) in enumerate(zip(listed.jobs, why, strict=True)):
        if reason:
            total = sum(listed.slots.values())
            what, expected = "would wait for ever", f"at most {total}, the slots of all nodes"
            if job.limits[0] <= total:
                what, expected = f"{what}: {reason}", "nodes, and a queue, of the file that have it"
            raise UsageError(what, field=f"jobs[{k}].gpus", value=job.limits[0], expected=expected)


def too_large(jobs: Sequence[JobSpec], listed: JobList) -> list[str]:
    """Why each job can never run on these nodes, in words; empty = it can."""
    total, slots = sum(listed.slots.values()), np.array(list(listed.slots.values()), np.int64)
    places = places_of([job.ask for job in jobs], [node.offer for node in listed.nodes.values()])
    most = np.full(len(jobs), total) if places is None else places.most(slots)
    least = [job.limits[0] for job in jobs]
    in_queue = _most_in_queue(jobs, listed, total)
    return [
        ""
        if count <= min(has, allowed)
        else _not_in_queue(job, count, allowed)
        if count <= has
        else f"wants {count} slots; the run has {total}"
        if count > total
        else misfit(job.ask, count, int(has))
        for job, count, has, allowed in zip(jobs, least, most, in_queue, strict=True)
    ]


def _most_in_queue(jobs: Sequence[JobSpec], listed: JobList, total: int) -> list[float]:
    """Most slots that each job may have by its queue; -1 = it has none, inf = there are no queues."""
    tenants = list(dict.fromkeys(job.tenant for job in jobs))
    queues = listed.job_queues(tenants)
    if queues is None or listed.queue_scheme is QueueScheme.NONE:
        return [math.inf] * len(jobs)
    most = np.where(queues.leaf_of >= 0, most_gpus(queues, total) + 1e-9, -1.0)
    return [float(most[tenants.index(job.tenant)]) for job in jobs]


def _not_in_queue(job: JobSpec, count: int, allowed: float) -> str:
    if allowed < 0:
        return f"its tenant {job.tenant!r} has no queue"
    return f"wants {count} slots; its queue, or its tenant there, has {int(allowed)} at most"


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
        asks=tuple(job.ask for job in jobs),
    )
