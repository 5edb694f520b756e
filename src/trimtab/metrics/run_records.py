"""The records of one run as arrays: the input of every metric, the same from every host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trimtab.domain.requests import Status
from trimtab.errors import UsageError

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """One row per request; every array has shape [requests]."""

    arrival_s: FloatArray
    start_s: FloatArray  # its last attempt took a slot; nan if none did
    service_start_s: FloatArray  # computing began, its model being loaded; nan if it never did
    finish_s: FloatArray  # nan unless FINISHED
    ended_s: FloatArray  # finished, rejected, cancelled or lost; nan while in flight
    node_idx: IntArray  # node of the last attempt; -1 for none
    status: npt.NDArray[np.uint8]  # trimtab.domain.requests.Status
    reason: npt.NDArray[np.uint8]  # trimtab.domain.requests.Reason
    tenant_idx: IntArray
    class_idx: IntArray
    priority: npt.NDArray[Any]
    deadline_s: FloatArray  # absolute; inf for none
    attempts: IntArray  # 1 = served at the first try
    work_s: FloatArray  # true service seconds on the node that served it; nan if none did
    best_work_s: FloatArray  # true service seconds on the fastest node type for it

    def __post_init__(self) -> None:
        _check_lengths(self, len(self.arrival_s))

    @property
    def arrived(self) -> BoolArray:
        """Requests that arrived before the window closed: the denominator of every request fraction."""
        return np.not_equal(self.status, Status.PENDING)

    @property
    def finished(self) -> BoolArray:
        """Requests with status FINISHED."""
        return np.equal(self.status, Status.FINISHED)

    @property
    def completion_s(self) -> FloatArray:
        """Finish − arrival, waiting included; nan unless finished."""
        return self.finish_s - self.arrival_s


class TokenTargets(NamedTuple):
    """Targets of language models, [classes] each; inf for none."""

    ttft_s: FloatArray
    tpot_s: FloatArray


@dataclass(frozen=True, slots=True)
class TokenRecords:
    """What engines of language models did; arrays of shape [requests] but for the distances of tokens."""

    first_token_s: FloatArray  # when its first token was made; nan if none was
    output_tokens: IntArray  # 0 for a request of no language model
    preempted: IntArray  # times that it was preempted
    itl_edge_s: FloatArray  # [bins − 1] upper edges of the bins but the last
    itl_count: IntArray  # [node types, bins] tokens by the seconds since the last token of their request
    kv_peak_frac: FloatArray  # [nodes] largest use of the KV memory; nan for a node without one


@dataclass(frozen=True, slots=True)
class NodeRecords:
    """One row per node; every array has shape [nodes], and integrals run over the window."""

    slots: npt.NDArray[Any]
    type_idx: IntArray
    accelerators: FloatArray  # per node
    usd_per_hour: FloatArray
    memory_gib: FloatArray
    memory_used_gib_s: FloatArray  # integral of the memory that resident models take
    allocated_slot_s: FloatArray  # slot-seconds occupied: loading, computing, attempts lost later
    busy_slot_s: FloatArray  # slot-seconds computing
    up_s: FloatArray  # seconds not failed
    paid_frac: FloatArray  # of the window, for which its price is paid

    def __post_init__(self) -> None:
        _check_lengths(self, len(self.slots))


@dataclass(frozen=True, slots=True)
class StageRecords:
    """One row per stage instance of all runs of chains; every array has shape [rows]."""

    names: tuple[str, ...]  # [stages] of all chains, CHAIN.STAGE
    is_last: BoolArray  # [stages], that no stage follows
    stage_idx: IntArray
    run_idx: IntArray  # its run among the requests
    ready_s: FloatArray  # its inputs were there; nan if they never were
    start_s: FloatArray  # its last attempt took a slot; nan if none did
    service_start_s: FloatArray
    finish_s: FloatArray  # nan unless it was served
    node_idx: IntArray
    moved_gib: FloatArray  # inputs that its node lacked, at the last attempt
    best_work_s: FloatArray  # true service seconds on the fastest node type
    waited_for: IntArray  # row whose output came last; -1 = it has no inputs

    @property
    def served(self) -> BoolArray:
        """Instances that a node served; the others were skipped, or never ended."""
        return ~np.isnan(self.finish_s) & ~np.isnan(self.start_s)


@dataclass(frozen=True, slots=True)
class ResourceRecords:
    """Capacity of the nodes in each resource, and its use by requests over the window."""

    names: tuple[str, ...]  # [resources] of `trimtab.domain.cluster.RESOURCES`
    capacity: FloatArray  # [nodes, resources]
    used_s: FloatArray  # [nodes, resources] integral of the amount in use


@dataclass(frozen=True, slots=True)
class QueueRecords:
    """Hierarchical queues; arrays of shape [queues], in preorder, the root first."""

    paths: tuple[str, ...]  # such as `research.vision`; the root has none
    end: IntArray  # one past its last descendant
    leaf_of: IntArray  # [tenants] row of the leaf of each
    guarantee_frac: FloatArray  # the largest part of a resource that it is guaranteed
    limit_frac: FloatArray  # the smallest part of a resource that it is limited to; 1 = all there is
    share_s: FloatArray  # integral over the window of its dominant share of what all nodes have
    short_s: FloatArray  # time below its guarantee with held work that it would take
    preempted: IntArray  # its requests that were taken back from nodes
    lost_s: FloatArray  # slot-seconds that these had held

    @property
    def is_leaf(self) -> BoolArray:
        """Queues without queues below them."""
        return np.equal(self.end, np.arange(len(self.end)) + 1)


@dataclass(frozen=True, slots=True)
class LinkRecords:
    """What the links of a network carried over the run; arrays of shape [links], one for each direction."""

    names: tuple[str, ...]  # FROM>TO
    gib_per_s: FloatArray  # capacity, without congestion and failures
    carried_gib: FloatArray
    models_gib: float  # that nodes fetched, in all
    results_gib: float  # that clients received, in all


NO_RESOURCES = ResourceRecords((), np.zeros((0, 0)), np.zeros((0, 0)))


@dataclass(frozen=True, slots=True)
class Records:
    """A whole run: its requests, its nodes, and counts of the run."""

    requests: RequestRecords
    nodes: NodeRecords
    start_s: float  # window: first arrival
    end_s: float  # window: when the last request ended, or the horizon
    slo_s: FloatArray  # [classes] target completion; inf for none
    model_loads: int
    adapter_loads: int
    bytes_moved_gib: float
    retries: int
    prompt_tokens: float = 0.0  # of requests that took a slot, where nodes have prefix caches
    cached_tokens: float = 0.0  # of these, in the cache of the node
    repeatable: int = 0  # requests that a cached result could have answered
    result_hits: int = 0  # of these, answered by one
    recomputed_s: float = 0.0  # service of stages whose outputs were lost
    stages: StageRecords | None = None  # None where no request is a run of a chain
    switches: tuple[tuple[float, str], ...] = ()  # of a composite policy: (time, its candidate since then)
    tokens: TokenRecords | None = None  # None where no node serves a language model
    token_slos: TokenTargets | None = None  # None = no class has such targets
    queues: QueueRecords | None = None  # None = tenants compete directly
    links: LinkRecords | None = None  # None = what moves takes no network
    resources: ResourceRecords = NO_RESOURCES  # that the cluster models, besides slots and model memory

    def __post_init__(self) -> None:
        if not self.start_s <= self.end_s:
            expected = f"a time not before the window's start {self.start_s!r}"
            raise UsageError("the window ends early", field="end_s", value=self.end_s, expected=expected)

    @property
    def window_s(self) -> float:
        """Length of the window of utilisation and throughput."""
        return self.end_s - self.start_s


def _check_lengths(columns: RequestRecords | NodeRecords, length: int) -> None:
    """Raise UsageError for the first column that does not have shape [length]."""
    for name, shape in _shapes(columns):
        if shape != (length,):
            raise UsageError("wrong shape", field=name, value=shape, expected=f"({length},)")


def _shapes(columns: RequestRecords | NodeRecords) -> Iterable[tuple[str, tuple[int, ...]]]:
    return ((field.name, np.shape(getattr(columns, field.name))) for field in fields(columns))
