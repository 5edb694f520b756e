"""Models and zones in gateway.yaml: what is declared of them, for policies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

from pydantic import Field

from trimtab.domain.cluster import ResourceName
from trimtab.gateway.config.node_entries import MOST, NodeEntry
from trimtab.gateway.config.types import Model
from trimtab.validation.base import NonNegative, Positive, Spec
from trimtab.validation.names import FieldError, known

Demand = Mapping[ResourceName, Annotated[float, Field(ge=0, le=MOST)]]
"""Resource → how much of it one request takes."""

Zone = Annotated[str, Field(min_length=1, max_length=100)]


class ModelSpec(Spec):
    """A model or adapter, for policies. What is not declared is learned, or unknown."""

    memory_gib: NonNegative = Field(0.0, description="memory that it takes on a node; 0 = unknown")
    demand: Demand = Field(
        {}, description="resource → what one request takes; default: learned from nodes' reports"
    )
    usd_per_million_prompt_tokens: NonNegative | None = Field(
        None, description="price of prompt tokens, for budgets of keys"
    )
    usd_per_million_output_tokens: NonNegative | None = Field(
        None, description="price of output tokens, for budgets of keys"
    )

    split: bool = Field(
        False, description="serve arrays of embeddings or prompts, and several images, in parts as plans say"
    )
    batch: bool = Field(False, description="send requests for embeddings of a tenant together, as plans say")


class ZoneSpec(Spec):
    """A zone, for policies."""

    ingress_gib_per_s: Positive | None = Field(
        None, description="bandwidth of the link into the zone; default: no limit"
    )
    rtt_s: Mapping[Zone, NonNegative] = Field(
        {}, description="zone → round trip to it, in both directions; default: measured by health checks"
    )


Models = Mapping[Model, ModelSpec]
Zones = Mapping[Zone, ZoneSpec]


def zone_field_errors(zones: Zones, in_use: Collection[str]) -> Iterator[FieldError]:
    """Round trips to zones that nothing is in, and pairs of zones with two different round trips."""
    for name, zone in zones.items():
        for other, rtt_s in zone.rtt_s.items():
            path = ("zones", name, "rtt_s", other)
            yield from known(path, other, {*zones, *in_use}, "zone")
            back_s = zones[other].rtt_s.get(name, rtt_s) if other in zones else rtt_s
            if back_s != rtt_s and name < other:
                yield FieldError(path, rtt_s, f"the same as zones.{other}.rtt_s.{name}, which is {back_s:g}")


def demand_field_errors(models: Models, nodes: Collection[NodeEntry]) -> Iterator[FieldError]:
    """Demands that no node of the model can hold, where all of them declare their capacity."""
    for name, model in models.items():
        serving = [node for node in nodes if name in (*node.models, *node.adapters)]
        for resource, amount in model.demand.items():
            capacities = [node.capacity.resources.get(resource) for node in serving]
            most = max((has for has in capacities if has is not None), default=0.0)
            if capacities and None not in capacities and amount > most:
                expected = f"at most {most:g}, the capacity of the largest of its nodes"
                yield FieldError(("models", name, "demand", resource), amount, expected)
