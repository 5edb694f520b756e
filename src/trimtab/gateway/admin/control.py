"""The interface of the gateway to the admin port, and the data of the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypedDict

from trimtab.gateway.decide.learning import LoadFigures
from trimtab.gateway.decide.tenant_queues import QueueFigures
from trimtab.gateway.observe.status import NodeFigures

Json = dict[str, Any]


class PolicyFigures(TypedDict):
    """A running policy, live or shadow."""

    name: str
    decisions: int | None  # None: some are of private tenants
    failures: int
    decision_us: float | None  # mean time of a decision
    candidates: Json | None  # decide.active_candidate.ActiveCandidate.summary


class Status(TypedDict, total=False):
    """The data of the dashboard. Only `nodes`, `traffic`, `queue`, `history` and `balance` are required."""

    version: str
    started_at: float  # seconds since the epoch
    listen: str
    ready: bool
    draining: bool
    nodes: list[NodeFigures]
    queue: Json  # length, most, oldest_s, by_class
    tenant_queues: list[QueueFigures]  # hierarchical queues of tenants; empty = there are none
    traffic: Json  # observe.summaries.traffic
    history: list[Json]  # observe.summaries.history
    balance: Json  # the metrics of `observe.metric_store.BALANCE`, by name
    formulas: Json  # of those that have a value
    policy: PolicyFigures
    shadow: Json | None  # name, disagreement_frac, predicted_difference_frac
    demand: Mapping[str, Mapping[str, float]]  # class → resource → what one request takes
    loads: list[LoadFigures]  # learned load times of models and adapters, by type of nodes
    tenants: list[Json]  # name, requests, tokens, in_flight, limit
    prediction: list[Json]  # observe.summaries.prediction
    counts: Json  # retries, hedges, refusals by code, lost by cause
    jobs: dict[str, int]  # by state
    chains: Json  # chain → runs under way, and stages by state
    notes: list[str]  # for operators, such as "half of the nodes look like outliers"


class Control(Protocol):
    """The gateway's interface to the admin port. A `UsageError` is answered with 400 and its text."""

    async def nodes(self) -> list[NodeFigures]:
        """All nodes."""

    async def add_node(self, spec: Json) -> NodeFigures:
        """Add a node, as in `nodes:` of gateway.yaml. Raises UsageError: not valid, or not allowed."""

    async def drain(self, name: str) -> bool:
        """Give the node no new work. False = there is no such node."""

    async def undrain(self, name: str) -> bool:
        """Cancel a drain or a removal. False = there is no such node."""

    async def remove(self, name: str) -> bool:
        """Drain the node, then remove it. False = there is no such node."""

    def keys(self) -> list[Json]:
        """The keys that were made at run time."""

    async def make_key(self, spec: Json) -> Json:
        """Make a key; the answer alone shows it. Raises UsageError, StoreUnavailable."""

    async def revoke_key(self, name: str) -> bool:
        """Make a key invalid. False = there is no such key. Raises StoreUnavailable."""

    def node_changes(self) -> list[Json]:
        """Changes of nodes by operators that no later change has undone."""

    async def reload(self) -> Json:
        """Reload the configuration; returns the changes, and under `kept` those of operators.

        On UsageError the old configuration stays.
        """

    async def receipt(self, request_id: str) -> Json | None:
        """The decision receipt of a request; None = unknown or too long ago."""

    async def usage(self, tenant: str | None) -> list[Json]:
        """Usage by tenant and model, of all tenants or one. Raises StoreUnavailable: answered with 503."""

    async def status(self) -> Status:
        """The data of the dashboard."""

    async def metrics(self) -> bytes:
        """The text of `/metrics`: `observe.exposition.exposition`."""
