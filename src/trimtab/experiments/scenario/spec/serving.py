"""The sections `serving` and faults: treatment of requests, and failures of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from trimtab.domain.cluster import ResourceName
from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class TelemetrySpec(Spec):
    """Delay and interval of the nodes' load reports."""

    period_s: NonNegative = Field(0.0, description="interval of nodes' load reports; 0 = always current")
    delay_s: NonNegative = Field(0.0, description="delay until a report is visible")
    noise_frac: Mapping[ResourceName, Frac] = Field(
        {},
        description="resource → largest relative error of its reported use; each report is multiplied by a "
        "factor, uniform between 1 − noise and 1 + noise",
    )

    @model_validator(mode="after")
    def _reports_need_period(self) -> TelemetrySpec:
        for field in ("delay_s", "noise_frac"):
            if getattr(self, field) and not self.period_s:
                raise ValueError(f"a period_s above 0 together with {field}")
        return self


class PrefixCacheSpec(Spec):
    """Prefix caches of nodes, for requests with prompts (a trace's prefix_blocks, or workload.prompts)."""

    blocks: int = Field(
        0, ge=0, description="capacity of each node, in blocks; the least recently used are evicted"
    )


class StageResultsSpec(Spec):
    """A store of outputs of deterministic stages; a stage of the same content is not served again."""

    gib: NonNegative = Field(0.0, description="size of the outputs that are kept; 0 = none")


class ResultCacheSpec(Spec):
    """Cache of results for equal requests of a tenant (a trace's content, workload.contents)."""

    entries: int = Field(0, ge=0, description="capacity, in results; the least recently used are evicted")
    tenants: tuple[str, ...] | None = Field(None, description="tenants that may use the cache; null = all")


class ServingSpec(Spec):
    """Options of serving, the same for every policy."""

    held_max: int | None = Field(None, ge=0, description="capacity of a central queue; null = unbounded")
    on_refusal: Literal["hold", "reject"] = Field(
        "hold", description="what happens to a request that every candidate refuses"
    )
    lookahead: int = Field(1, ge=1, description="held requests that one pass may offer before it gives up")
    lane_per_class: bool = Field(
        False, description="avoids head-of-line blocking by a class that no node can take now"
    )
    cancel: Literal["never", "waiting", "always"] = Field(
        "never", description="requests that are cancelled at their deadline"
    )
    on_failure: Literal["restart", "resume"] = Field(
        "restart", description="whether work on a failed node starts again or resumes"
    )
    max_retries: int = Field(
        2, ge=0, description="node failures that a request survives; one more and it is lost"
    )
    dispatchers: int = Field(
        1,
        ge=1,
        description="number of independent dispatchers; request i goes to dispatcher i mod this number",
    )
    telemetry: TelemetrySpec = Field(TelemetrySpec(), description="delay and interval of load reports")
    plan_latency_s: NonNegative = Field(
        0.0, description="time from the start of planning until a plan is in force"
    )
    prefix_cache: PrefixCacheSpec = Field(
        PrefixCacheSpec(), description="prefix cache of every node; default: off"
    )
    result_cache: ResultCacheSpec = Field(
        ResultCacheSpec(), description="result cache of the dispatcher; default: off"
    )
    stage_results: StageResultsSpec = Field(
        StageResultsSpec(), description="outputs of chains' stages that are used again; default: off"
    )
    resources: Literal["bound", "reported"] = Field(
        "bound",
        description="bound: requests wait until their demand of resources fits; reported: policies see the "
        "resources, but they hold up no request, as in a gateway",
    )
    eviction: Literal["lru", "greedy-dual-size", "plan-pinned"] = Field(
        "lru",
        description="which model or adapter leaves a node: the least recently used; the one of least load "
        "seconds per GiB, aged by use; or lru, and nodes refuse what does not fit beside what the plan keeps",
    )
    horizon_s: Positive | None = Field(None, description="end of the run; null = when all work has ended")


