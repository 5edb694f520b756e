"""Jobs in queues: the GPUs of each leaf at a decision, from what its jobs hold and want.

Jobs keep what they hold, so a queue that borrows gives back as its jobs end. What is free goes down the tree,
a gang at a time. A queue that was below its guarantee for its notice takes GPUs of others back. An allocator
is then asked leaf by leaf, on nodes with as many GPUs as the leaf has, so that any allocator keeps to queues.

GPUs of a leaf are counted by pool: the nodes of one type that the same jobs may use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.domain.job_places import NodeOffer
from trimtab.domain.queue_claims import claimed, noted, take_back
from trimtab.domain.queue_filling import Filling, Rules, Units, empty_filling, fill, hold, rules_of, units_of
from trimtab.domain.queue_tree import QueueOrder, QueueTree
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, JobQueues, Records, Workload
from trimtab.errors import UsageError
from trimtab.words import counted as counted_words

RESOURCES: Final = ("gpus", "cpus", "memory_gib")
_NO_COUNT: Final = np.iinfo(np.int64).max


def job_queues(tree: QueueTree, tenants: Sequence[str], offers: Sequence[NodeOffer]) -> JobQueues:
    """Queues over jobs of these tenants; the tree has the `resources_of` nodes that offer this."""
    room = np.array([(offer.cpus, offer.memory_gib) for offer in offers], np.float64).reshape(-1, 2)
    kept = room[:, [RESOURCES.index(name) - 1 for name in tree.resources[1:]]]
    return JobQueues(tree, tree.leaf_of(tenants), kept, np.full(len(tree.paths), np.nan))


def resources_of(offers: Sequence[NodeOffer]) -> tuple[str, ...]:
    """The resources that queues of jobs are about: GPUs, and those that every node states."""
    room = np.array([(offer.cpus, offer.memory_gib) for offer in offers], np.float64).reshape(-1, 2)
    stated = np.flatnonzero(np.isfinite(room).all(axis=0))
    return RESOURCES[0], *(RESOURCES[1 + k] for k in stated)


def capacity_of(queues: JobQueues, gpus: float) -> Floats:
    """What there is of the resources, [resources], where all nodes are up."""
    return np.append(float(gpus), queues.room.sum(axis=0))


def refuse_wide(queues: JobQueues, workload: Workload, gpus: float) -> None:
    """Raise UsageError for a job that asks for more than its queue or its user limit ever allows."""
    most = most_gpus(queues, gpus)[workload.tenant_idx]
    for i in np.flatnonzero(workload.gpus_requested > most + 1e-9)[:1]:
        path = queues.tree.leaf_paths[queues.leaf_of[workload.tenant_idx[i]]]
        raise UsageError(
            f"job {workload.job_ids[i]} asks for {counted_words(int(workload.gpus_requested[i]), 'GPU')}",
            field=f"queues.{path.replace('.', '.queues.')}",
            value=counted_words(int(most[i]), "GPU"),
            expected="a limit, and a user_limit, no less than a job of the queue asks for",
        )


def most_gpus(queues: JobQueues, gpus: float) -> Floats:
    """Most GPUs that a tenant ever has, by limits and its user limit, [tenants]."""
    rules = rules_of(queues.tree, capacity_of(queues, gpus), queues.leaf_of)
    return rules.tenant_most[:, 0]


@dataclass(frozen=True)
class QueueShares:
    """What a decision gives each leaf."""

    leaf: Ints  # [jobs]
    gpus: Ints  # [leaves, nodes] that its jobs may have, those that they hold included
    quota_gpus: Floats  # [tenants] most GPUs; empty = none has one
    admitted: Flags  # [jobs] whether each may run: not where its queue has its most running
    preempted: Flags  # [jobs] whether each lost its place to a queue that takes back what is its
    short_since_s: Floats  # [queues] for the next decision
    wake_s: float  # when a notice ends; inf = never


@dataclass(frozen=True)
class _Pools:
    """Nodes of one type that the same jobs may use."""

    of_node: Ints  # [nodes] those that fewest jobs may use come first
    type_idx: Ints  # [pools]
    allowed: Flags  # [jobs, pools]
    size: Floats  # [pools] GPUs


def shares_of_queues(
    jobs: Records,
    cluster: GpuCluster,
    queues: JobQueues,
    now_s: float,
    *,
    fixed: Flags,
    counted: Flags,
    scales: bool,
    whole_nodes: bool,
) -> QueueShares:
    """The shares of a decision.

    Args:
        jobs: the active jobs, by submission.
        cluster: nodes, and what jobs hold.
        queues: the queues.
        now_s: the time.
        fixed: [jobs] which keep what they hold.
        counted: [jobs] without the second of each pair that shares GPUs.
        scales: whether jobs that scale may get other numbers of GPUs than they asked for.
        whole_nodes: whether a node may have jobs of one leaf only: that with most of it, within its limit.
    """
    leaf, pools = queues.leaf_of[jobs["tenant_idx"]], _pools_of(cluster)
    held = np.where(counted[:, None], cluster.gpus, 0)
    capacity = np.append(
        float(pools.size.sum()), np.where(cluster.nodes["up"][:, None], queues.room, 0).sum(axis=0)
    )
    rules = rules_of(queues.tree, capacity if queues.fleet is None else queues.fleet, queues.leaf_of)
    units, job = _units(jobs, cluster, queues, pools, leaf, held, counted, scales=scales)
    filling = empty_filling(rules, pools.size)
    filling.free[:] = capacity
    is_held = units.pool.sum(axis=1) > 0
    of_leaf = leaf[job]
    for unit in np.flatnonzero(is_held).tolist():
        hold(rules, filling, units, unit, of_leaf[unit], 1.0)
    may_lose = queues.tree.preemptible[rules.shape.leaf_row[of_leaf]] & ~fixed[job]
    short, taken = _claims(rules, filling, units, queues, now_s, is_held & may_lose)
    set_aside = np.zeros((len(units.first) - 1, len(pools.size)))
    fill(rules, filling, units, set_aside)
    kept = is_held & units.granted
    due_s = np.nan_to_num(short + queues.tree.notice_s, nan=np.inf, posinf=np.inf)
    gpus = _on_nodes(units, job, of_leaf, kept, held, pools, cluster, set_aside)
    if whole_nodes:
        gpus = _whole(gpus, cluster.capacity, rules.amounts.limit[rules.shape.leaf_row, 0])
    return QueueShares(
        leaf=leaf,
        gpus=gpus,
        quota_gpus=_quotas(rules, filling, queues, set_aside, cluster.quota_gpus),
        admitted=_admitted(queues, leaf, units, job),
        preempted=np.bincount(job, taken & (units.base == np.arange(len(job))), len(jobs)) > 0,
        short_since_s=short,
        wake_s=float(due_s[due_s > now_s].min(initial=np.inf)),
    )


def _pools_of(cluster: GpuCluster) -> _Pools:
    types = cluster.nodes["type_idx"].astype(np.int64)
    keys = types[None, :]
    if cluster.places is not None:
        keys = np.vstack([keys, cluster.places.allowed])
    _, first, of_node = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    allowed = cluster.runs_on[:, types[first]].copy()
    if cluster.places is not None:
        allowed &= cluster.places.allowed[:, first]
    order = np.argsort(allowed.sum(axis=0), kind="stable")
    of_node = np.argsort(order)[of_node.reshape(-1)]
    size = np.bincount(of_node, cluster.capacity, len(first)).astype(np.float64)
    return _Pools(of_node, types[first][order], allowed[:, order], size)


def _units(
    jobs: Records,
    cluster: GpuCluster,
    queues: JobQueues,
    pools: _Pools,
    leaf: Ints,
    held: Ints,
    counted: Flags,
    *,
    scales: bool,
) -> tuple[Units, Ints]:
    """The units of all jobs by leaf, and the job of each: first what jobs hold, then what begins, then more.

    What a job holds, or begins with, is one unit; each further GPU of a job that scales is another one.
    """
    n_held = held.sum(axis=1)
    is_elastic = jobs["scales"] & jobs["preemptible"] & ~jobs["pinned"] & scales
    base = np.where(is_elastic, jobs["gpus_min"], np.where(n_held > 0, n_held, jobs["gpus_requested"]))
    base = np.where(n_held > 0, np.minimum(base, n_held), base).astype(np.int64)
    most = np.where(is_elastic, jobs["gpus_max"], base)
    more = np.maximum(np.maximum(most, n_held) - base, 0).astype(np.int64)
    job = np.concatenate([np.arange(len(jobs)), np.repeat(np.arange(len(jobs)), more)])
    step = np.concatenate(
        [np.zeros(len(jobs), np.int64), np.concatenate([np.arange(1, k + 1) for k in more])]
    )
    is_held = np.where(step == 0, n_held[job] > 0, base[job] + step <= n_held[job])
    amount = np.where(step == 0, base[job], 1).astype(np.float64)
    by_priority = queues.tree.order[queues.tree.shape.leaf_row[leaf]] == QueueOrder.PRIORITY
    urgency = np.where(by_priority, -jobs["priority"], 0)
    order = np.lexsort((job, urgency[job], step, ~is_held, leaf[job]))
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    job, step, is_held, amount = job[order], step[order], is_held[order], amount[order]
    other = np.zeros((len(jobs), len(queues.resources) - 1))
    if cluster.places is not None:
        other = cluster.places.asks[:, [RESOURCES.index(name) - 1 for name in queues.resources[1:]]]
    counts = np.append(0, np.cumsum(np.bincount(leaf[job], minlength=len(queues.tree.leaf_paths))))
    amounts = np.column_stack([amount, other[job] * amount[:, None]])
    amounts[~counted[job]] = 0.0
    units = units_of(
        counts, amounts, jobs["tenant_idx"][job].astype(np.int64), at[job], pools.allowed[job], pools.type_idx
    )
    _place_held(units, job, step, is_held, held, pools)
    return units, job


def _place_held(units: Units, job: Ints, step: Ints, is_held: Flags, held: Ints, pools: _Pools) -> None:
    """The pools of what jobs hold already: of a job's units those of its first pools come first."""
    left = np.stack([np.bincount(pools.of_node, row, len(pools.size)) for row in held]) if len(held) else held
    rows = np.flatnonzero(is_held)
    for unit in rows[np.argsort(step[rows], kind="stable")]:
        needs = units.amount[unit, 0]
        for p in range(len(pools.size)):
            takes = min(needs, left[job[unit], p])
            units.pool[unit, p] = takes
            left[job[unit], p] -= takes
            needs -= takes


