"""Policies of Gavel's mechanism with the published solver: cvxpy and ECOS, of the extra `golden`.

Where a programme leaves shares free, the published simulators take what ECOS returns. The catalogue's
allocators have closed forms instead; these ones show what the difference makes.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.training.allocators.shared.gavel_mechanism import GavelAllocator, ShareState


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("cvxpy", "ecos"))


def solved(state: ShareState, objective: Any, more: Any = lambda x: []) -> Floats | None:
    """Shares [jobs, types] of a programme within time and GPUs; None = it has no solution."""
    import cvxpy

    x = cvxpy.Variable(state.rate.shape)
    gpus = np.repeat(state.gpus[:, None], state.rate.shape[1], axis=1)
    limits = [
        x >= 0,
        cvxpy.sum(cvxpy.multiply(gpus, x), axis=0) <= state.type_gpus,
        cvxpy.sum(x, axis=1) <= 1,
    ]
    problem = cvxpy.Problem(objective(x), limits + more(x))
    problem.solve(solver=cvxpy.ECOS)
    return None if problem.status != "optimal" else np.clip(x.value, 0.0, 1.0)


@dataclass(frozen=True)
class ConicMaxMin(GavelAllocator):
    """Max-min fairness that does not know speeds."""

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        import cvxpy

        equal = np.minimum(state.type_gpus / len(state.gpus), 1.0).sum()
        weight = np.repeat(state.gpus[:, None] / equal, state.rate.shape[1], axis=1)
        found = solved(
            state, lambda x: cvxpy.Maximize(cvxpy.min(cvxpy.sum(cvxpy.multiply(weight, x), axis=1)))
        )
        assert found is not None
        return found


@dataclass(frozen=True)
class ConicMaxSum(GavelAllocator):
    """Largest sum of throughputs."""

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        import cvxpy

        found = solved(
            state, lambda x: cvxpy.Maximize(cvxpy.sum(cvxpy.sum(cvxpy.multiply(state.rate, x), axis=1)))
        )
        assert found is not None
        return found


@dataclass(frozen=True)
class ConicOssp(GavelAllocator):
    """Least time in which all can end, to 5 %."""

    def time_shares(self, state: ShareState, memory: Any) -> Floats:
        import cvxpy

        low_s, high_s, found = 100.0, 1e6, None
        while 1.05 * low_s < high_s:
            middle_s = (low_s + high_s) / 2.0
            shares = solved(
                state,
                lambda x: cvxpy.Maximize(1),
                lambda x, s=middle_s: [
                    cvxpy.sum(cvxpy.multiply(state.rate, x), axis=1) >= state.jobs["work_left"] / s
                ],
            )
            if shares is None:
                low_s = middle_s
            else:
                high_s, found = middle_s, shares
        assert found is not None
        return found
