"""Types that parts of a scenario share, and shares as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Discriminator, Field, Tag

from trimtab.domain.cluster import ResourceName
from trimtab.validation.base import NonNegative, Spec, number_or_table

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


T = TypeVar("T", bound=Spec)
_TIMES = ("at_s", "duration_s")


def stretched(entry: T, factor: float) -> T:
    """The entry with its start and its duration `factor` times as late and as long."""
    told: dict[str, Any] = {name: getattr(entry, name) for name in _TIMES}
    if factor == 1.0 or told["at_s"] is None:
        return entry
    return entry.model_copy(update={name: v * factor for name, v in told.items() if v is not None})


def set_time_notes(entries: Mapping[str, Sequence[Any]]) -> list[str]:
    """A note for readers of curves over load, where any of these entries has a duration of its own."""
    there = [name for name, of in entries.items() if any(entry.duration_s is not None for entry in of)]
    if not there:
        return []
    return [
        f"in the curves over load, {' and '.join(there)} at set times keep their place among the arrivals: "
        "start and duration shrink and stretch with these"
    ]
