"""A scenario: all settings of a comparison of policies, as one checked value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from trimtab.experiments.scenario.spec.chain_sections import ChainSection, chain_field_errors, run_classes
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.references import (
    background_field_errors,
    cluster_field_errors,
    served_field_errors,
    store_field_errors,
    struck_field_errors,
    workload_field_errors,
)
from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served, ServiceClass
from trimtab.experiments.scenario.spec.serving import BackgroundSpec, FaultSpec, ServingSpec
from trimtab.experiments.scenario.spec.workload import TraceSpec, WorkloadSpec
from trimtab.experiments.scenario.trace_rows import holds_runs, recorded_rows
from trimtab.validation.base import Positive, Spec
from trimtab.validation.names import FieldError, raise_field_errors
from trimtab.validation.queue_section import Queues

SCENARIO_TITLE = "trimtab scenario"

Number = TypeVar("Number", int, float)


def _policy_text(value: object) -> object:
    """`{policy: A, order: B}` as `A+B`."""
    if isinstance(value, Mapping) and value.keys() == {"policy", "order"}:
        return f"{value['policy']}+{value['order']}"
    return value["policy"] if isinstance(value, Mapping) and value.keys() == {"policy"} else value


PolicyName = Annotated[str, Field(min_length=1), BeforeValidator(_policy_text)]
SeedCount = Annotated[int, Field(ge=1, le=10_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _each_once(values: tuple[Number, ...]) -> tuple[Number, ...]:
    """Refuse duplicates, because the same run twice would count as two independent runs."""
    if len(set(values)) < len(values):
        raise ValueError("every value once")
    return values


Seeds = Annotated[
    Annotated[SeedCount, Tag("<count>")]
    | Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_each_once), Tag("<list>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list | tuple) else "<count>"),
]


class SweepSpec(Spec):
    """The loads of the figure policy against load."""

    loads: Annotated[tuple[Positive, ...], AfterValidator(_each_once)] = Field(
        (0.5, 0.7, 0.8, 0.9, 0.95), description="offered loads; empty = no sweep"
    )


class ClusterPart(Spec):
    """Content of a cluster file: the cluster, and the models, adapters and classes it serves."""

    cluster: ClusterSpec = Field(description="nodes, node types, zones")
    models: Mapping[str, ItemFamily] = Field({}, description="name → model, or family of equal models")
    adapters: Mapping[str, ItemFamily] = Field({}, description="name → adapter, or family of equal adapters")
    classes: Mapping[str, ServiceClass] = Field(
        {}, description="name → class of requests; with a trace of a known format, may be left out"
    )

    @property
    def served(self) -> Served:
        """Models, adapters and classes."""
        return Served(self.models, self.adapters, self.classes)

    def cluster_part(self, **changed: Any) -> ClusterPart:
        """The part of it that a cluster file holds, with these keys changed."""
        own = {name: getattr(self, name) for name in ClusterPart.model_fields}
        return ClusterPart.model_validate(own | changed)

    def cluster_content(self) -> dict[str, Any]:
        """The values of a cluster file."""
        return self.cluster_part().model_dump(mode="json", exclude_defaults=True)

    @model_validator(mode="after")
    def _fits_together(self) -> ClusterPart:
        raise_field_errors(self._field_errors(), SCENARIO_TITLE)
        return self

    def _field_errors(self) -> Iterator[FieldError]:
        yield from cluster_field_errors(self.cluster)
        yield from served_field_errors(self.served, self.cluster)


class Scenario(ScenarioFile, ClusterPart):
    """One scenario file. Two with the same `hash()`, and the same trace if any, give the same runs."""

    chains: Mapping[str, ChainSection] = Field(
        {}, description="name → graph of stages; runs of it in the mix"
    )
    name: str = Field("scenario", min_length=1, description="short name, for tables and reports")
    description: str = Field("", description="description, for reports")
    workload: WorkloadSpec = Field(description="the arriving requests")
    queues: Queues | None = Field(
        None, description="name → queue: what tenants may hold together; null = they compete directly"
    )
    faults: tuple[FaultSpec, ...] = Field((), description="failures and slow-downs of nodes")
    background: tuple[BackgroundSpec, ...] = Field((), description="work that others send to nodes")
    serving: ServingSpec = Field(ServingSpec(), description="options of serving")
    policies: tuple[PolicyName, ...] = Field(
        (),
        description="policies to compare: NAME, NAME+ORDER or {policy: NAME, order: ORDER}; "
        "empty = the default comparison",
    )
    seeds: Seeds = Field(5, description="number of seeds (0, 1, …), or a list of seeds")
    sweep: SweepSpec = Field(SweepSpec(), description="loads of the sweep")
    sort_by: str = Field("completion_mean_s", description="metric that the comparison is sorted by")

    def _field_errors(self) -> Iterator[FieldError]:
        yield from cluster_field_errors(self.cluster)
        yield from served_field_errors(super().served, self.cluster)
        yield from chain_field_errors(self.chains, super().served, self.cluster)
        yield from workload_field_errors(self.workload, self.served, self.cluster, self.chains)
        yield from struck_field_errors("faults", self.faults, self.cluster)
        yield from background_field_errors(self.background, self.serving.telemetry.noise_frac, self.cluster)
        yield from store_field_errors(self.cluster, self.serving.on_failure)

    @property
    def served(self) -> Served:
        """The models and classes, with a class for the runs of each chain."""
        return Served(self.models, self.adapters, {**self.classes, **run_classes(self.chains)})

    def n_requests(self) -> int:
        """Number of arriving requests; reads the trace, if there is one."""
        if self.workload.generate is not None:
            return self.workload.generate.requests
        assert self.workload.trace is not None
        return recorded_rows(self.workload.trace)

    def has_chains(self) -> bool:
        """Whether some requests are runs of chains; reads the trace, if there is one."""
        trace = self.workload.trace
        return bool(self.chains) if trace is None else holds_runs(trace)

    def ends_early(self) -> bool:
        """Whether a run may end before all work is done."""
        return self.serving.horizon_s is not None

    def with_overrides(
        self,
        *,
        trace: str | Path | None = None,
        cluster: ClusterPart | None = None,
        load: float | None = None,
        policies: Sequence[str] | None = None,
        seeds: int | Sequence[int] | None = None,
    ) -> Scenario:
        """The scenario with some parts replaced; None keeps a part.

        A trace replaces the generator and keeps the rest of the workload, `load` included. A cluster that
        brings classes replaces models, adapters and classes too; those of a whole scenario are only taken
        where this one has none.

        Raises:
            ScenarioError: a value that is not allowed, or parts that do not fit together.
        """
        changed: dict[str, Any] = {} if cluster is None else self._cluster_fields(cluster)
        if trace is not None or load is not None:
            changed["workload"] = self._workload(trace, load)
        return self.replaced(policies=policies, seeds=seeds, **changed)

    def _cluster_fields(self, part: ClusterPart) -> dict[str, Any]:
        taken = part.classes and not (isinstance(part, Scenario) and self.classes)
        names = ("cluster", "models", "adapters", "classes") if taken else ("cluster",)
        return {name: getattr(part, name) for name in names}

    def _workload(self, trace: str | Path | None, load: float | None) -> dict[str, Any]:
        changed: dict[str, Any] = dict(self.workload)
        if trace is not None:
            changed |= {"generate": None, "trace": TraceSpec(file=Path(trace))}
        if load is not None:
            changed["load"] = load
        return changed


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(),
        "title": SCENARIO_TITLE,
    }
