"""The demand of one request of each class for each resource, learned from the use that nodes report.

use of a node = its background + Σ over classes of demand × requests in flight: a linear regression with a
constant for each node and demands that are not negative. Sums of products of deviations from each node's own
mean leave the constants out (the within estimator of panel data). Older observations count less and less.
The normal equations are solved by coordinate descent, each coordinate held at 0 or more; for non-negative
least squares that converges to the optimum (Franc, Hlaváč, Navara: "Sequential coordinate-wise algorithm for
the non-negative least squares problem", CAIP 2005; from memory).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from trimtab.domain.cluster import RESOURCES, Floats

FORGET: Final = 0.995  # weight of the past at each observation
MEAN_OF: Final = 100  # observations of a node over which its means run
ENOUGH: Final = 8  # observations until a demand counts
_SWEEPS: Final = 50
_LEAST: Final = 1e-9


class DemandFit:
    """The regression of all classes and resources. O(classes²) for an observation of one resource."""

    def __init__(self) -> None:
        many = len(RESOURCES)
        self._xx = np.zeros((many, 0, 0))  # [resources, classes, classes]
        self._xy = np.zeros((many, 0))  # [resources, classes]
        self._seen = np.zeros(many, np.int64)
        self._means: dict[tuple[int, int], tuple[int, dict[int, float], float]] = {}  # n, requests, use
        self._solved: Floats | None = None

    def observe(self, node_idx: int, requests: Mapping[int, float], used: Sequence[float | None]) -> None:
        """A node reports what it uses of each resource, with so many requests of each class there."""
        self._make_room(max(requests, default=-1) + 1)
        for k, amount in enumerate(used):
            if amount is not None:
                self._observe_one(node_idx, k, requests, amount)
        self._solved = None

    def demand(self, rows: int) -> Floats:
        """Demand of each class [rows, resources]; 0 where nothing is known yet."""
        if self._solved is None:
            self._solved = self._solve()
        out = np.zeros((rows, len(RESOURCES)))
        many = min(rows, len(self._solved))
        out[:many] = self._solved[:many]
        return out

    def _observe_one(self, node_idx: int, k: int, requests: Mapping[int, float], used: float) -> None:
        n, mean_x, mean_y = self._means.get((node_idx, k), (0, {}, 0.0))
        share = 1.0 / min(n + 1, MEAN_OF)
        off_x = np.zeros(self._xy.shape[1])
        for c in {*mean_x, *requests}:
            off_x[c] = requests.get(c, 0.0) - mean_x.get(c, 0.0)
            mean_x[c] = mean_x.get(c, 0.0) + share * off_x[c]
        off_y = used - mean_y
        self._means[node_idx, k] = n + 1, mean_x, mean_y + share * off_y
        self._seen[k] += 1
        self._xx[k] *= FORGET
        self._xy[k] *= FORGET
        self._xx[k] += (1.0 - share) * off_x[:, None] * off_x
        self._xy[k] += (1.0 - share) * off_y * off_x

    def _make_room(self, classes: int) -> None:
        more = classes - self._xy.shape[1]
        if more > 0:
            self._xx = np.pad(self._xx, ((0, 0), (0, more), (0, more)))
            self._xy = np.pad(self._xy, ((0, 0), (0, more)))

    def _solve(self) -> Floats:
        found = np.zeros(self._xy.shape)
        for k in np.flatnonzero(self._seen >= ENOUGH):
            found[k] = non_negative(self._xx[k], self._xy[k])
        return found.T


def non_negative(xx: Floats, xy: Floats) -> Floats:
    """The b ≥ 0 of least ½ b'·xx·b − xy·b, for a positive semidefinite xx [n, n]."""
    b = np.zeros(len(xy))
    moving = np.flatnonzero(np.diagonal(xx) > _LEAST)
    for _ in range(_SWEEPS):
        largest = 0.0
        for c in moving:
            new = max(0.0, b[c] + (xy[c] - (xx[c] * b).sum()) / xx[c, c])
            largest, b[c] = max(largest, abs(new - b[c])), new
        if largest <= _LEAST:
            break
    return b
