"""CPU time of one decision of weighted-goodput, with three types of GPU, running jobs and deadlines."""

from __future__ import annotations

import time

import numpy as np

from bench.choices import GPUS_MAX, NODE_GPUS, SHARES, SPEEDS
from bench.training.cases import OURS
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.training.allocator_catalogue import find_allocator
from trimtab.training.truths.table_model import TableSpeed

ROUND_TIME = "round time"
SIZES = {64: 20, 512: 160, 2_048: 640}  # GPUs → jobs, as in Sia's evaluation
TIMES = 15


def decision_s(gpus: int, seed: int) -> float:
    """CPU seconds of the second of two decisions: the first one gives the jobs GPUs."""
    rng = np.random.default_rng([seed, gpus])
    n = SIZES[gpus]
    capacity = (np.floor(SHARES * gpus / 8) * 8).astype(np.int64)
    width = np.repeat(NODE_GPUS, capacity // NODE_GPUS)
    nodes = gpu_nodes(np.repeat(np.arange(3), capacity // NODE_GPUS), width)
    levels = np.arange(1, GPUS_MAX + 1)
    serial = rng.uniform(0.01, 0.3, (1, n, 1))
    rate = np.array(SPEEDS)[:, None, None] * rng.lognormal(0.0, 0.3, (3, n, 1))
    table = ScalingTable(
        levels,
        tuple(map(str, range(n))),
        rate * levels / (1 + serial * (levels - 1)),
        np.arange(n)[:, None],
        np.ones(1),
    )
    jobs = np.zeros(n, JOBS)
    jobs["job_idx"] = np.arange(n)
    jobs["scales"] = jobs["preemptible"] = True
    jobs["gpus_min"], jobs["gpus_max"] = 1, 2 ** rng.integers(0, 7, n)
    jobs["gpus_requested"] = np.minimum(jobs["gpus_max"], 4)
    jobs["work_left"] = jobs["work_total"] = rng.lognormal(8.0, 1.5, n)
    jobs["deadline_s"] = np.where(rng.random(n) < 0.3, jobs["work_left"] * rng.uniform(0.2, 2.0, n), np.inf)
    jobs["restart_s"] = 30.0
    speed, made = TableSpeed(table, np.arange(n)), find_allocator(OURS)
    held = Held.of(np.zeros((n, len(nodes)), np.int64))
    memory = made.init(None, n)
    spent_s = 0.0
    for now_s in (0.0, 60.0):
        jobs["age_s"] = now_s
        cluster = GpuCluster(nodes, ("a", "b", "c"), held, n)
        begun_s = time.process_time()
        allocation = made.allocate(jobs, cluster, now_s, speed, memory)
        spent_s = time.process_time() - begun_s
        held = Held.of(np.asarray(allocation.gpus))
    return spent_s


def round_times() -> dict[str, list[float]]:
    decision_s(64, 0)  # compiles
    return {str(gpus): [round(1e3 * decision_s(gpus, seed), 2) for seed in range(TIMES)] for gpus in SIZES}
