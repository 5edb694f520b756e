"""The requests of one run: the part that policies see, and the truth that only the host knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from numbers import Integral
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Chains, ranges
from trimtab.domain.cluster import Cluster
from trimtab.domain.engines import LANGUAGE_MODEL
from trimtab.errors import UsageError


class Status(IntEnum):
    """State of a request, or how it ended. Values below FINISHED are in flight."""

    PENDING = 0  # has not arrived
    HELD = 1  # in the central queue
    TRANSFER = 2  # its payload is on the way to a node
    QUEUED = 3  # in a node's queue
    RUNNING = 4  # occupies a slot (loading its model included)
    RETRYING = 5  # lost its node, about to be dispatched again
    FINISHED = 6
    REJECTED = 7
    CANCELLED = 8  # its deadline passed and the scenario cancels then
    LOST = 9  # its node failed and no retries were left


class Reason(IntEnum):
    """Reason for a rejection, cancellation or loss. Policies may return -r for POLICY and above."""

    NONE = 0
    FITS_NO_NODE = 1  # no node type can hold its model or serve its class
    REFUSED = 2  # every candidate refused and the scenario rejects on refusal
    QUEUE_FULL = 3  # the policy held it and the central queue had no room
    DEADLINE = 4  # cancelled at its deadline
    RETRIES = 5  # lost to node failures more often than the scenario retries
    POLICY = 6  # the policy rejected it; a policy's own reasons count up from here
    ABORTED = 32  # no client waits for it


MAX_REASON = 31  # a policy's own reasons lie in POLICY..MAX_REASON


class Hold(Enum):
    """Type of HOLD."""

    HOLD = "hold"

    def __repr__(self) -> str:
        """The name that users write."""
        return "tt.HOLD"


HOLD: Final = Hold.HOLD  # what `choose` returns to hold a request in the central queue


@dataclass(frozen=True, slots=True)
class Reject:
    """The return value of `choose` that rejects a request; `reject` makes it."""

    reason: int


def reject(reason: int = Reason.POLICY) -> Reject:
    """Reject the request for a reason of the policy's own: a number from Reason.POLICY (6) to 31."""
    if not isinstance(reason, Integral) or not Reason.POLICY <= reason <= MAX_REASON:
        raise ValueError(f"reject({reason!r}): expected a reason from {Reason.POLICY:d} to {MAX_REASON}")
    return Reject(int(reason))


TRUTH = np.dtype(
    [
        ("units", "f8"),  # work
        ("factor", "f8"),  # hidden, on service time
        ("output_tokens", "i4"),  # that an engine of a language model makes
        ("given_tokens", "i4"),  # of its prompt, whose KV comes with the request
    ],
    align=True,
)


@dataclass(frozen=True)
class Prefixes:
    """Prompts as chains of blocks: equal block numbers are equal prompts up to and including that block."""

    block_idx: NDArray[np.int32]  # [blocks of all prompts], numbers from 0 on
    first: NDArray[np.int64]  # [requests + 1], position of each request's first block
    prompt_tokens: NDArray[np.float64]  # [requests]
    block_tokens: float  # tokens of a block; the last one of a prompt may have fewer

    @property
    def n_blocks(self) -> int:
        """Number of different blocks."""
        return int(self.block_idx.max(initial=-1)) + 1

    def taken(self, rows: NDArray[np.integer]) -> Prefixes:
        """Those of these requests [n], in this order."""
        begins, counts = self.first[rows], np.diff(self.first)[rows]
        first = np.concatenate([[0], np.cumsum(counts)])
        return Prefixes(
            self.block_idx[ranges(begins, counts)], first, self.prompt_tokens[rows], self.block_tokens
        )


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    `work` is a WORK array (see `trimtab.domain.view`), `truth` a TRUTH array of the same length. Service
    takes (fixed_s + unit_s · truth.units) · truth.factor seconds, independent of the estimates in `work`.
    No policy sees `leave_s`, which needs `Cancel.ALWAYS`.
    """

    work: NDArray[np.void]  # WORK [requests]
    truth: NDArray[np.void]  # TRUTH [requests]
    tenant_names: tuple[str, ...] = ("default",)
    tenant_weight: NDArray[np.float64] | None = None  # [tenants] due share, relative; None = all 1
    leave_s: NDArray[np.float64] | None = None  # [requests], time at which its client leaves; inf = never
    prefixes: Prefixes | None = None
    content_idx: NDArray[np.int32] | None = None  # [requests]; equal = the same request again; -1 = none
    shape_idx: NDArray[np.int64] | None = None  # [requests]; equal = may share a batch; None = all may
    result_gib: NDArray[np.float64] | None = None  # [requests], to the client over the network; None = 0
    chains: Chains | None = None  # stages of the requests that are runs of chains

    def __len__(self) -> int:
        return len(self.work)

    def first(self, count: int) -> Requests:
        """The first so many in order of arrival. Raises UsageError where some are runs of chains."""
        return self.taken(np.arange(count), self.work["arrival_s"][:count])

    def taken(self, rows: NDArray[np.integer], arrival_s: NDArray[np.float64]) -> Requests:
        """These rows [n], which may repeat, as requests that arrive at these times [n], in order.

        Deadlines and the times at which clients leave keep their distance. Raises UsageError where some are
        runs of chains.
        """
        if self.chains is not None:
            expected = "requests alone: the stages of runs have no order of arrival"
            raise UsageError("cannot be cut", field="chains", expected=expected)

        def taken(column: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if column is None else column[rows]

        work = self.work[rows]
        later_s = arrival_s - work["arrival_s"]
        work["serial"], work["arrival_s"], work["run_arrival_s"] = np.arange(len(rows)), arrival_s, arrival_s
        work["deadline_s"] += later_s
        return replace(
            self,
            work=work,
            truth=self.truth[rows],
            leave_s=None if self.leave_s is None else self.leave_s[rows] + later_s,
            prefixes=None if self.prefixes is None else self.prefixes.taken(rows),
            content_idx=taken(self.content_idx),
            shape_idx=taken(self.shape_idx),
        )


def true_service_s(cluster: Cluster, requests: Requests) -> NDArray[np.float64]:
    """Service seconds of each request on each type, without loads, [requests, types]; inf: not served."""
    return np.stack([true_service_on_s(cluster, requests, g) for g in range(cluster.n_types)], axis=1)


def true_service_on_s(cluster: Cluster, requests: Requests, g: int) -> NDArray[np.float64]:
    """Service seconds of each request alone on type g, without loads, [requests]; inf: not served."""
    c, truth, engines = requests.work["class_idx"], requests.truth, cluster.engines
    if engines is not None and engines.types["service"][g] == LANGUAGE_MODEL:
        alone_s = engines.alone_s(g, requests.work["input_tokens"], truth["output_tokens"])
        return np.where(np.isfinite(cluster.fixed_s[c, g]), alone_s, np.inf)
    if engines is not None and engines.types["sizes"][g] > 0:
        measured_s = engines.among_s(g, 1, truth["units"]) * truth["factor"]
        return np.where(np.isfinite(cluster.fixed_s[c, g]), measured_s, np.inf)
    nominal_s = cluster.fixed_s[c, g] + cluster.unit_s[c, g] * truth["units"]
    served_s: NDArray[np.float64] = nominal_s * truth["factor"]
    return served_s
