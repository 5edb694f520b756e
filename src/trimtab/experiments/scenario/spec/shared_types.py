"""Types that parts of a scenario share, and shares as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Discriminator, Field, Tag

from trimtab.domain.cluster import ResourceName
from trimtab.validation.base import NonNegative, number_or_table

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


def _some_share(shares: Mapping[str, float]) -> Mapping[str, float]:
    if not any(shares.values()):
        raise ValueError("at least one share above 0")
    return shares


Shares = Annotated[Mapping[str, NonNegative], Field(min_length=1), AfterValidator(_some_share)]
"""Name → share; what counts is the ratio, they need not sum to 1."""

PerType = Annotated[
    Annotated[NonNegative, Tag("<number>")] | Annotated[Mapping[str, NonNegative | None], Tag("<table>")],
    Discriminator(number_or_table),
]
"""One number for all node types, or node type → number."""

MOST = 1e9  # of a resource: counted in steps of 2^-20, its sums are then exact

Capacity = Mapping[ResourceName, Annotated[float, Field(gt=0, le=MOST)]]
"""Resource → how much of it a node has."""

Demand = Mapping[ResourceName, Annotated[float, Field(ge=0, le=MOST)]]
"""Resource → how much of it a request takes."""


def holds(capacity: Capacity, demand: Demand) -> bool:
    """Whether an empty node of this capacity has room for a request."""
    return all(amount <= capacity.get(name, 0.0) for name, amount in demand.items())


def fractions(shares: npt.ArrayLike) -> FloatArray:
    """Shares scaled to sum to 1."""
    array = np.asarray(shares, dtype=np.float64)
    scaled: FloatArray = array / array.sum()
    return scaled


def zipf_fractions(count: int, exponent: float) -> FloatArray:
    """Popularity of rank 1 … count: proportional to rank^−exponent; 0 is uniform."""
    return fractions(np.arange(1, count + 1, dtype=np.float64) ** -exponent)


def choose(rng: np.random.Generator, frac: FloatArray, n: int) -> IntArray:
    """Positions drawn with these probabilities, [n], each by inversion of one uniform number."""
    edges = np.cumsum(frac)
    return np.searchsorted(edges / edges[-1], rng.random(n), side="right").astype(np.int64)
