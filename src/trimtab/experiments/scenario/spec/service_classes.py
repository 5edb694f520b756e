"""Models and adapters that nodes hold, and the classes of requests that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field, model_validator

from trimtab.experiments.scenario.spec.shared_types import Demand, FloatArray, PerType, zipf_fractions
from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class ItemFamily(Spec):
    """Models, or adapters, of equal size: a base model and its fine-tuned versions, or the LoRAs for it."""

    memory_gib: NonNegative = Field(description="memory of one member")
    load_s: PerType = Field(
        0.0, description="seconds to load one member: a number, or every node type → seconds"
    )
    count: int = Field(1, ge=1, description="number of members; more than one are called NAME-1, NAME-2, …")
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
    """Fork-join splitting of requests, such as images or tiles. Each part takes the class's fixed_s again."""

    part_units: Positive = Field(description="least estimated size of a part; k times as much can be k parts")
    parts_max: int = Field(8, ge=2, description="highest number of parts of a request")
    join_s: NonNegative = Field(0.0, description="seconds to join the parts, without a slot")


class BatchSpec(Spec):
    """Requests that can be served together in one slot, if they have the same model and shape."""

    marginal_frac: Frac = Field(
        description="fraction of its own service that each request but the longest adds to the batch"
    )
    same: tuple[str, ...] = Field(
        (),
        description="the shape: parts of the size (a product), or columns of the trace, that are equal "
        "within a batch, such as [steps, pixels]",
    )
    fixed_once: bool = Field(False, description="whether a batch takes fixed_s once, not for each request")


class ServiceClass(Spec):
    """A class of requests with the same service time, fixed_s + unit_s × size; the size is in `unit`s."""

    model: str | None = Field(None, description="model family that a node must hold, a key of models")
    adapter: str | None = Field(None, description="adapter family that requests may need, a key of adapters")
    fixed_s: PerType = Field(
        0.0,
        description="seconds independent of the size: one number, at speed 1, or node type → seconds "
        "(left out or null: that type can't serve this class)",
    )
    unit_s: PerType = Field(0.0, description="seconds per unit of size, in the same form")
    prompt_token_units: NonNegative = Field(
        0.0, description="work units of a prompt token, saved if the token is in the node's prefix cache"
    )
    unit: str = Field("unit", description="unit of the size, for tables")
    slo_s: Positive | None = Field(None, description="target of completion time; null = none")
    slo_ttft_s: Positive | None = Field(
        None, description="target of the time to the first token (TTFT); null = none"
    )
    slo_tpot_s: Positive | None = Field(
        None, description="target of the time per token after the first (TPOT); null = none"
    )
    holding_cost: Positive = Field(
        1.0, description="cost of a second that a request is in the system, relative: for the order cmu"
    )
    demand: Demand = Field({}, description="resource → amount that a request uses while it holds a slot")
    preemptible: bool = Field(
        True, description="whether a running request may be taken back for a queue below its guarantee"
    )
    disaggregated: bool = Field(
        False,
        description="whether prompts are read on nodes of one role, and tokens made on those of another",
    )
    split: SplitSpec | None = Field(None, description="null = never split; else the policy's plan decides")
    batch: BatchSpec | None = Field(None, description="null = never batched; else the policy's plan decides")

    @model_validator(mode="after")
    def _adapter_has_model(self) -> ServiceClass:
        if self.adapter is not None and self.model is None:
            raise ValueError("a model together with the adapter")
        return self

    def service_on(self, type_name: str, speed: float) -> tuple[float, float] | None:
        """(fixed_s, unit_s) on a node type; None if it cannot serve this class."""
        fixed_s, unit_s = (_on(table, type_name, speed) for table in (self.fixed_s, self.unit_s))
        return None if fixed_s is None or unit_s is None else (fixed_s, unit_s)


def _on(table: float | Mapping[str, float | None], type_name: str, speed: float) -> float | None:
    return table.get(type_name) if isinstance(table, Mapping) else table / speed


@dataclass(frozen=True, slots=True)
class Served:
    """Models, adapters and classes, by name."""

    models: Mapping[str, ItemFamily]
    adapters: Mapping[str, ItemFamily]
    classes: Mapping[str, ServiceClass]
    roles: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Classes of the stages of disaggregated ones: (class, "prefill" or "decode")."""
