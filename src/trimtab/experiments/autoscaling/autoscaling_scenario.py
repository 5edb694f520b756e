"""A scenario of pools of nodes that grow and shrink with their requests, as one checked value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field, model_validator

from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.scenario_files import ScenarioFiles
from trimtab.experiments.scenario.spec.scenario import PolicyName, Seeds
from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
from trimtab.validation.base import Frac, NonNegative, Positive, Spec
from trimtab.validation.names import FieldError, raise_field_errors


class PoolSpec(Spec):
    """One pool: the nodes of a type."""

    least: int = Field(1, ge=0, description="fewest nodes; 0 = it may scale to zero")
    most: int | None = Field(None, ge=1, description="most nodes; null = those of the cluster")
    initial: int | None = Field(None, ge=0, description="nodes at the start; null = the fewest, at least one")
    start_s: NonNegative = Field(60.0, description="from the order of a node until it serves, without models")
    cool_down_s: NonNegative = Field(0.0, description="after a change, in which no node is returned")


class AutoscalingScenario(ScenarioFile):
    """One scenario file with `kind: autoscaling`."""

    kind: Literal["autoscaling"] = Field("autoscaling", description="pools of nodes that grow and shrink")
    name: str = Field("pools", min_length=1, description="short name, for tables and reports")
    description: str = Field("", description="description, for reports")
    requests: Scenario = Field(description="cluster, models, classes and workload of the requests")
    serve_with: str = Field("late-binding", description="policy of the requests")
    pools: Mapping[str, PoolSpec] = Field(min_length=1, description="node type → its pool; other nodes stay")
    period_s: Positive = Field(15.0, description="the rule decides so often")
    slo_target_frac: Frac = Field(0.95, description="of requests; the cheapest rule that attains it is best")
    policies: tuple[PolicyName, ...] = Field((), description="rules; empty = all of them")
    seeds: Seeds = Field(3, description="number of seeds (0, 1, …), or a list of seeds")
    sort_by: str = Field("usd", description="metric that the comparison is sorted by")

    @model_validator(mode="after")
    def _pools_fit(self) -> AutoscalingScenario:
        wrong: list[FieldError] = []
        counts: dict[str, int] = {}
        for group in self.requests.cluster.nodes:
            counts[group.type] = counts.get(group.type, 0) + group.count
        for name, pool in self.pools.items():
            here: tuple[str | int, ...] = ("pools", name)
            if name not in counts:
                wrong.append(FieldError(here, name, f"a type of requests.cluster.nodes: {', '.join(counts)}"))
                continue
            most = counts[name] if pool.most is None else pool.most
            if most > counts[name]:
                text = f"at most the {counts[name]} nodes of that type in requests.cluster.nodes"
                wrong.append(FieldError((*here, "most"), most, text))
            if pool.least > most:
                wrong.append(FieldError((*here, "least"), pool.least, f"at most {most}, the most nodes"))
            if pool.initial is not None and not pool.least <= pool.initial <= most:
                wrong.append(FieldError((*here, "initial"), pool.initial, f"from {pool.least} to {most}"))
        if wrong:
            raise_field_errors(wrong, "autoscaling scenario")
        return self


AUTOSCALED: Final = ScenarioFiles(
    AutoscalingScenario, "trimtab.experiments.autoscaling", "requests and pools of nodes"
)
