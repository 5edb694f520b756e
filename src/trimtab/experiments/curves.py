"""The data of one run that figures draw, small enough to keep for every policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUANTILES, BINS, ROWS = 400, 120, 200


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves of one run."""

    quantile_frac: Floats  # [quantiles]
    completion_s: Floats  # [quantiles] completion time at each quantile, of finished items
    edges_s: Floats  # [bins + 1]
    queue_length: Floats  # [bins] mean number of items waiting
    utilisation_frac: Floats  # [rows, bins] allocated; adjacent nodes share a row in large clusters
    row_names: tuple[str, ...]  # [rows]
    rows_most: float = 1.0  # what a fraction of 1 stands for, in `rows_unit`
    rows_unit: str = ""  # empty = fractions
    series: Mapping[str, Floats] = field(default_factory=dict)  # further ones of the kind: name → [bins]
    latency_s: Floats = field(default_factory=lambda: np.zeros(0))  # [bins] mean completion, by arrival
    marks: tuple[tuple[float, float, str], ...] = ()  # start, end and name of what happened meanwhile
    switches: tuple[tuple[float, str], ...] = ()  # of a composite policy: time, and its candidate since then
