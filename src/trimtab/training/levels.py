"""What is known of jobs' speeds: numbers of GPUs with estimates, ways to run, answers without profiles.

The ways in which jobs may run: numbers of GPUs of each type.

Powers of two within a node, then whole nodes, as in Jayaram Subramanya et al., Sia, SOSP 2023, §3.1; and what
rigid jobs ask for, and what jobs that stay have now.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.allocator import Speed
from trimtab.domain.training_jobs import AGENT_BATCH, CONFIGS, Flags, Floats, GpuCluster, Ints, Records


def levels_within(speed: Speed, most: int) -> int:
    """The largest level up to `most`; 0 = none. Without levels any number is one."""
    levels = speed.levels
    if not len(levels):
        return max(most, 0)
    at = int(np.searchsorted(levels, most, side="right"))
    return int(levels[at - 1]) if at else 0


def configurations(jobs: Records, cluster: GpuCluster, keeps: Flags) -> Records:
    """All that a job may get: powers of two within a node, whole nodes, what rigid and kept jobs need."""
    most = int(np.where(jobs["scales"], jobs["gpus_max"], jobs["gpus_requested"]).max(initial=1))
    rigid = set(jobs["gpus_requested"][~jobs["scales"]].tolist())
    found = []
    for t in range(len(cluster.type_names)):
        of_type = cluster.capacity[cluster.nodes["type_idx"] == t]
        width = int(of_type.max(initial=0))
        if width:
            limit = min(int(of_type.sum()), most)
            counts = rigid | set(cluster.held[keeps, t].tolist()) | set(range(width, limit + 1, width))
            counts |= {1 << k for k in range(width.bit_length()) if 1 << k < width}
            found += [(t, -(-n // width), n) for n in sorted(counts) if 0 < n <= limit]
    ways = np.zeros(len(found), CONFIGS)
    ways["type_idx"], ways["nodes"], ways["gpus"] = np.array(found, np.int64).reshape(-1, 3).T
    ways["local_batch"] = AGENT_BATCH
    return ways


def holders(jobs: Records, cluster: GpuCluster) -> tuple[Flags, Flags]:
    """Which jobs hold GPUs, all on nodes that are up, and which of them must keep them, [jobs]."""
    held: Flags = cluster.gpus.sum(axis=1) > 0
    held &= ~(cluster.gpus[:, ~cluster.nodes["up"]] > 0).any(axis=1)
    return held, held & (jobs["pinned"] | ~jobs["preemptible"])


def present_configuration(cluster: GpuCluster, ways: Records) -> Ints:
    """The configuration that each job has; -1 = none of these."""
    held = cluster.held
    type_idx, count = held.argmax(axis=1), held.sum(axis=1)
    same = (ways["type_idx"] == type_idx[:, None]) & (ways["gpus"] == count[:, None])
    return np.where(same.any(axis=1), same.argmax(axis=1), -1)


def equal_parts(jobs: Records, configs: Records) -> tuple[Floats, Ints]:
    """The batch that each job asked for, divided among its GPUs; no further passes."""
    local = jobs["batch"] / np.maximum(configs["gpus"], 1)
    return local, np.zeros(np.shape(local), np.int64)


def no_services(job_idx: Ints) -> tuple[Floats, Floats]:
    """The reports of jobs that are no services: load 0, slowdown 1."""
    return np.zeros(len(job_idx)), np.ones(len(job_idx))


def never_measured(jobs: Records, partners: Records, configs: Records) -> tuple[Floats, Floats]:
    """Speeds of two jobs on the same GPUs that were not measured: nan."""
    unknown = np.full(np.broadcast_shapes(jobs.shape, partners.shape, configs.shape), np.nan)
    return unknown, unknown