class StruckNodes(Spec):
    """The nodes that something happens to; of nodes that span hosts, the hosts, each by itself."""

    node: str | None = Field(None, description="only this node, by name")
    type: str | None = Field(None, description="only nodes of this type")
    zone: str | None = Field(None, description="only nodes of this zone")
    share_frac: Frac = Field(
        1.0,
        description="fraction of these nodes (of their hosts, where they span several), drawn from the seed",
    )


LINK = "only this link of cluster.network, by its two ends"
_OF_NODES = ("node", "type", "zone")


def _link_alone(entry: FaultSpec | BackgroundSpec) -> None:
    """Raise ValueError for a link beside nodes."""
    if entry.link is not None and (
        any(getattr(entry, name) is not None for name in _OF_NODES) or entry.share_frac != 1.0
    ):
        raise ValueError("link without node, type, zone and share_frac")


class BackgroundSpec(StruckNodes):
    """Work that others send to nodes, or their load of a link: a constant level, once or from time to time.

    It takes its share of one resource, so that fewer requests fit beside it. Speed meanwhile is
    1 − slowdown_frac × level_frac; of several slow-downs of a node the largest counts. A link has that much
    less capacity, in both directions.
    """

    resource: ResourceName | None = Field(None, description="resource that it takes; this or link")
    link: tuple[str, str] | None = Field(None, description=LINK)
    level_frac: float = Field(gt=0, le=1, description="share that it takes of what the node or link has")
    slowdown_frac: float = Field(
        0.0, ge=0, lt=1, description="share of its speed that a node would lose at level 1"
    )
    at_s: NonNegative = Field(0.0, description="start, unless on_s and off_s are given")
    duration_s: Positive | None = Field(None, description="duration; null = to the end")
    on_s: Positive | None = Field(None, description="mean time that it is there, exponential")
    off_s: Positive | None = Field(None, description="mean time between, exponential")

    @model_validator(mode="after")
    def _once_or_recurring(self) -> BackgroundSpec:
        recurring = [self.on_s is not None, self.off_s is not None]
        once = self.at_s > 0.0 or self.duration_s is not None
        if any(recurring) and (once or not all(recurring)):
            raise ValueError("either at_s and duration_s, or both on_s and off_s")
        _link_alone(self)
        if (self.resource is None) == (self.link is None):
            raise ValueError("either resource or link")
        if self.link is not None and (self.level_frac == 1.0 or self.slowdown_frac):
            raise ValueError("level_frac below 1 and slowdown_frac 0 with link; failures are faults")
        return self


class FaultSpec(StruckNodes):
    """Nodes or a link that fail or slow down, once (at_s, duration_s) or recurring (mtbf_s, mttr_s)."""

    link: tuple[str, str] | None = Field(None, description=LINK)
    factor: float = Field(
        0.0, ge=0, lt=1, description="speed, or capacity of the link, during the fault; 0 = down"
    )
    at_s: NonNegative | None = Field(None, description="start")
    duration_s: Positive | None = Field(None, description="duration")
    planned: bool = Field(False, description="maintenance: policies know it beforehand; needs at_s")
    mtbf_s: Positive | None = Field(None, description="mean time between faults, exponential")
    mttr_s: Positive | None = Field(None, description="mean time to repair, exponential")

    @model_validator(mode="after")
    def _once_or_recurring(self) -> FaultSpec:
        once = (self.at_s is not None, self.duration_s is not None)
        recurring = (self.mtbf_s is not None, self.mttr_s is not None)
        if sorted([once, recurring]) != [(False, False), (True, True)]:
            raise ValueError("either at_s and duration_s, or mtbf_s and mttr_s")
        if self.planned and (self.at_s is None or self.factor > 0.0):
            raise ValueError("planned with at_s and duration_s, and with factor 0")
        _link_alone(self)
        if self.planned and self.link is not None:
            raise ValueError("planned of nodes: policies have no calendar of links")
        return self
