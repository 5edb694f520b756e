"""Models and adapters that nodes hold, and the classes of requests that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field, model_validator

from trimtab.experiments.scenario.spec.shared_types import Demand, FloatArray, PerType, zipf_fractions
from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class ItemFamily(Spec):
    """Models, or adapters, of equal size: a base model and its fine-tuned versions, or the LoRAs for it."""

    memory_gib: NonNegative = Field(description="memory of one of them")
    load_s: PerType = Field(0.0, description="seconds to load one: a number, or every node type → seconds")
    count: int = Field(1, ge=1, description="how many there are; called NAME-1, NAME-2, … if more than one")
    zipf: NonNegative = Field(1.0, description="popularity of the k-th is proportional to k^-zipf; 0 = equal")

    @property
    def popularity_frac(self) -> FloatArray:
        """Share of each member [count]."""
        return zipf_fractions(self.count, self.zipf)

    def names(self, family: str) -> tuple[str, ...]:
        """Names of the members, most popular first."""
        if self.count == 1:
            return (family,)
        return tuple(f"{family}-{k}" for k in range(1, self.count + 1))


class SplitSpec(Spec):
    """Requests that can be split into parts: images, tiles. Each part pays the class's fixed_s again."""

    part_units: Positive = Field(
        description="estimated size of a part at least; k times as much can be k parts"
    )
    parts_max: int = Field(8, ge=2, description="most parts of one request")
    join_s: NonNegative = Field(0.0, description="seconds to join the parts, in no slot")


class BatchSpec(Spec):
    """Requests that can be served together in one slot, if they use the same model."""

    marginal_frac: Frac = Field(
        description="share of its own service that each but the longest adds to that of the batch"
    )


class ServiceClass(Spec):
    """Requests that are served alike: (fixed_s + unit_s × size) seconds, the size in `unit`s."""

    model: str | None = Field(None, description="model family that a node must hold, a key of models")
    adapter: str | None = Field(None, description="adapter family that requests may bring, a key of adapters")
    fixed_s: PerType = Field(
        0.0,
        description="seconds whatever the size: one number, at speed 1, or node type → seconds "
        "(left out or null: that type can't serve this class)",
    )
    unit_s: PerType = Field(0.0, description="seconds per unit of size, likewise")
    prompt_token_units: NonNegative = Field(
        0.0, description="work units of a prompt token, which one in a node's prefix cache saves"
    )
    unit: str = Field("unit", description="what the size counts, for tables")
    slo_s: Positive | None = Field(None, description="completion that is promised; null = none")
    demand: Demand = Field(
        {}, description="resource → what a request takes of its node's resources while it holds a slot"
    )

    split: SplitSpec | None = Field(None, description="null = never split; else as a policy plans it")
    batch: BatchSpec | None = Field(None, description="null = never batched; else as a policy plans it")

    @model_validator(mode="after")
    def _adapter_has_model(self) -> ServiceClass:
        if self.adapter is not None and self.model is None:
            raise ValueError("a model together with the adapter")
        return self

    def service_on(self, type_name: str, speed: float) -> tuple[float, float] | None:
        """(fixed_s, unit_s) on a node type; None where it can't serve this class."""
        fixed_s, unit_s = (_on(table, type_name, speed) for table in (self.fixed_s, self.unit_s))
        return None if fixed_s is None or unit_s is None else (fixed_s, unit_s)


def _on(table: float | Mapping[str, float | None], type_name: str, speed: float) -> float | None:
    return table.get(type_name) if isinstance(table, Mapping) else table / speed


@dataclass(frozen=True, slots=True)
class Served:
    """Everything that is served, by name."""

    models: Mapping[str, ItemFamily]
    adapters: Mapping[str, ItemFamily]
    classes: Mapping[str, ServiceClass]
