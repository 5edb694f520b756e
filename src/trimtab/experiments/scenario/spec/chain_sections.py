"""Chains: graphs of stages that a request of the mix can be a run of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from trimtab.domain.chains import HOST_RETRIES, Flow, OnStageFailure, StageSpec, check_stages
from trimtab.errors import ChainError
from trimtab.experiments.scenario.spec.amounts import Amount
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.service_classes import Served, ServiceClass
from trimtab.experiments.scenario.spec.workload import ContentSpec
from trimtab.traces.generators import ConstantSizes
from trimtab.validation.base import Frac, Positive, Spec
from trimtab.validation.names import FieldError, known

FlowName = Literal["all", "each"]


def _named(value: object) -> object:
    """A list of predecessors reads all instances of each."""
    if not isinstance(value, list | tuple):
        return value
    if any(value.count(name) > 1 for name in value):
        raise ValueError("each stage once")
    return dict.fromkeys(value, "all")


class StageSection(Spec):
    """One stage of a chain. It is served like a request of its class."""

    model_config = ConfigDict(serialize_by_alias=True)

    service_class: str = Field(alias="class", description="class that it is served as, a key of classes")
    size: Amount = Field(description="work units of one instance")
    after: Annotated[Mapping[str, FlowName], BeforeValidator(_named)] = Field(
        {},
        description="stages whose outputs it reads: a list, or stage → all (each instance reads the outputs "
        "of all instances) or each (instance i reads the output of instance i)",
    )
    count: Amount | None = Field(None, description="instances of a map, drawn for each run; null = one")
    expected_count: Positive | None = Field(
        None, description="instances that policies expect; needed where count is drawn"
    )
    like: str | None = Field(None, description="another stage, which has as many instances")
    output_gib: Amount | None = Field(None, description="size of the output of one instance; null = nothing")
    when_frac: Frac = Field(1.0, description="share of the runs in which it is not skipped")
    on_failure: Literal["fail", "skip", "default"] = Field(
        "fail",
        description="an instance that is not served fails the run, is left out, or gives a default of size 0",
    )
    failed_max_frac: Frac = Field(1.0, description="share of a map's instances that may be left out")
    max_retries: int | None = Field(None, ge=0, description="lost attempts it survives; null = serving's")
    error_frac: Frac = Field(0.0, description="probability that an attempt ends in an error")
    deterministic: bool = Field(
        True, description="equal inputs give an equal output, which serving.stage_results may keep"
    )
    stored: bool = Field(False, description="its output outlives the node that made it")

    @model_validator(mode="after")
    def _counted(self) -> StageSection:
        if self.count is not None and self.like is not None:
            raise ValueError("either count or like")
        is_drawn = self.count is not None and not isinstance(self.count, ConstantSizes)
        if is_drawn and self.expected_count is None:
            raise ValueError("expected_count, as count is drawn: policies see the expectation only")
        return self

    @property
    def mean_count(self) -> float:
        """Instances that policies expect."""
        if self.expected_count is not None:
            return self.expected_count
        return float(self.count.value) if isinstance(self.count, ConstantSizes) else 1.0

    def template(self, *, is_map: bool) -> StageSpec:
        """The stage as the loop has it."""
        return StageSpec(
            after={name: Flow[flow.upper()] for name, flow in self.after.items()},
            on_failure=OnStageFailure[self.on_failure.upper()],
            max_retries=HOST_RETRIES if self.max_retries is None else self.max_retries,
            failed_max_frac=self.failed_max_frac,
            error_frac=self.error_frac,
            is_stored=self.stored,
            is_map=is_map,
        )


class ChainSection(Spec):
    """A directed acyclic graph of stages."""

    stages: Mapping[str, StageSection] = Field(min_length=1, description="name → stage")
    slo_s: Positive | None = Field(None, description="completion of a run that is promised; null = none")
    contents: ContentSpec | None = Field(
        None, description="inputs of runs, by rank; runs of equal inputs are equal; null = none are"
    )

    def run_class(self) -> ServiceClass:
        """The class of its runs. No node serves it: nodes serve the stages."""
        return ServiceClass(fixed_s={}, unit_s={}, slo_s=self.slo_s, unit="run")

    def repeatable_stages(self) -> frozenset[str]:
        """Stages that are deterministic, as are all before them."""
        found: set[str] = set()
        waiting = dict(self.stages)
        while ready := [n for n, s in waiting.items() if not s.after.keys() & waiting.keys()]:
            for name in ready:
                stage = waiting.pop(name)
                if stage.deterministic and stage.after.keys() <= found:
                    found.add(name)
        return frozenset(found)

    def templates(self) -> dict[str, StageSpec]:
        """The stages as the loop has them."""
        return {
            name: stage.template(is_map=self.stages[self.counted_like(name)].count is not None)
            for name, stage in self.stages.items()
        }

    def counted_like(self, name: str) -> str:
        """The stage whose count decides that of a stage."""
        seen = {name}
        while (like := self.stages[name].like) is not None and like in self.stages and like not in seen:
            name = like
            seen.add(name)
        return name


Chains = Mapping[str, ChainSection]


def chain_field_errors(chains: Chains, served: Served, cluster: ClusterSpec) -> Iterator[FieldError]:
    """Names in chains, cycles, and stages that no node type serves."""
    for chain, section in chains.items():
        if chain in served.classes:
            yield FieldError(("chains", chain), chain, "a name that no class has")
        for name, stage in section.stages.items():
            path = ("chains", chain, "stages", name)
            yield from known((*path, "class"), stage.service_class, served.classes, "class")
            yield from _size_field_errors(path, stage, section)
            service = served.classes.get(stage.service_class)
            types = cluster.types.items()
            if service is not None and all(service.service_on(n, t.speed) is None for n, t in types):
                yield FieldError((*path, "class"), stage.service_class, "a class that some node type serves")
        yield from _graph_field_errors(chain, section)


def _size_field_errors(
    path: tuple[str, ...], stage: StageSection, chain: ChainSection
) -> Iterator[FieldError]:
    if stage.like is not None:
        yield from known((*path, "like"), stage.like, chain.stages, "stage")
    for before, flow in stage.after.items():
        yield from known((*path, "after"), before, chain.stages, "stage")
        is_known = before in chain.stages and (stage.like is None or stage.like in chain.stages)
        own, other = (chain.counted_like(n) for n in (path[-1], before)) if is_known else (before, before)
        if flow == "each" and own != other and not _same_count(chain, own, other):
            expected = f"`like: {before}`, so that both stages have as many instances"
            yield FieldError((*path, "after", before), flow, expected)


def _same_count(chain: ChainSection, a: str, b: str) -> bool:
    counts = [chain.stages[name].count for name in (a, b)]
    return all(count is None or isinstance(count, ConstantSizes) for count in counts) and (
        chain.stages[a].mean_count == chain.stages[b].mean_count
    )


def _graph_field_errors(chain: str, section: ChainSection) -> Iterator[FieldError]:
    after = {name: stage.after for name, stage in section.templates().items()}
    try:
        check_stages(chain, after)
    except ChainError as error:
        if error.problem == "a cycle":  # names of stages are checked before
            yield FieldError(("chains", chain, "stages"), error.value, str(error.expected))
    for name in section.stages:
        if section.stages[section.counted_like(name)].like in section.stages:
            path = ("chains", chain, "stages", name, "like")
            yield FieldError(path, section.stages[name].like, "a stage that does not refer back to this one")


def run_classes(chains: Chains) -> Mapping[str, ServiceClass]:
    """Classes of the runs, by the names of the chains."""
    return {name: section.run_class() for name, section in chains.items()}
