"""Rules that find nodes for the numbers of GPUs that an allocator gives.

    consolidated    fewest nodes: a node into which the job just fits, else whole nodes
    spread          the nodes with the most free GPUs first
    buddy           as consolidated; all jobs are placed anew, largest first, when that avoids a split

Every rule leaves a job where it is while its counts stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import kernel
from trimtab.domain.training_jobs import GpuCluster, Held, Ints

PlacementRule: TypeAlias = Callable[[Ints, GpuCluster], Held]
"""(counts [jobs, types], cluster) → the GPUs of each job that gets any."""

Take: TypeAlias = Callable[[Ints, int], Ints]
"""(free GPUs [nodes], GPUs to place) → GPUs taken of each node [nodes]."""


def consolidated(counts: Ints, cluster: GpuCluster) -> Held:
    """Fewest nodes. Jobs that change are placed in descending order of GPUs."""
    return _placed(counts, cluster, cluster.now_held, _fewest_nodes)


def spread(counts: Ints, cluster: GpuCluster) -> Held:
    """The nodes with the most free GPUs first. Jobs that change are placed in ascending order of GPUs."""
    return _placed(counts, cluster, cluster.now_held, most_free, descending=False)


def buddy(counts: Ints, cluster: GpuCluster) -> Held:
    """Fewest nodes, with all jobs placed anew if one would be split over more nodes than it needs."""
    held = consolidated(counts, cluster)
    needed = np.ceil(counts[held.rows].sum(axis=1) / max(cluster.gpus_per_node, 1))
    if (held.n_nodes <= needed).all():
        return held
    none = Held(held.rows[:0], held.gpus[:0])
    return _placed(counts, cluster, none, _fewest_nodes)


def _placed(counts: Ints, cluster: GpuCluster, before: Held, take: Take, *, descending: bool = True) -> Held:
    sizes = counts.sum(axis=1) if counts.shape[1] > 1 else counts[:, 0]
    rows = np.flatnonzero(sizes > 0)
    stays = staying_rows(counts, cluster, before)
    at = np.searchsorted(rows, before.rows[stays])
    gpus = kept_gpus(np.ascontiguousarray(before.gpus, np.int32), stays, at, len(rows))
    is_new = np.ones(len(rows), np.bool_)
    is_new[at] = False
    free = cluster.capacity - before.per_node
    if len(stays) < len(before.rows):
        free += np.delete(before.gpus, stays, axis=0).sum(axis=0)
    changed = np.flatnonzero(is_new)
    if not len(changed):
        return Held(rows, gpus)
    size = sizes[rows[changed]]
    types = [np.flatnonzero(cluster.nodes["type_idx"] == t) for t in range(counts.shape[1])]
    places = cluster.places if cluster.places is not None and cluster.places.is_tight else None
    for i in changed[np.argsort(-size if descending else size, kind="stable")]:
        row = rows[i]
        usable = free if places is None else places.usable(row, free, places.of(rows).left(gpus))
        for t in np.flatnonzero(counts[row]):
            nodes, count = types[t], int(counts[row, t])
            gpus[i, nodes] = take(_preferred(usable[nodes], cluster.later, nodes, count), count)
        if places is not None and gpus[i].sum() < sizes[row]:
            gpus[i] = 0  # no nodes have CPUs and memory for it now: it waits
        free -= gpus[i]
    return Held(rows, gpus) if places is None else _holders(rows, gpus)


def _preferred(usable: Ints, later: Ints | None, nodes: Ints, count: int) -> Ints:
    """GPUs that nobody holds, if there are enough of them; else all that may be taken."""
    if later is None:
        return usable
    idle = np.minimum(usable, np.maximum(usable - later[nodes], 0))
    return idle if idle.sum() >= count else usable


def _holders(rows: Ints, gpus: NDArray[Any]) -> Held:
    holds = gpus.any(axis=1)
    return Held(rows[holds], gpus[holds])


def staying_rows(counts: Ints, cluster: GpuCluster, before: Held) -> Ints:
    """Positions in `before` of the jobs that keep their count and lie on nodes that are up."""
    if counts.shape[1] == 1:
        same = counts[before.rows, 0] == before.n_gpus
    else:
        same = (counts[before.rows] == cluster.types_held(before)).all(axis=1)
    same &= before.n_gpus > 0
    return np.flatnonzero(same if cluster.is_all_up else same & ~before.on_down(cluster.nodes))


@kernel
def kept_gpus(held: Any, stays: Any, at: Any, n_rows: int) -> Any:
    """GPUs [rows, nodes], in which rows `at` have what the holders `stays` have of `held`."""
    gpus = np.zeros((n_rows, held.shape[1]), np.int32)
    for k in range(len(stays)):
        gpus[at[k]] = held[stays[k]]
    return gpus


def _fewest_nodes(free: Ints, count: int) -> Ints:
    taken = np.zeros_like(free)
    while count > 0:
        enough = np.flatnonzero(free - taken >= count)
        if len(enough):
            tightest = enough[np.argmin((free - taken)[enough])]
            taken[tightest] += count
            return taken
        j = int(np.argmax(free - taken))
        got = int(free[j] - taken[j])
        if got <= 0:
            return taken  # more than there is: the check of the allocation says so
        taken[j] += got
        count -= got
    return taken


def most_free(free: Ints, count: int) -> Ints:
    """GPUs taken of each node [nodes]: all of the node with the most free GPUs, then of the next."""
    taken = np.zeros_like(free)
    for j in np.argsort(-free, kind="stable"):
        taken[j] = min(free[j], count)
        count -= taken[j]
        if count == 0:
            break
    return taken


PLACEMENT_RULES: dict[str, PlacementRule] = {
    "consolidated": consolidated,
    "spread": spread,
    "buddy": buddy,
}
