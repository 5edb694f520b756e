"""Gavel's largest sum of throughputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState

_BARRIER = 1e-9  # share times what is missing, of jobs without a share


@dataclass(frozen=True)
class MaxSumThroughput(GavelAllocator):
    """Shares with the largest sum of steps per second.

    Idea
        Maximise the sum over jobs and types of speed times share, within the GPUs of each type. Gavel's
        mechanism gives rounds.
    Source
        Narayanan et al., Gavel, OSDI 2020, §4.2, "max_sum_throughput_perf" of its simulator.
    Reads
        gpus_requested, work_left, goodput.
    Cost
        O(jobs log jobs) for one type of GPU, a linear programme for several.
    When it wins / loses
        Jobs with small steps go first, which are often short. Jobs with large steps may starve.
    Deviations from the source
        Jobs by speed per GPU, the last one in part; ties go to the earlier job. Who gets no share runs where
        others leave GPUs: with `tie` "interior" in the order that an interior-point solver such as the
        source's ECOS leaves, by what the job lacks to get a share; with `tie` "deficit" in that of the time
        missed.
    """

    name: ClassVar[str] = "max-sum-throughput"
    tie: Literal["interior", "vertex"] = "interior"

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        """A continuous knapsack, or a linear programme."""
        if len(state.type_gpus) > 1:
            return _programme(state)
        order = np.argsort(-state.rate[:, 0] / state.gpus, kind="stable")
        before = np.cumsum(state.gpus[order]) - state.gpus[order]
        share = np.zeros((len(order), 1))
        share[order, 0] = np.clip((state.type_gpus[0] - before) / state.gpus[order], 0.0, 1.0)
        out = share[order, 0] == 0.0
        if out.any() and self.tie == "interior":
            price = (state.rate[order, 0] / state.gpus[order])[int(np.argmax(out)) - 1]
            missing = price * state.gpus[order[out]] - state.rate[order[out], 0]
            share[order[out], 0] = _BARRIER / np.maximum(missing, _BARRIER)
        return share


def _programme(state: ShareState) -> Floats:
    from scipy.optimize import linprog
    from scipy.sparse import block_array, csr_array, eye_array, kron

    jobs, types = state.rate.shape
    one_job = kron(eye_array(jobs), np.ones((1, types)))
    one_type = kron(csr_array(state.gpus[None, :]), eye_array(types))
    limit = np.concatenate([np.ones(jobs), state.type_gpus])
    rows: Any = block_array([[one_job], [one_type]]).tocsr()
    found: Any = linprog(-state.rate.ravel(), A_ub=rows, b_ub=limit, bounds=(0.0, 1.0), method="highs")
    share: Floats = found.x.reshape(jobs, types)
    return share
