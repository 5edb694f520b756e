"""Options of a host: bounds, refusals, failures, telemetry. They are equal for all compared policies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.queue_tree import QueueTree
from trimtab.domain.view import UNLIMITED


class OnRefusal(IntEnum):
    """Treatment of a request that every candidate refuses."""

    HOLD = 0
    REJECT = 1


class Cancel(IntEnum):
    """The requests to cancel at their deadline."""

    NEVER = 0
    WAITING = 1  # requests without a slot
    ALWAYS = 2  # running requests too


class OnFailure(IntEnum):
    """Effect of a node's failure on its running work."""

    RESTART = 0  # lost; dispatched again from the start, up to max_retries times
    RESUME = 1  # kept; after the repair it loads its model again and continues


class Eviction(IntEnum):
    """Rule for evicting a model or adapter from a node's memory."""

    LRU = 0  # the least recently used
    GREEDY_DUAL_SIZE = 1  # the one of least load seconds per GiB, aged by use
    PLAN_PINNED = 2  # as LRU; and a node refuses requests that do not fit beside the items kept by the plan


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """Hierarchical queues of tenants. Their resources are those of the cluster, then slots."""

    tree: QueueTree
    leaf_row: NDArray[np.int64]  # [tenants] row of the leaf of each
    is_firm: NDArray[np.bool_] | None = None  # [classes] whose requests are never taken back; None = of none


FAULT = np.dtype(
    [
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("factor", "f8"),  # speed of the node, or capacity of the link, meanwhile; 0 = down
        ("mtbf_s", "f8"),  # mean time between such faults; inf = happens once
        ("mttr_s", "f8"),  # mean time to repair
        ("node_idx", "i4"),
        ("count", "i4"),  # faults of this process so far
        ("active", "i4"),  # 1 = in force
        ("resource", "i4"),  # background work: 1 + the resource that it takes; 0 = a failure or slow-down
        ("amount", "f8"),  # of that resource
        ("cable", "i4"),  # of a link of the network: 1 + its number; 0 = it strikes the node
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Switches of the host."""

    held_max: int = UNLIMITED  # requests that a dispatcher may hold in its central queue
    on_refusal: OnRefusal = OnRefusal.HOLD
    lookahead: int = 1  # failed offers after which a pass over a lane of the central queue ends
    lane_per_class: bool = False  # so that a class without an available node does not block other classes
    cancel: Cancel = Cancel.NEVER
    on_failure: OnFailure = OnFailure.RESTART
    max_retries: int = 2
    dispatchers: int = 1  # request i belongs to dispatcher i mod dispatchers
    telemetry_period_s: float = 0.0  # 0 = the view is always fresh
    telemetry_delay_s: float = 0.0
    plan_latency_s: float = 0.0
    horizon_s: float = float("inf")
    join_s: NDArray[np.float64] | None = None  # [classes] to join the parts of a request; None = never split
    # [classes] share of its service that one more request of a batch costs; < 0 = not batched; None = none is
    batch_marginal_frac: NDArray[np.float64] | None = None
    # [classes] whether a batch takes `fixed_s` once; None = none does
    batch_fixed_once: NDArray[np.bool_] | None = None
    faults: NDArray[np.void] | None = None  # FAULT [processes], background work among them
    outages: NDArray[np.void] | None = None  # OUTAGE [planned outages], those of `faults` that policies know
    # [resources] largest relative error of a report of what is used; None = reports are exact
    report_noise_frac: NDArray[np.float64] | None = None
    prefix_blocks: int = 0  # prompt blocks that each node keeps; 0 = no prefix cache
    are_resources_bounds: bool = True  # else requests start without room in them, as in a gateway
    results_max: int = 0  # results kept to answer equal requests; 0 = no result cache
    stage_results_gib: float = 0.0  # outputs of deterministic stages that are kept; 0 = none
    fast_forward: bool = True  # engines: one event for iterations between which nothing changes
    eviction: Eviction = Eviction.LRU
    queues: Queues | None = None  # None = tenants compete directly, without limits
