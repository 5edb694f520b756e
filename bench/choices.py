"""Sia's round: from the goodput of each job with each configuration to the chosen ones."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.figures import Benchmark, Effort, Measured, at_most, figure
from trimtab.solvers.multiple_choice import Choices, Chosen, choose

SIZES = {64: (20, 2.0), 512: (160, 20.0), 2_048: (640, 200.0), 10_000: (2_000, 2_000.0)}  # jobs, ms at most
SHARES, NODE_GPUS = np.array([24, 24, 16]) / 64, (4, 8, 8)  # of the GPUs by type, as in Sia's evaluation
SPEEDS, GPUS_MAX, IDLE_COST, EXACT_TO = (1.0, 1.6, 3.0), 64, 1.1, 512


def instance(gpus: int, jobs: int, seed: int) -> Choices:
    """Jobs that scale by Amdahl's law, each with its own speed on each type, some of them running."""
    rng = np.random.default_rng([seed, gpus])
    capacity = (np.floor(SHARES * gpus / 8) * 8).astype(np.int64)
    pairs = []
    for t, width in enumerate(NODE_GPUS):
        most = min(int(capacity[t]), GPUS_MAX)
        counts = {1 << k for k in range(width.bit_length())} | set(range(width, most + 1, width))
        pairs += [(t, n) for n in sorted(counts)]
    resource, units = np.array(pairs).T
    speed = np.array(SPEEDS) * rng.lognormal(0.0, 0.3, (jobs, 3))
    serial_frac = rng.uniform(0.01, 0.3, (jobs, 1))
    goodput = speed[:, resource] * units / (1 + serial_frac * (units - 1))
    usable = units <= 2 ** rng.integers(0, 7, (jobs, 1))
    times = goodput / np.where(usable, goodput, np.inf).min(axis=1, keepdims=True)
    kept = np.where(np.arange(len(units)) == rng.integers(0, len(units), (jobs, 1)), 1.0, 0.8)
    cost = np.where(usable, np.round((times * kept) ** -0.5, 2), np.inf)
    return Choices(cost, np.full(jobs, IDLE_COST), units, resource, capacity, 0.01)


def _chosen(problem: Choices, gpus: int) -> tuple[float, Chosen]:
    begun_s = time.process_time()
    chosen = choose(problem, 0.0 if gpus <= EXACT_TO else 1e-3)
    spent_ms = 1e3 * (time.process_time() - begun_s)
    assert chosen is not None
    return spent_ms, chosen


def measure(effort: Effort) -> Iterator[Measured]:
    _chosen(instance(64, 20, 0), 64)  # compiles
    for gpus in (64,) if effort.is_quick else SIZES:
        jobs, most_ms = SIZES[gpus]
        found = [_chosen(instance(gpus, jobs, seed), gpus) for seed in range(1 if effort.is_quick else 15)]
        labels = {"GPUs": f"{gpus:,}", "jobs": f"{jobs:,}"}
        yield figure([ms for ms, _ in found], "ms CPU", at_most(most_ms), **labels, what="time")
        gaps = [100 * chosen.gap_frac for _, chosen in found]
        most_gap = at_most(0.0 if gpus <= EXACT_TO else 1.0)
        yield figure(gaps, "%", most_gap, **labels, what="proven gap")


BENCHMARK = Benchmark(
    "choices",
    "Sia's integer programme",
    "Generated goodput of jobs on three types of GPU, with restarts; to the proven optimum up to 512 GPUs, "
    "beyond within 0.1 %. Fifteen instances each.",
    measure,
)
