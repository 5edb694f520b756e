"""Evolution strategies with successive halving: fewer candidates from round to round, on more requests each.

Source: H.-G. Beyer, H.-P. Schwefel, "Evolution strategies – A comprehensive introduction", Natural Computing
1(1), 2002, the (μ/μ_w + λ) strategy with one step size a coordinate, here the deviation of the parents;
halving: K. Jamieson, A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.experiments.tuning.space import Floats, Space


@dataclass(frozen=True, slots=True)
class Round:
    """A round of the search: its share of the first round's candidates, and of the requests to train on."""

    of_candidates: float
    of_requests: float


ROUNDS: Final = (Round(1.0, 0.25), Round(0.5, 0.5), Round(1 / 3, 1.0), Round(1 / 3, 1.0))
LEAST_CANDIDATES: Final = 6
_KEPT: Final = 0.5  # of a round's candidates that are those of the round before
_PARENTS: Final = 0.25  # of the candidates of the round before
_LEAST_STEP: Final = 0.03  # of the range of a parameter


class Evolution:
    """The candidates of each round, from the scores of the round before; the same for the same seed."""

    def __init__(self, space: Space, candidates: int, seed: int) -> None:
        self._space, self._candidates = space, candidates
        self._draw = np.random.default_rng(seed)
        self._points: dict[str, Floats] = {}  # policy → its point

    def first(self) -> list[str]:
        """The first round: points spread over the whole cube, by a scrambled Sobol sequence."""
        from scipy.stats.qmc import Sobol

        size = 1 << math.ceil(math.log2(self._size(0)))  # a Sobol sequence is even at powers of two
        points = Sobol(len(self._space.axes), rng=self._draw).random(size)[: self._size(0)]
        return self._named(points)

    def next(self, k: int, scores: Mapping[str, float]) -> list[str]:
        """Round k: the best of the round before, and new ones around the weighted mean of its parents."""
        best = sorted(scores, key=lambda policy: scores[policy])
        parents = best[: max(2, round(_PARENTS * len(best)))]
        weights = np.array([[math.log((len(parents) + 0.5) / i)] for i in range(1, len(parents) + 1)])
        weights /= weights.sum()
        points = np.stack([self._points[policy] for policy in parents])
        mean = (weights * points).sum(axis=0)
        step = np.maximum(np.sqrt((weights * (points - mean) ** 2).sum(axis=0)), _LEAST_STEP)
        size = self._size(k)
        kept = best[: round(_KEPT * size)]
        drawn = mean + step * self._draw.standard_normal((size - len(kept), len(mean)))
        return list(dict.fromkeys([*kept, *self._named(np.clip(drawn, 0.0, 1.0))]))

    def add(self, policy: str, point: Floats) -> None:
        """Tell where a policy lies that no round drew."""
        self._points[policy] = point

    def _size(self, k: int) -> int:
        return max(LEAST_CANDIDATES, round(self._candidates * ROUNDS[k].of_candidates))

    def _named(self, points: Floats) -> list[str]:
        found: Sequence[tuple[str | None, Floats]] = [
            (self._space.spelled(self._space.values(point)), point) for point in points
        ]
        for policy, point in found:
            if policy is not None:
                self._points.setdefault(policy, point)
        return list(dict.fromkeys(policy for policy, _ in found if policy is not None))
