"""Synthetic traces: an arrival process and a size distribution, from one seed."""

from __future__ import annotations

import numpy as np
import polars as pl

from trimtab.traces.arrivals import (
    ArrivalSpec,
    arrivals_diurnal,
    arrivals_gamma,
    arrivals_mmpp,
    arrivals_poisson,
)
from trimtab.traces.sizes import (
    SizeSpec,
    sizes_empirical,
    sizes_exponential,
    sizes_lognormal,
    sizes_pareto,
)

__all__ = [
    "ArrivalSpec",
    "SizeSpec",
    "arrivals_diurnal",
    "arrivals_gamma",
    "arrivals_mmpp",
    "arrivals_poisson",
    "make_trace",
    "sizes_empirical",
    "sizes_exponential",
    "sizes_lognormal",
    "sizes_pareto",
]


def make_trace(arrivals: ArrivalSpec, sizes: SizeSpec, n: int, seed: int) -> pl.DataFrame:
    """A request table of n rows with `arrival_s` and `size`.

    Arrivals and sizes have independent streams of the seed: changing one leaves the other as it was.
    """
    arrival_rng, size_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    return pl.DataFrame({"arrival_s": arrivals.draw(arrival_rng, n), "size": sizes.draw(size_rng, n)})
