"""A part of several allocators: give jobs the GPUs that they asked for, one after another."""

from __future__ import annotations

import numpy as np

from trimtab.domain.training_jobs import GpuCluster, Ints, Records


def given_in_order(
    jobs: Records, cluster: GpuCluster, order: Ints, *, may_pass: bool, wanted: Ints | None = None
) -> Ints:
    """Counts [jobs, types]: each job in this order gets all that it wants, or nothing; others get nothing.

    A job takes GPUs of the type that it holds, else of that with the most free ones, of those on which it
    runs. `may_pass`: jobs behind one that does not fit may still get GPUs. `wanted` [jobs] defaults to what
    they asked for.
    """
    wanted = jobs["gpus_requested"] if wanted is None else wanted
    if len(cluster.type_names) == 1:
        counts = np.zeros((len(jobs), 1), np.int64)
        _give_one_type(counts[:, 0], wanted[order], int(cluster.type_gpus[0]), order, may_pass)
        return counts
    counts = np.zeros((len(jobs), len(cluster.type_names)), np.int64)
    free = cluster.type_gpus.copy()
    for row in order:
        held = cluster.held[row]
        t = int(np.argmax(held)) if held.any() else int(np.argmax(np.where(cluster.runs_on[row], free, -1)))
        if free[t] >= wanted[row]:
            counts[row, t] = wanted[row]
            free[t] -= wanted[row]
        elif not may_pass:
            break
    return counts


def _give_one_type(counts: Ints, wanted: Ints, free: int, order: Ints, may_pass: bool) -> None:
    fits = np.cumsum(wanted) <= free
    first = len(wanted) if fits.all() else int(np.argmin(fits))
    counts[order[:first]] = wanted[:first]
    free -= int(wanted[:first].sum())
    if may_pass:
        for i in first + np.flatnonzero(wanted[first:] <= free):
            if free <= 0:
                break
            if wanted[i] <= free:
                counts[order[i]] = wanted[i]
                free -= int(wanted[i])


def of_one_type(chosen: Ints, cluster: GpuCluster) -> Ints:
    """Counts [jobs, types]: each job on the type that it holds, else on the one with most free GPUs."""
    counts = np.zeros((len(chosen), len(cluster.type_names)), np.int64)
    free = cluster.type_gpus.copy()
    for row in np.argsort(-chosen, kind="stable"):
        held = cluster.held[row]
        t = int(np.argmax(held)) if held.any() else int(np.argmax(free))
        t = t if free[t] >= chosen[row] else int(np.argmax(free))
        if free[t] >= chosen[row]:
            counts[row, t] = chosen[row]
            free[t] -= chosen[row]
    return counts
