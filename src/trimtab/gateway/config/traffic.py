"""Traffic in gateway.yaml: queue, limits, timeouts, retries, hedging, fairness, prefix index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trimtab.gateway.config.keys import TenantLimits
from trimtab.gateway.config.types import Count, CountOrNone, Model
from trimtab.validation.base import Frac, NonNegative, Positive, Spec

MIB = 1024 * 1024


class QueueSpec(Spec):
    """The central queue of requests that no node has room for."""

    max_requests: CountOrNone = Field(1000, description="requests that may wait; a further one gets 503")
    max_wait_s: Positive = Field(60.0, description="longest wait, then 503")
    hold_s: NonNegative = Field(10.0, description="wait of a known model while no node of it is ready")
    background_reserve_frac: Frac = Field(
        0.1, description="share of a node's capacity that background work leaves free"
    )


class LimitsSpec(TenantLimits):
    """Default limits of tenants, and limits of connections and bodies."""

    body_bytes: Count = Field(512 * MIB, description="longest body of a request; a longer one gets 413")
    head_bytes: Count = Field(32 * 1024, ge=1024, description="longest head of a request; else 431")
    headers: Count = Field(100, description="most header fields of a request; else 431")
    buffered_bytes: Count = Field(256 * MIB, description="bodies kept in memory, in all; then 503")
    connections: Count = Field(16_384, description="connections of clients at a time")
    slow_client_s: Positive = Field(
        15.0, description="time for a whole head; and for a body, on top of 1 KiB/s"
    )

    def tenant(self) -> TenantLimits:
        """The limits that apply per tenant."""
        return TenantLimits(**{name: getattr(self, name) for name in TenantLimits.model_fields})


class ModelTimeouts(Spec):
    """Timeouts of one model. Missing values are those of all models."""

    connect_s: Positive | None = Field(None, description="until a connection stands")
    first_byte_s: Positive | None = Field(None, description="until the first byte of the answer's body")
    idle_s: Positive | None = Field(None, description="between two bytes of the answer")
    total_s: Positive | None = Field(None, description="until the last byte of the answer")


class Timeouts(Spec):
    """Time limits of backends."""

    connect_s: Positive = Field(5.0, description="until a connection stands")
    first_byte_s: Positive = Field(300.0, description="until the first byte of the answer's body")
    idle_s: Positive = Field(120.0, description="between two bytes of the answer")
    total_s: Positive = Field(3600.0, description="until the last byte of the answer")


class TimeoutsSpec(Spec):
    """Timeouts of all models, and of single ones."""

    default: Timeouts = Field(Timeouts(), description="for all models")
    models: Mapping[Model, ModelTimeouts] = Field({}, description="model → what differs for it")

    def of(self, model: str) -> Timeouts:
        """The timeouts of one model."""
        own = self.models.get(model)
        return (
            self.default if own is None else self.default.model_copy(update=own.model_dump(exclude_none=True))
        )


class RetriesSpec(Spec):
    """Further attempts on other nodes, before the first byte of a response."""

    max: int = Field(2, ge=0, le=2, description="further attempts of one request")
    budget_frac: Frac = Field(0.2, description="further attempts as a fraction of all requests")


class HedgeSpec(Spec):
    """A second attempt beside a slow first one."""

    enabled: bool = Field(False, description="whether there are any")
    max_frac: Annotated[float, Field(ge=0, le=0.05)] = Field(
        0.05, description="second attempts as a fraction of all requests"
    )
    after_s: Positive = Field(1.0, description="wait for the first byte, then a second attempt")


class FairnessSpec(Spec):
    """Token-weighted fair queueing (VTC, Sheng et al., OSDI '24)."""

    vtc: bool = Field(False, description="waiting work is served by the tenants' virtual counters")
    prompt_weight: NonNegative = Field(1.0, description="what a prompt token counts")
    output_weight: Positive = Field(2.0, description="what an output token counts")


class PrefixCacheSpec(Spec):
    """The index of prompts that nodes have seen, for policies that read it."""

    enabled: bool = Field(True, description="whether prompts are hashed")
    max_blocks: Count = Field(100_000, description="hashes that are kept, in all")
