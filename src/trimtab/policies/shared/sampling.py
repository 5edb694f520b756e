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
from trimtab.domain.policy import Policy
from trimtab.domain.view import View, can_take

Floats = NDArray[np.float64]


class SamplingPolicy(Policy):
    """Base of policies that sample `d` nodes for a request, by one uniform number each."""

    d: int

    def __post_init__(self) -> None:
        """One uniform number per sample."""
        super().__post_init__()
        object.__setattr__(self, "draws", self.d)


def part_weights(view: View, arrived: NDArray[np.void], parts: NDArray[np.int64], load: float) -> Floats:
    """Relative sizes of the parts of each class, [classes, parts]; empty where all nodes are equally fast.

    At load ρ a share 1 − ρ of the slots of each type is expected to be free. The parts of a request go to the
    fastest of them, and are sized so that all of them end together: divisible load theory. `arrived` has
    recent WORK, whose mean size in each class counts.
    """
    free = _free_slots(view, load)
    rows = [
        _of_class(view, c, float(arrived["units"][arrived["class_idx"] == c].mean()), int(parts[c]), free)
        if parts[c] > 1 and np.any(arrived["class_idx"] == c)
        else np.ones(int(parts[c]))
        for c in range(len(parts))
    ]
    if all(np.ptp(row) == 0.0 for row in rows):
        return np.zeros((0, 0))
    table = np.ones((len(parts), int(parts.max())))
    for c, row in enumerate(rows):
        table[c, : len(row)] = row
    return table


def _free_slots(view: View, load: float) -> NDArray[np.int64]:
    """Slots of each type that are expected to be free, [types]; at least one of a type with any."""
    nodes = view.nodes
    slots = np.bincount(nodes.type_idx, nodes.slots * nodes.up, minlength=view.fixed_s.shape[1])
    free = np.rint(slots * (1.0 - min(load, 1.0)))
    return np.where(slots > 0, np.maximum(free, 1), 0).astype(np.int64)


def _of_class(view: View, c: int, units: float, count: int, free: NDArray[np.int64]) -> Floats:
    """Sizes of `count` parts, largest first; parts beyond the free slots are as large as the smallest."""
    fixed_s, unit_s = view.fixed_s[c], view.unit_s[c]
    seconds = np.where(np.isfinite(fixed_s), fixed_s + unit_s * units / count, np.inf)
    types = np.repeat(np.arange(len(free)), free)
    types = types[np.argsort(seconds[types], kind="stable")][:count]
    types = types[np.isfinite(seconds[types]) & (unit_s[types] > 0.0)]
    if len(types) == 0:
        return np.ones(count)
    sizes = together(fixed_s[types], unit_s[types], units)
    sizes = sizes[sizes > 0.0]
    padded = np.concatenate([sizes, np.full(count - len(sizes), sizes.min())])
    return np.sort(padded)[::-1]


def together(fixed_s: Floats, unit_s: Floats, units: float) -> Floats:
    """Sizes that sum to `units` and end together: fixed_s + unit_s × size is the same T for all above 0.

    A node whose fixed time is above T gets nothing.
    """
    used = np.argsort(fixed_s, kind="stable")
    for n in range(len(used), 0, -1):
        of = used[:n]
        end_s = (units + (fixed_s[of] / unit_s[of]).sum()) / (1.0 / unit_s[of]).sum()
        if end_s > fixed_s[of[-1]] or n == 1:
            break
    return np.maximum((end_s - fixed_s) / unit_s, 0.0)


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
