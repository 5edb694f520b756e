"""Finds nodes for jobs of whole nodes or parts of one: whole nodes first, then parts, never split.

Jobs whose counts stay the same keep their nodes. Where that leaves no room, the node on which the fewest GPUs
would move is cleared, and all that wait for nodes are placed anew, until they fit. Parts that are powers of
two fit whenever there are GPUs enough; others may end up split over the nodes with the most free GPUs.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.training_jobs import Flags, GpuCluster, Held, Ints
from trimtab.training.gang_placement import most_free, staying_rows


def whole_nodes_first(counts: Ints, cluster: GpuCluster, fixed: Flags) -> Held:
    """Places of counts [jobs, types]. `fixed` [jobs]: must not move."""
    rows = np.flatnonzero(counts.sum(axis=1) > 0)
    gpus = np.zeros((len(rows), len(cluster.nodes)), np.int64)
    stays = staying_rows(counts, cluster, cluster.now_held)
    at = np.searchsorted(rows, cluster.now_held.rows[stays])
    gpus[at] = cluster.now_held.gpus[stays]
    for t in range(counts.shape[1]):
        nodes = np.flatnonzero(cluster.nodes["type_idx"] == t)
        here = np.flatnonzero(counts[rows, t])
        gpus[np.ix_(here, nodes)] = _packed(
            counts[rows[here], t], gpus[np.ix_(here, nodes)], cluster.capacity[nodes], fixed[rows[here]]
        )
    return Held(rows, gpus)


def _packed(wanted: Ints, gpus: Ints, capacity: Ints, fixed: Flags) -> Ints:
    """GPUs [jobs, nodes] on the nodes of one type; jobs with zeros so far are to be placed."""
    waits = gpus.sum(axis=1) == 0
    while not waits.all():
        placed = _placed(wanted, gpus, capacity, waits)
        if placed is not None:
            return placed
        movable = gpus[~(waits | fixed)]
        held = movable.sum(axis=0)
        alone = held - gpus[(gpus > 0).sum(axis=1) > 1].sum(axis=0)  # by jobs of one node: few GPUs move
        held = np.where(alone > 0, alone, held + capacity.sum())
        held[movable.sum(axis=0) == 0] = np.iinfo(np.int64).max
        if not len(movable):
            break
        cleared = (gpus[:, np.argmin(held)] > 0) & ~fixed
        gpus[cleared] = 0
        waits = waits | cleared
    placed = _placed(wanted, gpus, capacity, waits)
    return _split(wanted, gpus, capacity, waits) if placed is None else placed


def _placed(wanted: Ints, before: Ints, capacity: Ints, waits: Flags) -> Ints | None:
    """All that wait on nodes, the largest first; None if one does not fit."""
    gpus = before.copy()
    free = capacity - gpus.sum(axis=0)
    width = int(capacity.max(initial=0))
    for i in np.flatnonzero(waits)[np.argsort(-wanted[waits], kind="stable")]:
        whole, part = divmod(int(wanted[i]), max(width, 1))
        empty = np.flatnonzero(free == width)[:whole]
        if len(empty) < whole:
            return None
        gpus[i, empty] = width
        free[empty] = 0
        if part:
            enough = np.flatnonzero(free >= part)
            if not len(enough):
                return None
            tightest = enough[np.argmin(free[enough])]
            gpus[i, tightest] += part
            free[tightest] -= part
    return gpus


def _split(wanted: Ints, before: Ints, capacity: Ints, waits: Flags) -> Ints:
    gpus = before.copy()
    free = capacity - gpus.sum(axis=0)
    for i in np.flatnonzero(waits)[np.argsort(-wanted[waits], kind="stable")]:
        gpus[i] = most_free(free, int(wanted[i]))
        free -= gpus[i]
    return gpus
