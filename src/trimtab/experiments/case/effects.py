"""Main effects and interactions of switches, from a full two-level factorial design."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.metrics import Estimate, mean_ci95


@dataclass(frozen=True, slots=True)
class Effect:
    """What a switch changes on average over all settings of the others; of two: what both add to that."""

    factors: tuple[str, ...]  # one, or two that interact
    change: Estimate  # relative where the metric is one of times, else a difference

    @property
    def is_told(self) -> bool:
        """Whether its interval leaves out 0."""
        return self.change.ci95 is not None and abs(self.change.mean) > self.change.ci95


def effects(
    rows: Mapping[str, Mapping[str, Sequence[float]]],
    factors: Sequence[str],
    metric: str,
    *,
    is_relative: bool,
) -> list[Effect]:
    """Effects on a metric: of each factor, then of each pair.

    The effect of a factor is the mean with it less the mean without it, over all settings of the others; that
    of a pair is half the difference between the effects of the one with and without the other (Box, Hunter
    and Hunter, Statistics for Experimenters, 2nd edition, §5.4). With `is_relative` means are of logarithms,
    and changes are exp(effect) − 1. Intervals are over the seeds, each of which has the whole design.

    Args:
        rows: setting → metric → values of the seeds; a setting has a 0 or 1 for each factor, in their order.
        factors: the factors.
        metric: which metric.
        is_relative: whether its values are times or the like, above 0.
    """
    values = np.array([row[metric] for row in rows.values()])  # [settings, seeds]
    values = elementwise(math.log, values) if is_relative else values
    signs = np.array([[1.0 if bit == "1" else -1.0 for bit in setting] for setting in rows])
    pairs = combinations(range(len(factors)), 2)
    chosen = [(k,) for k in range(len(factors))] + list(pairs)
    found = []
    for of in chosen:
        sign = signs[:, list(of)].prod(axis=1)
        contrast = 2.0 * (sign[:, None] * values).sum(axis=0) / len(rows)  # [seeds]
        change = elementwise(math.expm1, contrast) if is_relative else contrast
        found.append(Effect(tuple(factors[k] for k in of), mean_ci95(change.tolist())))
    return found