def _claims(
    rules: Rules, filling: Filling, units: Units, queues: JobQueues, now_s: float, removable: Flags
) -> tuple[Floats, Flags]:
    """Since when each queue is short, [queues], and the units that due queues take back, [units]."""
    tree = queues.tree
    is_short = np.zeros(len(tree.paths), np.bool_)
    for row in np.flatnonzero(tree.notice_s < np.inf).tolist():
        wanted = claimed(rules, filling, units, row)
        is_short[row] = len(wanted) and _is_short(filling, units, wanted)
    since_s = noted(queues.short_since_s, is_short, now_s)
    taken = np.zeros(len(units.granted), np.bool_)
    due = np.flatnonzero(since_s + tree.notice_s <= now_s)
    for row in due[np.argsort(since_s[due], kind="stable")].tolist():
        taken |= take_back(
            rules, filling, units, removable & ~taken, row, claimed(rules, filling, units, row)
        )
    return since_s, taken & ~units.granted


def _is_short(filling: Filling, units: Units, wanted: Ints) -> bool:
    """Whether what is free does not hold what a queue claims."""
    needs = units.amount[wanted].sum(axis=0)
    free = np.append(filling.pool_free[units.pools[wanted].any(axis=0)].sum(), filling.free[1:])
    return bool((needs > free + 1e-9).any())


