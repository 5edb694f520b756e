"""Quotas of tenants, for allocators that know none: what is over a quota is taken back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.domain.allocator import Allocation
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Ints, Records
from trimtab.training.shared_gpus import partners_of


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
