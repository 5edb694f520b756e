"""The sections `serving` and faults: treatment of requests, and failures of nodes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class TelemetrySpec(Spec):
    """How old a policy's view of the nodes is."""

    period_s: NonNegative = Field(0.0, description="nodes report at multiples of this; 0 = always fresh")
    delay_s: NonNegative = Field(0.0, description="a report becomes visible this much later")

    @model_validator(mode="after")
    def _delay_needs_period(self) -> TelemetrySpec:
        if self.delay_s and not self.period_s:
            raise ValueError("a period_s above 0 together with delay_s")
        return self


class PrefixCacheSpec(Spec):
    """Prefix caches of nodes, for requests with prompts (a trace's prefix_blocks, or workload.prompts)."""

    blocks: int = Field(0, ge=0, description="blocks that each node keeps, least recently used first to go")


class ResultCacheSpec(Spec):
    """Results that answer equal requests of a tenant (a trace's content, workload.contents)."""

    entries: int = Field(0, ge=0, description="results that are kept, least recently used first to go")
    tenants: tuple[str, ...] | None = Field(None, description="tenants whose requests may use it; null = all")


class ServingSpec(Spec):
    """Switches of serving, the same for every policy."""

    held_max: int | None = Field(None, ge=0, description="requests a central queue holds; null = any number")
    on_refusal: Literal["hold", "reject"] = Field("hold", description="when every candidate refuses")
    lookahead: int = Field(1, ge=1, description="held requests that one pass may offer without success")
    lane_per_class: bool = Field(
        False, description="so that a class which no node can take now does not stand in others' way"
    )
    cancel: Literal["never", "waiting", "always"] = Field(
        "never", description="which requests are cancelled at their deadline"
    )
    on_failure: Literal["restart", "resume"] = Field("restart", description="work on a node that fails")
    max_retries: int = Field(2, ge=0, description="how often a request may lose its node before it is lost")
    dispatchers: int = Field(1, ge=1, description="independent dispatchers; request i goes to i mod this")
    telemetry: TelemetrySpec = Field(TelemetrySpec(), description="how old the view of the nodes is")
    plan_latency_s: NonNegative = Field(0.0, description="a plan takes force this long after it was started")
    prefix_cache: PrefixCacheSpec = Field(PrefixCacheSpec(), description="of every node; off by default")
    result_cache: ResultCacheSpec = Field(ResultCacheSpec(), description="of the dispatcher; off by default")
    eviction: Literal["lru", "greedy-dual-size", "plan-pinned"] = Field(
        "lru",
        description="which model or adapter leaves a node: the least recently used; the one of least load "
        "seconds per GiB, aged by use; or lru, and nodes refuse what does not fit beside what the plan keeps",
    )
    horizon_s: Positive | None = Field(None, description="end of the run; null = when all work is done")


class FaultSpec(Spec):
    """Nodes that fail or slow down, once (at_s, duration_s) or again and again (mtbf_s, mttr_s)."""

    node: str | None = Field(None, description="only this node, by name")
    type: str | None = Field(None, description="only nodes of this type")
    zone: str | None = Field(None, description="only nodes of this zone")
    share_frac: Frac = Field(1.0, description="share of these nodes, drawn from the seed")
    factor: float = Field(0.0, ge=0, lt=1, description="speed meanwhile; 0 = down")
    at_s: NonNegative | None = Field(None, description="begin")
    duration_s: Positive | None = Field(None, description="how long")
    mtbf_s: Positive | None = Field(None, description="mean time between faults, exponential")
    mttr_s: Positive | None = Field(None, description="mean time to repair, exponential")

    @model_validator(mode="after")
    def _once_or_recurring(self) -> FaultSpec:
        once = (self.at_s is not None, self.duration_s is not None)
        recurring = (self.mtbf_s is not None, self.mttr_s is not None)
        if sorted([once, recurring]) != [(False, False), (True, True)]:
            raise ValueError("either at_s and duration_s, or mtbf_s and mttr_s")
        return self