def _on_nodes(
    units: Units,
    job: Ints,
    of_leaf: Ints,
    kept: Flags,
    held: Ints,
    pools: _Pools,
    cluster: GpuCluster,
    set_aside: Floats,
) -> Ints:
    """GPUs of each leaf on each node: those that its jobs keep, then of the nodes that fit best."""
    n_pools, n_leaves = len(pools.size), len(set_aside)
    keeps = np.zeros((len(held), n_pools), np.int64)
    np.add.at(keeps, job[kept], np.rint(units.pool[kept]).astype(np.int64))
    owed = np.rint(set_aside).astype(np.int64)
    new = units.granted & ~kept
    np.add.at(owed, of_leaf[new], np.rint(units.pool[new]).astype(np.int64))
    gpus = np.zeros((n_leaves, len(pools.of_node)), np.int64)
    leaf = np.zeros(len(held), np.int64)
    leaf[job] = of_leaf
    for row in np.flatnonzero(keeps.any(axis=1)).tolist():
        for p in np.flatnonzero(keeps[row]).tolist():
            _take(gpus[leaf[row]], np.where(pools.of_node == p, held[row], 0), int(keeps[row, p]))
    free = cluster.capacity - gpus.sum(axis=0)
    for at in np.argsort(-owed, axis=None, kind="stable"):
        which, p = divmod(int(at), n_pools)
        if owed[which, p]:
            before = gpus[which].copy()
            _take(gpus[which], np.where(pools.of_node == p, free, 0), int(owed[which, p]))
            free -= gpus[which] - before
    return gpus


