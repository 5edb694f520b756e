"""Two jobs on the same GPUs: who is whose partner, where a pair lies, and how its time is counted.

A pair holds the same GPUs. Either both run at once (share 1: space sharing, each slowed by the other), or
they take turns (shares that sum to at most 1). GPU time is charged once: each pays its part of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trimtab.domain.allocator import Allocation
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Held, Ints
from trimtab.training.gang_placement import PlacementRule
from trimtab.training.truths.progress import Running


def partners_of(allocation: Allocation, n_jobs: int) -> Ints:
    """Row of each job's partner, [jobs]; -1 = none."""
    if allocation.partner_row is None:
        return np.full(n_jobs, -1, np.int64)
    return np.asarray(allocation.partner_row, np.int64)


def is_second(partner: Ints) -> Flags:
    """Whether each row is the later one of a pair, [jobs]. Without these rows every GPU counts once."""
    return (partner >= 0) & (partner < np.arange(len(partner)))


def placed(allocation: Allocation, rule: PlacementRule, cluster: GpuCluster) -> Held:
    """The GPUs of each job: those that the allocator chose, or those that the rule finds for its counts.

    A pair is placed once. Where one of them runs already with as many GPUs, the other comes to it.
    """
    if allocation.counts is None:
        return Held.of(np.asarray(allocation.gpus))
    counts = np.asarray(allocation.counts)
    if allocation.partner_row is None:
        return rule(counts, _apart(cluster, counts))
    partner = partners_of(allocation, len(counts))
    guests = _guests(counts, partner, cluster)
    alone = np.where(guests[:, None], 0, counts)
    hosts = rule(alone, _apart(cluster, alone))
    if not guests.any():
        return hosts
    gpus = np.zeros((len(counts), len(cluster.nodes)), hosts.gpus.dtype)
    gpus[hosts.rows] = hosts.gpus
    gpus[guests] = gpus[partner[guests]]
    return Held.of(gpus)


def _apart(cluster: GpuCluster, counts: Any) -> GpuCluster:
    """The cluster without those holders that can't stay because former partners keep the GPUs of both."""
    held = cluster.now_held
    if (held.per_node <= cluster.capacity).all():
        return cluster
    free, keeps = cluster.nodes["gpus"].astype(np.int64), np.zeros(len(held.rows), np.bool_)
    for i in np.flatnonzero((counts[held.rows] == cluster.types_held(held)).all(axis=1)):
        keeps[i] = bool((held.gpus[i] <= free).all())
        free -= np.where(keeps[i], held.gpus[i], 0)
    return replace(cluster, now_held=Held(held.rows[keeps], held.gpus[keeps]))


def _guests(counts: Any, partner: Ints, cluster: GpuCluster) -> Flags:
    """Which of each pair comes to the other, [jobs]."""
    stays = (counts == cluster.held).all(axis=1) & (counts.sum(axis=1) > 0)
    guests = is_second(partner)
    for row in np.flatnonzero(guests):
        first = partner[row]
        if stays[row] and not stays[first]:
            guests[row], guests[first] = False, True
    return guests


def partner_rows(running: Running) -> Ints:
    """Position of each row's partner among the rows; -1 = none, or it has ended."""
    found = np.full(len(running), -1, np.int64)
    for i in np.flatnonzero(running.partner_job_idx >= 0):
        at = np.flatnonzero(running.job_idx == running.partner_job_idx[i])
        found[i] = at[0] if len(at) else -1
    return found


def charged_s(running: Running, seconds: Floats) -> tuple[Floats, Floats]:
    """Of the seconds that each row held its GPUs: those that it pays, and among them those shared."""
    if not (running.partner_job_idx >= 0).any():
        return seconds, np.zeros(len(running))
    partner = partner_rows(running)
    both_s = np.where(partner >= 0, np.minimum(seconds, seconds[partner]), 0.0)
    part = running.share_frac / (running.share_frac + running.share_frac[partner])
    return seconds - both_s * (1.0 - part), both_s * part


def speeds_together(running: Running, alone: Floats, kept: Floats) -> Floats:
    """Work per second of each row while its partner is there.

    `kept` is the share of its own speed that a row keeps where both run at once.
    """
    at_once = (running.partner_job_idx >= 0) & (running.share_frac >= 1.0)
    return alone * np.where(at_once, kept, running.share_frac)


def pair_needs_s(left: Floats, together: Floats, alone: Floats, partner: Ints) -> Floats:
    """Seconds that each row needs, when it goes on alone after the end of its partner; inf = never."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first_s = np.where(together > 0, left / together, np.inf)
        ends_s = np.where(partner >= 0, first_s[partner], np.inf)
        later_s = ends_s + (left - together * ends_s) / alone
    is_later = first_s > ends_s
    return np.where(is_later, np.where(alone > 0, later_s, np.inf), first_s)


def pair_work(seconds: Floats, together: Floats, alone: Floats, partner: Ints, needs_s: Floats) -> Floats:
    """Work of each row in its seconds: beside its partner, and alone once that has ended."""
    ends_s = np.where(partner >= 0, needs_s[partner], np.inf)
    ends_s = np.where((partner >= 0) & (ends_s <= seconds[partner]), ends_s, np.inf)
    both_s = np.minimum(seconds, ends_s)
    return together * both_s + alone * (seconds - both_s)
