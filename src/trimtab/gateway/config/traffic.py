"""Traffic in gateway.yaml: queue, limits, timeouts, retries, hedging, fairness, prefix index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from trimtab.gateway.config.keys import TenantLimits
from trimtab.gateway.config.types import Count, CountOrNone, Model, Origin
from trimtab.validation.base import Frac, NonNegative, Positive, Spec

MIB = 1024 * 1024


class QueueSpec(Spec):
    """The central queue of requests that no node has room for."""

    max_requests: CountOrNone = Field(1000, description="waiting requests; a further one gets 503")
    max_wait_s: Positive = Field(60.0, description="longest wait, then 503")
    max_wait_no_ready_node_s: NonNegative = Field(
        10.0, description="longest wait while no node of the model is ready, then 503"
    )
    background_reserve_frac: Frac = Field(
        0.1, description="fraction of a node's capacity that background requests leave free"
    )


class LimitsSpec(TenantLimits):
    """Default limits of tenants, and limits of connections and bodies."""

    shared: bool = Field(
        False, description="share the limits of tenants with replicas that have the same store"
    )
    body_bytes: Count = Field(512 * MIB, description="largest body of a request; a larger one gets 413")
    head_bytes: Count = Field(
        32 * 1024, ge=1024, description="largest head of a request; a larger one gets 431"
    )
    headers: Count = Field(100, description="header fields of a request; more get 431")
    buffered_bytes: Count = Field(
        256 * MIB, description="bodies of all requests in memory; beyond it a request gets 503"
    )
    connections: Count = Field(16_384, description="concurrent connections of clients")
    request_read_timeout_s: Positive = Field(
        15.0, description="time to receive a request's head, and its body; a body has 1 s more for each KiB"
    )

    def tenant(self) -> TenantLimits:
        """The limits that apply per tenant."""
        return TenantLimits(**{name: getattr(self, name) for name in TenantLimits.model_fields})


class CorsSpec(Spec):
    """Pages of other origins that browsers let use the gateway (CORS)."""

    allowed_origins: tuple[Origin, ...] = Field(
        (), description="origins such as https://app.example.org; default: none"
    )
    max_age_s: NonNegative = Field(
        600.0, description="how long a browser may remember the answer to a preflight"
    )


class ModelTimeouts(Spec):
    """Timeouts of one model. A missing value is that of `default`."""

    connect_s: Positive | None = Field(None, description="time to connect")
    first_byte_s: Positive | None = Field(None, description="time to the first byte of the response body")
    idle_s: Positive | None = Field(None, description="time between two bytes of the response")
    total_s: Positive | None = Field(None, description="time to the last byte of the response")


class Timeouts(Spec):
    """Time limits of backends."""

    connect_s: Positive = Field(5.0, description="time to connect")
    first_byte_s: Positive = Field(300.0, description="time to the first byte of the response body")
    idle_s: Positive = Field(120.0, description="time between two bytes of the response")
    total_s: Positive = Field(3600.0, description="time to the last byte of the response")


class TimeoutsSpec(Spec):
    """Timeouts of all models, and of single ones."""

    default: Timeouts = Field(Timeouts(), description="timeouts of models without their own")
    models: Mapping[Model, ModelTimeouts] = Field({}, description="model → its timeouts, where they differ")

    def of(self, model: str) -> Timeouts:
        """The timeouts of one model."""
        own = self.models.get(model)
        return (
            self.default if own is None else self.default.model_copy(update=own.model_dump(exclude_none=True))
        )


class RetriesSpec(Spec):
    """Retries on other nodes, before the first byte of a response."""

    max_per_request: int = Field(2, ge=0, le=2, description="retries of one request")
    budget_frac: Frac = Field(0.2, description="retries of a tenant as a fraction of its requests")


class HedgeSpec(Spec):
    """A second attempt beside a slow first one."""

    enabled: bool = Field(False, description="send second attempts")
    max_frac: Annotated[float, Field(ge=0, le=0.05)] = Field(
        0.05, description="second attempts as a fraction of all requests"
    )
    delay_s: Positive = Field(
        1.0, description="time without a first byte after which the second attempt starts"
    )


class FairnessSpec(Spec):
    """Token-weighted fair queueing (VTC, Sheng et al., OSDI '24), and costs of waiting."""

    enabled: bool = Field(
        False, description="the waiting tenant with the least virtual token counter is served first"
    )
    prompt_weight: NonNegative = Field(1.0, description="cost of a prompt token")
    output_weight: Positive = Field(2.0, description="cost of an output token")
    holding_cost: Mapping[Model, Positive] = Field(
        {}, description="model → cost of a second that a request waits, relative; else 1: for the order cmu"
    )


class ResultCacheSpec(Spec):
    """Answers of deterministic requests, for routes with `cache`."""

    max_entries: Count = Field(10_000, description="answers that are kept, of all tenants")
    max_bytes: Count = Field(64 * MIB, description="their size in memory")
    max_age_s: Positive = Field(3600.0, description="how long an answer is kept, unless it says less itself")


class PrefixCacheSpec(Spec):
    """The index of prompts that nodes have seen, for policies that read it."""

    enabled: bool = Field(True, description="keep the index")
    max_blocks: Count = Field(100_000, description="blocks in the index, all nodes together")
