"""How nodes of a type serve: a request a slot, or as engines that serve a batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class SharedService(Spec):
    """All requests at once, each slower the more there are, like a processor that is shared."""

    kind: Literal["processor-sharing"] = Field(description="at full speed up to as many as slots")
    batch_max: int = Field(1024, ge=1, le=1 << 20, description="requests served at once; others wait")


BatchSize = Annotated[int, Field(ge=1, le=1 << 16)]
MeasuredSeconds = Mapping[BatchSize, Annotated[Mapping[NonNegative, Positive], Field(min_length=1)]]


class TableService(Spec):
    """All requests at once, at measured speeds: of every size alike, or by size.

    More than the largest measured number are not served at once. Between measured numbers and sizes seconds
    are linear. A request below the least measured size takes as long as that; one above the largest does not
    run on such nodes, since a table does not tell how seconds go on, or that memory suffices.
    """

    kind: Literal["table"] = Field(description="seconds by the number of requests, as measured")
    slowdown: Mapping[BatchSize, Positive] | None = Field(
        None,
        min_length=1,
        description="number of requests served at once → seconds of one over those alone; linear between",
    )
    seconds: MeasuredSeconds | None = Field(
        None,
        min_length=1,
        description="number of requests served at once → size → seconds of one; linear between. They take "
        "the place of fixed_s and unit_s of classes; null there: the type can't serve the class",
    )
    file: Path | None = Field(
        None, description="seconds, as CSV with columns batch, size and seconds, a measurement a row"
    )

    @model_validator(mode="after")
    def _one_of_three(self) -> TableService:
        if sum(given is not None for given in (self.slowdown, self.seconds, self.file)) != 1:
            raise ValueError("one of slowdown, seconds and file")
        return self

    @field_validator("seconds")
    @classmethod
    def _of_a_grid(cls, seconds: MeasuredSeconds | None) -> MeasuredSeconds | None:
        if gap := gap_in({} if seconds is None else seconds):
            raise ValueError(f"every size at every number of requests, also size {gap[1]:g} at {gap[0]}")
        return seconds


def gap_in(seconds: MeasuredSeconds) -> tuple[int, float] | None:
    """A number of requests and a size that is measured at others only; None if there is none."""
    sizes = sorted({size for of in seconds.values() for size in of})
    return next(((n, size) for n, of in sorted(seconds.items()) for size in sizes if size not in of), None)


class ModelService(Spec):
    """A language model by iterations over a batch, as vLLM serves it."""

    kind: Literal["llm"] = Field(description="continuous batching with chunked prefill")
    profile: str = Field(description="a built-in profile (`trimtab profile list`), or a file of one")
    batch_max: int | None = Field(
        None, ge=1, le=1 << 16, description="requests in a batch (max_num_seqs); default: the profile's"
    )
    token_budget: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description="tokens of an iteration (max_num_batched_tokens); default: the profile's",
    )
    kv_tokens: int | None = Field(
        None, ge=2, description="tokens that the KV memory holds; default: from the profile's memory"
    )
    watermark_frac: Frac = Field(0.0, description="fraction of it kept free when a request joins the batch")
    adapters_max: int | None = Field(
        None, ge=1, description="different adapters in a batch (max_loras); null = unbounded"
    )
    hosts: int = Field(
        1, ge=1, le=1 << 10, description="hosts that a replica spans: it is down while any of them is"
    )
    role: Literal["both", "prefill", "decode"] = Field(
        "both", description="what it does of requests of classes with disaggregated: true"
    )
    preempt: Literal["last", "priority"] = Field(
        "last", description="who leaves a full KV memory: admitted last, or least urgent"
    )


def has_seconds(service: SharedService | TableService | ModelService | None) -> bool:
    """Whether a service tells its own seconds, in place of those of classes."""
    return isinstance(service, ModelService) or (
        isinstance(service, TableService) and service.slowdown is None
    )


NodeService = Annotated[SharedService | TableService | ModelService, Field(discriminator="kind")]
