"""The requests of one run: the part that policies see, and the truth that only the host knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Chains
from trimtab.domain.cluster import Cluster

TRUTH = np.dtype([("units", "f8"), ("factor", "f8")], align=True)  # work units; hidden factor on service time


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
    chains: Chains | None = None  # stages of the requests that are runs of chains

    def __len__(self) -> int:
        return len(self.work)


def true_service_s(cluster: Cluster, requests: Requests) -> NDArray[np.float64]:
    """Service seconds of each request on each type, without loads, [requests, types]; inf: not served."""
    return np.stack([true_service_on_s(cluster, requests, g) for g in range(cluster.n_types)], axis=1)


def true_service_on_s(cluster: Cluster, requests: Requests, g: int) -> NDArray[np.float64]:
    """Service seconds of each request on type g, without loads, [requests]; inf: not served."""
    c, truth = requests.work["class_idx"], requests.truth
    nominal_s = cluster.fixed_s[c, g] + cluster.unit_s[c, g] * truth["units"]
    served_s: NDArray[np.float64] = nominal_s * truth["factor"]
    return served_s
