"""What the admin port can ask of the gateway, and what the dashboard shows."""

from __future__ import annotations

from typing import Any, Protocol, TypedDict

from trimtab.gateway.observe.status import NodeFigures

Json = dict[str, Any]


class PolicyFigures(TypedDict):
    """A policy that runs, live or beside."""

    name: str
    decisions: int
    failures: int
    decision_us: float | None  # mean time of a decision
    candidates: Json | None  # decide.active_candidate.ActiveCandidate.summary


class Status(TypedDict, total=False):
    """All of the dashboard. Only `nodes`, `traffic`, `queue`, `history` and `balance` must be there."""

    version: str
    started_at: float  # seconds since the epoch
    listen: str
    ready: bool
    draining: bool
    nodes: list[NodeFigures]
    queue: Json  # length, most, oldest_s, by_class
    traffic: Json  # observe.summaries.traffic
    history: list[Json]  # observe.summaries.history
    balance: Json  # mean_frac, variance, cv, idle_frac, completion_variance_s2
    policy: PolicyFigures
    shadow: Json | None  # name, disagreement_frac, predicted_difference_frac
    tenants: list[Json]  # name, requests, tokens, in_flight, limit
    prediction: list[Json]  # observe.summaries.prediction
    counts: Json  # retries, hedges, refusals by code, lost by cause
    jobs: dict[str, int]  # by state
    notes: list[str]  # what an operator should know: "half of the nodes look like outliers", …


class Control(Protocol):
    """The gateway, as the admin port sees it. `UsageError` is answered with 400 and its text."""

    async def nodes(self) -> list[NodeFigures]:
        """All nodes."""

    async def add_node(self, spec: Json) -> NodeFigures:
        """Take in a node, as in `nodes:` of gateway.yaml. Raises UsageError: not valid, or not allowed."""

    async def drain(self, name: str) -> bool:
        """Give it nothing new. False = there is no such node."""

    async def undrain(self, name: str) -> bool:
        """Take back a drain, or a removal that waits for its work. False = there is no such node."""

    async def remove(self, name: str) -> bool:
        """Drain it, then forget it. False = there is no such node."""

    async def reload(self) -> Json:
        """Read the configuration again; returns what changed. Raises UsageError: the old one stays."""

    async def receipt(self, request_id: str) -> Json | None:
        """The decision receipt of a request; None = unknown or too long ago."""

    async def usage(self, tenant: str | None) -> list[Json]:
        """What tenants have used of models, or one of them. Raises StoreUnavailable: answered with 503."""

    async def status(self) -> Status:
        """Everything that the dashboard shows."""

    async def metrics(self) -> bytes:
        """The text of `/metrics`: `observe.exposition.exposition`."""
