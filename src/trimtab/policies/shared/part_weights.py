"""Sizes of parts by the speeds of the nodes that are expected to serve them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.view import View

Floats = NDArray[np.float64]


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
