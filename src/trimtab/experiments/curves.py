"""The data of one run that figures draw, small enough to keep for every policy."""

from __future__ import annotations

from dataclasses import dataclass

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
