"""How nodes of a type serve: a request a slot, or as engines that serve a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trimtab.validation.base import Frac, Positive, Spec


class SharedService(Spec):
    """All requests at once, each slower the more there are, like a processor that is shared."""

    kind: Literal["processor-sharing"] = Field(description="at full speed up to as many as slots")
    batch_max: int = Field(1024, ge=1, le=1 << 20, description="requests served at once; others wait")


class TableService(Spec):
    """All requests at once, at measured speeds."""

    kind: Literal["table"] = Field(description="seconds by the number of requests, as measured")
    slowdown: Mapping[int, Positive] = Field(
        min_length=1,
        description="number of requests served at once → seconds of one over those alone; linear between",
    )

    @model_validator(mode="after")
    def _sizes(self) -> TableService:
        if min(self.slowdown) < 1:
            raise ValueError("numbers of requests of 1 or more in slowdown")
        return self

    @property
    def batch_max(self) -> int:
        """The largest measured number: more are not served at once."""
        return max(self.slowdown)


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


NodeService = Annotated[SharedService | TableService | ModelService, Field(discriminator="kind")]
