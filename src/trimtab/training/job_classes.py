"""Jobs that may not run on every node, or that go before others: the allocator is asked class by class.

A class is the jobs of one queue, of one set of nodes and, where priorities are strict, of one priority.
Queues have GPUs of their own, so their order does not matter. Higher priorities go first; among equal ones
those whose nodes have the fewest GPUs, since the others have more choice. Each class is decided about on what
those before it have left, by the allocator with a memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from trimtab.domain.allocator import Allocation
from trimtab.domain.queue_tree import QueueOrder
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Held, Ints, Records
from trimtab.training.queue_shares import QueueShares
from trimtab.training.shared_gpus import is_second, partners_of

ClassKey: TypeAlias = tuple[int, int, bytes]
"""The leaf of its queue, the priority, the nodes."""


def classes_of(
    jobs: Records, cluster: GpuCluster, *, strict: bool, shares: QueueShares | None = None
) -> dict[ClassKey, Ints]:
    """Rows of each class, in the order in which they are asked about; without jobs that queues hold back."""
    leaf, is_strict = np.zeros(len(jobs), np.int64), np.full(len(jobs), strict)
    if shares is not None and cluster.queues is not None:
        leaf, tree = shares.leaf, cluster.queues.tree
        is_strict |= tree.order[tree.shape.leaf_row[leaf]] == QueueOrder.PRIORITY
    priority = np.where(is_strict, jobs["priority"], 0)
    allowed = np.ones((len(jobs), len(cluster.nodes)), np.bool_)
    if cluster.places is not None:
        allowed = cluster.places.allowed
    keys = [(int(k), int(p), flags.tobytes()) for k, p, flags in zip(leaf, priority, allowed, strict=True)]
    gpus = (allowed * cluster.nodes["gpus"].astype(np.int64)).sum(axis=1)
    shown = range(len(jobs)) if shares is None else np.flatnonzero(shares.admitted).tolist()
    order = sorted(shown, key=lambda row: (keys[row][0], -keys[row][1], gpus[row], keys[row][2]))
    found: dict[ClassKey, list[int]] = {}
    for row in order:
        found.setdefault(keys[row], []).append(row)
    return {key: np.sort(np.array(rows)) for key, rows in found.items()}


def cluster_for(
    rows: Ints,
    cluster: GpuCluster,
    jobs: Records,
    given: Ints,
    counted: Flags,
    *,
    goes_first: Flags,
    waits: Flags,
    shares: QueueShares | None = None,
) -> GpuCluster:
    """What is left for the jobs of a class.

    Args:
        rows: the jobs of the class.
        cluster: all that there is.
        jobs: all jobs.
        given: [jobs, nodes] GPUs of jobs that are decided about, or keep theirs.
        counted: [jobs] without the second of each pair.
        goes_first: [jobs] which of them keep what they hold.
        waits: [jobs] which are decided about later.
        shares: of queues, if there are any.
    """
    nodes = cluster.nodes.copy()
    nodes["gpus"] -= given[counted].sum(axis=0).astype(nodes["gpus"].dtype)
    if shares is not None:
        leaf = shares.leaf[rows[0]]
        theirs = shares.gpus[leaf] - given[counted & (shares.leaf == leaf)].sum(axis=0)
        nodes["gpus"] = np.clip(theirs, 0, nodes["gpus"])
        nodes["up"] &= shares.gpus[leaf] > 0
    places = cluster.places
    if places is not None:
        nodes["up"] &= places.allowed[rows[0]]
        places = replace(places.of(rows), room=places.left(given))
    quota_gpus = cluster.quota_gpus if shares is None else shares.quota_gpus
    if len(quota_gpus):
        quota_gpus = quota_gpus - np.bincount(jobs["tenant_idx"], given.sum(axis=1), len(quota_gpus))
    capacity = np.where(nodes["up"], nodes["gpus"], 0)
    held = _that_fit(cluster.gpus[rows], capacity, goes_first[rows])
    can_run = None if cluster.can_run is None else cluster.can_run[rows]
    later = cluster.gpus[waits & ~goes_first].sum(axis=0)
    return GpuCluster(nodes, cluster.type_names, held, len(rows), quota_gpus, can_run, places, later)


def _that_fit(gpus: Ints, capacity: Ints, first: Flags) -> Held:
    """The holders for which there is still room, those that keep what they hold before the others."""
    kept, free = np.zeros_like(gpus), capacity.astype(np.int64)
    for row in np.argsort(~first, kind="stable"):
        if (gpus[row] <= free).all():
            kept[row] = gpus[row]
            free = free - gpus[row]
    return Held.of(kept)


def about_all(parts: Sequence[tuple[Ints, Allocation]], n_jobs: int) -> Allocation:
    """Decisions about some rows each as one about all jobs; places and counts are not in it."""

    def spread(name: str, default: float, *, are_rows: bool = False) -> Any:
        every = None
        for rows, found in parts:
            if (column := getattr(found, name)) is not None:
                given = np.asarray(column)
                if are_rows:
                    given = np.where(given >= 0, rows[given], -1)
                every = np.full(n_jobs, default, given.dtype) if every is None else every
                every[rows] = given
        return every

    def named(name: str) -> dict[int, str]:
        texts: list[tuple[Ints, Mapping[int, str]]] = [(rows, getattr(found, name)) for rows, found in parts]
        return {int(rows[row]): text for rows, told in texts for row, text in told.items()}

    admitted = [rows[found.admitted] for rows, found in parts if found.admitted is not None]
    return Allocation(
        local_batch=spread("local_batch", 0.0),
        accumulation=spread("accumulation", 0),
        partner_row=spread("partner_row", -1, are_rows=True),
        share_frac=spread("share_frac", 1.0),
        rejected=named("rejected"),
        stopped=named("stopped"),
        admitted=np.concatenate(admitted) if admitted else None,
        reasons=named("reasons"),
        planned_end_s=spread("planned_end_s", np.inf),
        planned_finish_s=spread("planned_finish_s", np.inf),
        wake_s=min((found.wake_s for _, found in parts), default=np.inf),
    )


def within_room(allocation: Allocation, held: Held, cluster: GpuCluster) -> tuple[Allocation, Held]:
    """Without jobs for which their nodes have no CPUs or memory left; those that stay go first."""
    places, n_jobs = cluster.places, cluster.n_jobs
    if places is None or not places.is_tight:
        return allocation, held
    gpus = np.zeros((n_jobs, len(cluster.nodes)), np.int64)
    gpus[held.rows] = held.gpus
    stays = (gpus == cluster.gpus).all(axis=1)
    room, lost = places.room.copy(), np.zeros(n_jobs, np.bool_)
    for row in held.rows[np.argsort(~stays[held.rows], kind="stable")]:
        lost[row] = bool((gpus[row] > places.usable(row, gpus[row], room)).any())
        if not lost[row]:
            room = room - gpus[row][:, None] * places.asks[row]
    if not lost.any():
        return allocation, held
    reasons = {int(row): "its nodes have no CPUs or memory left for it" for row in np.flatnonzero(lost)}
    made = replace(allocation, reasons={**allocation.reasons, **reasons})
    partner = partners_of(allocation, n_jobs)
    alone = lost | ((partner >= 0) & lost[partner])
    if made.partner_row is not None:
        made = replace(made, partner_row=np.where(alone, -1, partner))
    if made.share_frac is not None:
        made = replace(made, share_frac=np.where(alone, 1.0, made.share_frac))
    return made, Held.of(np.where(lost[:, None], 0, gpus))


def counted_once(partner: Ints) -> Flags:
    """Whether the GPUs of each job count: not of the second of a pair, [jobs]."""
    return ~is_second(partner)


def within_quotas(allocation: Allocation, jobs: Records, cluster: GpuCluster) -> Allocation:
    """The allocation without what is over the quotas of tenants.

    A tenant's jobs keep what they were given while the sum is within the quota: first those that may not be
    preempted, then by submission. A later and smaller job may pass one that does not fit. Jobs that may not
    be preempted keep as many GPUs as they hold.
    """
    given = np.asarray(allocation.counts if allocation.gpus is None else allocation.gpus)
    counts = given.sum(axis=1)
    fixed = np.zeros(len(jobs), np.bool_)
    fixed[cluster.now_held.rows] = True
    fixed &= ~jobs["preemptible"] | jobs["pinned"]
    least = np.where(fixed, np.minimum(cluster.gpus.sum(axis=1), counts), 0)
    over = _over(counts, least, jobs["tenant_idx"], cluster.quota_gpus, np.argsort(~fixed, kind="stable"))
    if not over.any():
        return allocation
    left = np.where(over[:, None], _first(given, least), given)
    kept = replace(allocation, counts=left) if allocation.gpus is None else replace(allocation, gpus=left)
    partner = partners_of(allocation, len(jobs))
    alone = over | ((partner >= 0) & over[partner])
    if allocation.partner_row is not None:
        kept = replace(kept, partner_row=np.where(alone, -1, partner))
    if allocation.share_frac is not None:
        kept = replace(kept, share_frac=np.where(alone, 1.0, allocation.share_frac))
    return kept


def _first(given: Ints, least: Ints) -> Ints:
    """The first `least` [jobs] of the GPUs that each job was given, by column."""
    before = np.cumsum(given, axis=1) - given
    return np.clip(least[:, None] - before, 0, given)


def _over(counts: Ints, least: Ints, tenant: Ints, quota_gpus: Floats, order: Ints) -> Flags:
    """Whether what each job has beyond its least is over the quota of its tenant, the jobs in this order."""
    over = np.zeros(len(counts), np.bool_)
    free = quota_gpus - np.bincount(tenant, least, len(quota_gpus))
    exceeds = np.bincount(tenant, counts, len(quota_gpus)) > quota_gpus
    for row in order[exceeds[tenant[order]] & (counts[order] > 0)]:
        more = counts[row] - least[row]
        over[row] = more > free[tenant[row]]
        free[tenant[row]] -= 0 if over[row] else more
    return over
