"""GPUs one by one to the job whose remaining time the next one shortens most, as Optimus gives them.

Source: Peng et al., Optimus, EuroSys 2018, §4.1.
"""

from __future__ import annotations

import heapq

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints, Records


def least_and_most(jobs: Records, free: int) -> tuple[Ints, Ints]:
    """Fewest and most GPUs of each job in a cluster with so many."""
    least = np.where(jobs["scales"], np.maximum(jobs["gpus_min"], 1), jobs["gpus_requested"]).astype(np.int64)
    return least, np.where(jobs["scales"], np.minimum(jobs["gpus_max"], free), least).astype(np.int64)


def gains_of(seconds: Floats) -> Floats:
    """Seconds that GPU k + 1 saves each job, [jobs, k from 0]; -inf = it can't have it.

    `seconds` [jobs, GPUs from 1 on]: remaining time; inf = it can't run so.
    """
    gain = np.full((len(seconds), seconds.shape[1] + 1), -np.inf)
    with np.errstate(invalid="ignore"):
        gain[:, 1:-1] = seconds[:, :-1] - seconds[:, 1:]
    return np.where(np.isfinite(gain), gain, -np.inf)


def raised(counts: Ints, most: Ints, free: int, gain: Floats) -> Ints:
    """Counts with the free GPUs, as long as one gains: `gain` [jobs, k] of GPU k + 1."""
    counts = counts.copy()
    heap = [
        (-float(gain[row, n]), row) for row, n in enumerate(counts) if 0 < n < most[row] and gain[row, n] > 0
    ]
    heapq.heapify(heap)
    while heap and free > 0:
        _, row = heapq.heappop(heap)
        counts[row] += 1
        free -= 1
        n = counts[row]
        if n < most[row] and gain[row, n] > 0:
            heapq.heappush(heap, (-float(gain[row, n]), row))
    return counts
