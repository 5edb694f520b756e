"""Nodes drawn in proportion to their capacity, one uniform number and O(1) a draw.

Michael Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE Transactions
on Software Engineering 17(9), 1991, after Walker's alias method: n cells of equal width, each shared by at
most two nodes, so that a number picks a cell by its first digits and one of the two by the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper
from trimtab.domain.view import View, can_take


def alias_table(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Cells for weights [n] ≥ 0, not all 0: `own_frac` [n], the share of cell j that is node j's, and `other`
    [n], the node that the rest of it belongs to."""
    own_frac = weights * (len(weights) / weights.sum())
    other = np.arange(len(weights))
    small = [j for j, share in enumerate(own_frac) if share < 1.0]
    large = [j for j, share in enumerate(own_frac) if share >= 1.0]
    while small and large:
        filled, giver = small.pop(), large[-1]
        other[filled] = giver
        own_frac[giver] -= 1.0 - own_frac[filled]
        if own_frac[giver] < 1.0:
            small.append(large.pop())
    own_frac[small + large] = 1.0  # full but for rounding
    return own_frac, other


@helper
def _able_by_weight(view: View, work: Any, u: float) -> int:
    """A node that can take the work, in proportion to weight; -1 if none can."""
    weight, total = view.nodes.weight, 0.0
    for j in range(view.context.n_nodes):
        total += weight[j] if can_take(view, work, j) else 0.0
    left, found = u * total, -1
    for j in range(view.context.n_nodes):
        if can_take(view, work, j):
            found = j
            left -= weight[j]
            if left < 0.0:
                break
    return found


@helper(inline=True)
def weighted_able(
    view: View, work: Any, own_frac: Any, fracs_at: int, other: Any, others_at: int, u: float
) -> int:
    """A node that can take the work, in proportion to weight among these for u uniform in [0, 1); -1: none.

    The table of all nodes' weights lies in `own_frac` from `fracs_at` on and in `other` from `others_at` on.
    O(1) where the first try succeeds; where it fails, what u has left is uniform still and chooses among the
    able ones, which keeps their proportions: P(j) = w/W + (W − A)/W · w/A = w/A, A the able ones' weight.
    """
    scaled = u * view.context.n_nodes
    cell = int(scaled)
    rest, share = scaled - cell, own_frac[fracs_at + cell]
    is_own = rest < share
    j = cell if is_own else other[others_at + cell]
    if can_take(view, work, j):
        return int(j)
    return _able_by_weight(view, work, rest / share if is_own else (rest - share) / (1.0 - share))