def _take(gpus: Ints, there: Ints, count: int) -> None:
    """Add so many of the GPUs there, [nodes]: of the node with fewest that suffice, else of the largest."""
    left, there = count, there.copy()
    while left > 0 and there.any():
        enough = np.flatnonzero(there >= left)
        node = int(enough[there[enough].argmin()] if len(enough) else there.argmax())
        takes = min(left, there[node])
        gpus[node] += takes
        there[node] -= takes
        left -= takes


def _whole(gpus: Ints, capacity: Ints, limit: Floats) -> Ints:
    """The same, [leaves, nodes], where no node is shared by leaves."""
    whole = np.zeros_like(gpus)
    for node in np.argsort(-gpus.max(axis=0), kind="stable"):
        for leaf in np.argsort(-gpus[:, node], kind="stable"):
            fits = whole[leaf].sum() + capacity[node] <= limit[leaf] + 1e-9
            if gpus[leaf, node] and fits:
                whole[leaf, node] = capacity[node]
                break
    return whole


def _quotas(rules: Rules, filling: Filling, queues: JobQueues, set_aside: Floats, own: Floats) -> Floats:
    """Most GPUs of each tenant: its user limit, or where a leaf is shared fairly what it was granted."""
    tree, leaf = queues.tree, queues.leaf_of
    rows = tree.shape.leaf_row[leaf]
    is_fair = tree.order[rows] == QueueOrder.FAIR
    is_limited = tree.user_limit[rows] < 1.0
    if not (is_fair | is_limited).any():
        return own
    quota = np.where(is_limited, rules.tenant_most[:, 0], np.inf)
    granted = filling.tenant_used[:, 0] + set_aside.sum(axis=1)[leaf]
    quota = np.where(is_fair, np.minimum(granted, quota), quota)
    return np.minimum(quota, own) if len(own) else quota


def _admitted(queues: JobQueues, leaf: Ints, units: Units, job: Ints) -> Flags:
    """Whether each job may be shown: all where counts are not limited, else those that run or are granted."""
    tree, admitted = queues.tree, np.zeros(len(leaf), np.bool_)
    admitted[job[units.granted]] = True
    most = tree.most_running.copy()
    for row in range(1, len(most)):
        most[row] = min(most[row], most[tree.shape.parent[row]])
    return admitted | (most[tree.shape.leaf_row[leaf]] == _NO_COUNT)
