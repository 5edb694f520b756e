"""A scenario of training jobs: all settings of a comparison of allocators, as one checked value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from trimtab.domain.queue_tree import QueueScheme
from trimtab.domain.service_loads import DEFAULT_BUSY_FRAC
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.loader import cluster_part
from trimtab.experiments.scenario.scenario_files import ScenarioFiles
from trimtab.experiments.scenario.scenario_parts import Parts
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.references import struck_field_errors
from trimtab.experiments.scenario.spec.scenario import PolicyName, Seeds, SweepSpec
from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
from trimtab.experiments.scenario.spec.serving import FaultSpec
from trimtab.validation.base import Frac, NonNegative, Positive, Spec
from trimtab.validation.names import FieldError, raise_field_errors
from trimtab.validation.queue_section import Queues, Scheme

NO_PAIRS: Final = "a file of measured pairs in jobs.generate.pairs"


class ScalingModel(Spec):
    """A model whose speed with n GPUs is n / (1 + serial_frac (n − 1) + falls_frac n (n − 1))."""

    share: Positive = Field(1.0, description="of the jobs, relative")
    serial_frac: Frac = Field(0.0, description="of the work that more GPUs do not speed up")
    falls_frac: Frac = Field(0.0, description="communication that grows with each pair of GPUs")
    gpus_max: int = Field(32, ge=1, description="most GPUs")
    cpus_per_gpu: NonNegative = Field(
        0.0, description="CPUs of its node for each GPU; nodes have `resources: {cpu_cores: …}`"
    )
    busy_frac: Frac = Field(
        DEFAULT_BUSY_FRAC, description="of a GPU that it keeps busy alone; two jobs that share one slow down"
    )
    measured_as: str = Field(
        "",
        description="job type of the file of pairs that it is, such as `ResNet-18 (batch size 64)`; "
        "empty = by busy_frac",
    )


class Duration(Spec):
    """Lognormal run times with the GPUs asked for."""

    median_s: Positive = Field(1800.0, description="median")
    cv: Positive = Field(2.0, description="coefficient of variation")


class DeadlineFactor(Spec):
    """Deadlines, as multiples of the duration after the submission, uniform."""

    least: Positive = Field(0.5, description="smallest multiple")
    most: Positive = Field(1.5, description="largest multiple")


class GenerateServices(Spec):
    """Online services of one GPU each, from the start to the end, whose load rises and falls once a day."""

    count: int = Field(ge=1, description="number of services")
    busy_frac: Frac = Field(0.6, description="of its GPU that a service keeps busy at full load")
    load_least: Frac = Field(0.2, description="least load of the day")
    load_most: Frac = Field(0.9, description="largest load of the day")
    measured_as: str = Field(
        "", description="job type of the file of pairs that it is at full load; empty = by busy_frac"
    )


class PairsFile(Spec):
    """Measured speeds of two jobs on the same GPUs."""

    file: Path = Field(description="JSON in Gavel's format, steps per second of jobs alone and in pairs")
    gpu: str = Field(min_length=1, description="type of GPU in it, such as v100")
    profiled_frac: Frac = Field(
        1.0,
        description="of the pairs, drawn, whose speeds allocators are told; a network predicts the others",
    )


class GenerateJobs(Spec):
    """Generated jobs with Poisson arrivals."""

    jobs: int = Field(150, ge=1, description="number of jobs")
    models: Mapping[str, ScalingModel] = Field(min_length=1, description="name → how it scales")
    gpus: Mapping[int, Positive] = Field(min_length=1, description="GPUs asked for → share of the jobs")
    duration: Duration = Field(Duration(), description="run times")
    tenants: Mapping[str, Positive] = Field({}, description="name → share of the jobs; empty = one tenant")
    deadline: DeadlineFactor | None = Field(None, description="deadlines; null = none")
    services: GenerateServices | None = Field(None, description="online services beside them; null = none")
    pairs: PairsFile | None = Field(
        None, description="measured pairs of the models that have `measured_as`; null = by busy_frac"
    )

    @model_validator(mode="after")
    def _has_pairs(self) -> GenerateJobs:
        raise_field_errors(self._field_errors(), "generated jobs")
        return self

    def _field_errors(self) -> Iterator[FieldError]:
        if self.pairs is None:
            for name, model in self.models.items():
                if model.measured_as:
                    yield FieldError(("models", name, "measured_as"), model.measured_as, NO_PAIRS)
            if self.services is not None and self.services.measured_as:
                yield FieldError(("services", "measured_as"), self.services.measured_as, NO_PAIRS)


class JobTrace(Spec):
    """Jobs of a file, and where the profiles of their models are."""

    file: Path = Field(description="file of jobs, of any known format")
    profiles: Path | None = Field(
        None,
        description="profiles of the models: a folder or a throughputs.json; files tell its kind; null = "
        "jobs keep the GPUs they asked for",
    )
    limit: int | None = Field(None, ge=1, description="keep at most so many jobs")


class JobsSection(Spec):
    """The jobs."""

    generate: GenerateJobs | None = Field(None, description="generated jobs")
    trace: JobTrace | None = Field(None, description="jobs of a file")
    load: Positive | None = Field(
        None, description="GPU seconds asked for over those of the cluster; null = as recorded"
    )
    declared_cv: NonNegative = Field(0.0, description="relative error of the work that allocators see")
    pair_cv: NonNegative = Field(
        0.0, description="relative error of the speeds of two jobs on the same GPUs that allocators see"
    )

    not_preemptible_frac: Frac = Field(
        0.0, description="of the jobs, drawn, that keep their GPUs from their start to their end"
    )
    pinned_frac: Frac = Field(
        0.0, description="of the jobs, drawn, that no allocator may move either; a trace may name jobs too"
    )
    too_wide: Literal["refuse", "leave-out"] = Field(
        "refuse",
        description="jobs of a file that ask for more GPUs than the cluster has: refused, or left out",
    )
    zero: Literal["refuse", "leave-out"] = Field(
        "refuse", description="jobs of a file that have nothing to do: refused, or left out"
    )

    @model_validator(mode="after")
    def _one_source(self) -> JobsSection:
        if self.generate is not None and self.trace is not None:
            raise ValueError("either generate or trace")
        return self


class ReplayRules(Spec):
    """How jobs that replay measurements run, where published simulators differ."""

    constants: Literal["published", "none", "pollux", "sia"] = Field(
        "published",
        description="limits and slow-downs of an artifact: pollux, or sia where files are by type of GPU",
    )
    ring: Literal["nodes", "largest-first"] = Field("nodes", description="order of a job's nodes")
    oracle: Literal["exact", "artifact"] = Field("exact", description="what oracles are told")
    profiled: Literal["nothing", "one-gpu"] = Field(
        "nothing", description="what estimates know of a job at its submission"
    )
    interference_frac: Frac = Field(0.0, description="what distributed jobs lose that share a node")


class RulesSection(Spec):
    """How a run goes; empty texts leave a rule to each allocator."""

    clock: str = Field("", description="rounds, events, plans, arrivals or leases, with parameters")
    round_s: Positive | None = Field(
        None, description="length of rounds of allocators that count in them; null = as the source"
    )
    placement: str = Field("", description="consolidated, spread or buddy")
    priorities: Literal["strict", "policy"] = Field(
        "policy",
        description="strict: GPUs go to jobs of higher priority first; policy: as the allocator reads them",
    )
    restart: str = Field("none", description="what a change of a job's GPUs costs")
    finish_rounding: Literal["exact", "up", "nearest"] | None = Field(
        None, description="of finish times; null = nearest for replayed epochs as in the source, else exact"
    )
    work_from: Literal["iterations", "duration"] = Field(
        "iterations", description="what a trace's jobs have to do"
    )
    limits: Literal["measured", "rising", "elasticflow"] = Field("measured", description="most GPUs of a job")
    unprofiled: Literal["refuse", "recorded"] = Field(
        "refuse", description="jobs whose model has no speed profile: refused, or run as recorded"
    )
    estimate: Literal["table", "profiled-runs", "optimus-speed", "job-metadata"] = Field(
        "table",
        description="what allocators see of a table of speeds: itself, or predictions from some GPU counts",
    )
    profiled_gpus: tuple[int, ...] = Field(
        (1, 2, 4), description="numbers of GPUs that predictions learn from", min_length=1
    )
    estimate_profiles: Path | None = Field(
        None,
        description="folder of MODEL.csv files, such as `trimtab profile job --out` writes: speeds that "
        "allocators see in place of these; null = none",
    )
    replay: ReplayRules = Field(ReplayRules(), description="jobs that replay measurements")
    checkpoint_s: NonNegative = Field(
        0.0,
        description="progress of a job between two checkpoints; what came after the last one is lost when a "
        "node of it fails; 0 = failures lose no work",
    )
    step_period_s: Positive = Field(120.0, description="length of a round of jobs that run whole steps")


class TrainingScenario(ScenarioFile):
    """One scenario file with `kind: training`."""

    kind: Literal["training"] = Field("training", description="training jobs")
    name: str = Field("training", min_length=1, description="short name, for tables and reports")
    description: str = Field("", description="description, for reports")
    cluster: ClusterSpec = Field(description="nodes and node types; accelerators = GPUs of a node")
    jobs: JobsSection = Field(
        JobsSection(), description="the jobs; without any the command line gives a trace of them"
    )
    rules: RulesSection = Field(RulesSection(), description="clock, placement, restarts, roundings")
    rules_of: Mapping[str, RulesSection] = Field(
        {}, description="name of an allocator → rules of its own; what is not set is as in rules"
    )
    faults: tuple[FaultSpec, ...] = Field((), description="failures of nodes; planned = drained")
    quotas: Mapping[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description="tenant → most GPUs that its jobs hold together; without one, all"
    )
    queues: Queues | None = Field(
        None, description="name → queue, for the tenants of jobs; null = no queues; see the guide on queues"
    )
    queue_scheme: Scheme = QueueScheme.PREEMPTION
    policies: tuple[PolicyName, ...] = Field((), description="allocators; empty = all that fit")
    seeds: Seeds = Field(3, description="number of seeds (0, 1, …), or a list of seeds")
    sweep: SweepSpec = Field(SweepSpec(loads=()), description="loads of the sweep")
    sort_by: str = Field("completion_mean_s", description="metric that the comparison is sorted by")

    @model_validator(mode="after")
    def _faults_fit(self) -> TrainingScenario:
        raise_field_errors(self._field_errors(), "training scenario")
        return self

    def _field_errors(self) -> Iterator[FieldError]:
        yield from struck_field_errors("faults", self.faults, self.cluster)
        generate = self.jobs.generate
        if generate is not None and generate.services is not None:
            queues = self.queues or {}
            for field, values in (("faults", self.faults), ("quotas", self.quotas), ("queues", queues)):
                if values:
                    yield FieldError((field,), len(values), "none beside jobs.generate.services")
        for k, fault in enumerate(self.faults):
            if fault.factor > 0:
                yield FieldError(
                    ("faults", k, "factor"), fault.factor, "0: nodes that train do not slow down"
                )

    def under_rules_of(self, allocator: str) -> TrainingScenario:
        """The scenario with the rules of this allocator, given by its name without parameters."""
        own = self.rules_of.get(allocator)
        if own is None:
            return self
        changed: dict[str, Any] = dict(own.model_dump(exclude_unset=True))
        rules = RulesSection.model_validate(self.rules.model_dump() | changed)
        return self.model_copy(update={"rules": rules, "rules_of": {}})

    def require_jobs(self) -> None:
        """Raise ScenarioError if there are no jobs."""
        if self.jobs.generate is None and self.jobs.trace is None:
            raise ScenarioError(
                "the scenario has no jobs of its own",
                file=self.known_as,
                field="jobs",
                expected="--trace FILE (and --profiles PATH), or a section jobs with generate or trace",
            )

    def with_overrides(
        self,
        *,
        load: float | None = None,
        policies: Sequence[str] | None = None,
        seeds: int | Sequence[int] | None = None,
        cluster: ClusterSpec | None = None,
        limit: int | None = None,
    ) -> TrainingScenario:
        """The scenario with every argument that is not None replaced. Raises ScenarioError."""
        jobs = dict(self.jobs)  # fields, not a copy of the section: so they are checked
        if load is not None:
            jobs["load"] = load
        if limit is not None and self.jobs.trace is not None:
            jobs["trace"] = dict(self.jobs.trace) | {"limit": limit}
        changed: dict[str, Any] = {"jobs": jobs}
        if cluster is not None:
            changed["cluster"] = cluster
        return self.replaced(policies=policies, seeds=seeds, **changed)


TRAINING_JOBS: Final = ScenarioFiles(TrainingScenario, "trimtab.experiments.training", "cluster and jobs")


def resolve_training(base: TrainingScenario | None, parts: Parts) -> TrainingScenario:
    """The scenario, else the trace on the cluster, with these parts. Raises UsageError."""
    cluster = None if parts.cluster is None else cluster_part(parts.cluster).cluster
    if base is None:
        assert parts.trace is not None
        if cluster is None:
            expected = "a cluster file (--cluster FILE); accelerators = GPUs of a node"
            raise ScenarioError("a trace alone makes no scenario", field="cluster", expected=expected)
        jobs = JobsSection(trace=JobTrace(file=parts.trace, profiles=parts.profiles))
        name = parts.trace.name.removesuffix(".gz").rsplit(".", 1)[0]
        base = TrainingScenario(name=name, cluster=cluster, jobs=jobs)
    elif parts.trace is not None or parts.profiles is not None:
        base = base.model_copy(update={"jobs": _with_trace(base, parts.trace, parts.profiles)})
    if parts.limit is not None and base.jobs.trace is None:
        expected = "--trace FILE, or a scenario with a trace"
        raise UsageError("needs a trace", field=parts.given.get("limit", "limit"), expected=expected)
    return base.with_overrides(
        load=parts.load, policies=parts.policies, seeds=parts.seeds, cluster=cluster, limit=parts.limit
    )


def _with_trace(base: TrainingScenario, trace: Path | None, profiles: Path | None) -> JobsSection:
    old = base.jobs.trace
    file = trace or (None if old is None else old.file)
    if file is None:
        raise UsageError("generated jobs have no profiles", field="profiles", expected="--trace FILE too")
    changed: dict[str, Any] = {"file": file, "profiles": profiles or (None if old is None else old.profiles)}
    return base.jobs.model_copy(update={"generate": None, "trace": JobTrace(**changed), "load": None})
