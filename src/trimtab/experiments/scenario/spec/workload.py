"""The workload section: a trace or a generator, and additions to either."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trimtab.experiments.scenario.spec.amounts import Amount
from trimtab.experiments.scenario.spec.shared_types import Shares
from trimtab.traces import ArrivalSpec, TraceMapping, TraceOptions
from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class MixEntry(Spec):
    """Requests of one class."""

    share: Positive = Field(description="share of all requests, relative to the other classes")
    size: Amount | None = Field(None, description="work units of a request; default: generate.size")
    adapter_frac: Frac = Field(0.0, description="fraction of these requests that need an adapter")


class Regime(Spec):
    """Changed parameters from a point of the workload on."""

    after_frac: float = Field(gt=0, lt=1, description="fraction of all requests that arrive before it")
    rate_factor: Positive = Field(1.0, description="arrival rate, as a multiple of the first rate")
    shares: Shares | None = Field(
        None, description="class of the mix → share from then on; null = as in the mix"
    )


MOST_REQUESTS = 1_000_000_000  # generated


class GenerateSpec(Spec):
    """Requests drawn from distributions."""

    requests: int = Field(ge=1, le=MOST_REQUESTS, description="number of requests")
    arrival: ArrivalSpec = Field(description="arrival process; workload.load rescales it in time")
    mix: Mapping[str, MixEntry] = Field(min_length=1, description="class → its share and sizes")
    size: Amount | None = Field(None, description="work units, for classes that do not give their own")
    changes: tuple[Regime, ...] = Field(
        (), description="further regimes, in order; the load is the mean over all"
    )

    @model_validator(mode="after")
    def _changes_in_order(self) -> GenerateSpec:
        begins = [change.after_frac for change in self.changes]
        if any(after <= before for before, after in itertools.pairwise(begins)):
            raise ValueError("changes with after_frac rising from one to the next")
        return self


class TraceSpec(Spec):
    """Requests of a recorded trace."""

    file: Path = Field(description="CSV, JSONL (also as .gz) or Parquet, relative to the scenario file")
    format: str = Field("auto", description="name of a known format; auto = by the columns")
    mapping: TraceMapping | None = Field(None, description="canonical column → column of the file")
    options: TraceOptions = Field(TraceOptions(), description="slice, sample, rate scale, limit")
    size_column: str = Field("size", description="canonical column that holds the work units")
    class_column: str = Field("class", description="canonical column that holds the class")
    class_of: Mapping[str, str] = Field({}, description="value of class_column → class, where they differ")
    default_class: str | None = Field(
        None, description="class of all other rows; not needed if there is only one"
    )
    block_tokens: Positive | None = Field(
        None, description="prompt tokens of a block of prefix_blocks; null = the format's"
    )
    adapters: Literal["auto", "named", "drawn"] = Field(
        "auto",
        description="named: the adapter column tells which; drawn: it only tells that there is one; "
        "auto: as the format has it",
    )


class Popularity(Spec):
    """Tenants or sessions, with their popularity by rank."""

    count: int = Field(ge=1, description="number of members")
    zipf: NonNegative = Field(1.0, description="share of the k-th is proportional to k^-zipf; 0 = equal")


class PromptSpec(Popularity):
    """Prompts with shared prefixes: system prompts, documents, tools. Their work adds to the size."""

    shared_tokens: Amount = Field(description="tokens of a shared prefix")
    own_tokens: Amount = Field(description="further tokens of each request")
    block_tokens: Positive = Field(512, description="tokens of a block of a prefix cache")
    turns_max: int = Field(
        1,
        ge=1,
        description="most requests of a session whose prompts go on from the one before and its answer",
    )


class ContentSpec(Popularity):
    """Contents of requests, by rank. Equal contents are equal in class, size, model and adapter."""

    repeatable_frac: Frac = Field(
        1.0, description="fraction of deterministic requests; only their results are cached"
    )


class DeadlineSpec(Spec):
    """Deadline of a request: factor × its service on the best node type, plus seconds, after its arrival."""

    factor: Amount | None = Field(None, description="multiple of the service time on the best node type")
    seconds: Amount | None = Field(None, description="seconds added to it")
    share_frac: Frac = Field(1.0, description="fraction of requests with a deadline")

    @model_validator(mode="after")
    def _not_empty(self) -> DeadlineSpec:
        if self.factor is None and self.seconds is None:
            raise ValueError("factor, seconds, or both")
        return self


class BurstSpec(Spec):
    """A time in which arrivals come faster.

    The requests of the next `factor` × `duration_s` seconds arrive within `duration_s`; all later ones arrive
    earlier by the rest.
    """

    factor: float = Field(gt=1, allow_inf_nan=False, description="arrival rate, as a multiple of its own")
    at_s: NonNegative = Field(description="start, in seconds of the run")
    duration_s: Positive = Field(description="duration")


def _named_or_ranked(value: object) -> str:
    ranked = isinstance(value, Popularity) or (isinstance(value, Mapping) and "count" in value)
    return "<ranked>" if ranked else "<named>"


Tenants = Annotated[
    Annotated[Popularity, Tag("<ranked>")] | Annotated[Shares, Tag("<named>")],
    Discriminator(_named_or_ranked),
]


class LearnedSpec(Spec):
    """What sites learned together."""

    file: Path = Field(description="file of `trimtab federate`")


class WorkloadSpec(Spec):
    """The arriving requests. A column of the trace takes precedence over drawn values."""

    trace: TraceSpec | None = Field(None, description="a recorded trace; this or generate")
    generate: GenerateSpec | None = Field(None, description="a synthetic workload; this or trace")
    load: Positive | None = Field(
        None, description="offered work over capacity, by rescaling arrival times; null = as they are"
    )
    bursts: tuple[BurstSpec, ...] = Field(
        (), description="times in which arrivals come faster; load is that without them"
    )
    estimate_cv: NonNegative = Field(
        0.0, description="error of the size that policies see: coefficient of variation of a lognormal factor"
    )
    output_estimate: Literal["drawn", "online-mean"] = Field(
        "drawn",
        description="output tokens that policies expect: the true ones with the error of estimate_cv, or the "
        "running mean of the class's answers to prompts of about the same length",
    )
    learned: LearnedSpec | None = Field(
        None, description="what output_estimate: online-mean begins with; null = with nothing"
    )
    service_cv: NonNegative = Field(
        0.0, description="hidden factor on the service time: coefficient of variation of a lognormal"
    )
    tenants: Tenants = Field({"default": 1.0}, description="tenant → share, or {count, zipf}")
    tenant_weights: Mapping[str, Positive] = Field(
        {}, description="tenant → capacity due to it where tenants compete, relative; 1 for all others"
    )
    priorities: Mapping[int, NonNegative] = Field(
        {0: 1.0}, min_length=1, description="priority → share; higher is more urgent"
    )
    deadline: DeadlineSpec | None = Field(None, description="deadlines; null = none")
    sessions: Popularity | None = Field(None, description="affinity keys; null = by model and adapter")
    payload_gib: Amount | None = Field(None, description="data moved to the node before service; null = none")
    result_gib: Amount | None = Field(
        None, description="data moved back to the client's zone, over cluster.network only; null = none"
    )
    prompts: PromptSpec | None = Field(None, description="prompts; null = none, unless the trace has them")
    contents: ContentSpec | None = Field(None, description="contents; null = all requests differ")
    origin: Shares | None = Field(
        None, description="zone → share of the requests from it; null = all from the first zone"
    )

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        if (self.trace is None) == (self.generate is None):
            raise ValueError("either trace or generate")
        ends_s = [(burst.at_s, burst.at_s + burst.duration_s) for burst in self.bursts]
        if any(later[0] < before[1] for before, later in itertools.pairwise(ends_s)):
            raise ValueError("bursts in order, each after the end of the one before")
        if not any(self.priorities.values()):
            raise ValueError("at least one of priorities above 0")
        if self.learned is not None and self.output_estimate == "drawn":
            raise ValueError("output_estimate: online-mean beside learned, which it begins with")
        if self.prompts is not None and self.contents is not None:
            raise ValueError("either prompts or contents: equal requests would have different prompts")
        return self
