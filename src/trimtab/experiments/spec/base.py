"""What all parts of a scenario share: frozen, no unknown keys, no NaN or infinity, and the common types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Frac = Annotated[float, Field(ge=0, le=1)]


class Spec(BaseModel):
    """Base of all parts of a scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _some_share(shares: Mapping[str, float]) -> Mapping[str, float]:
    if not any(shares.values()):
        raise ValueError("at least one share above 0")
    return shares


Shares = Annotated[Mapping[str, NonNegative], Field(min_length=1), AfterValidator(_some_share)]
"""Name → share; what counts is the ratio, they need not sum to 1."""


def number_or_table(value: object) -> str:
    """Tag of the member of a union; tags in angle brackets are left out of messages."""
    return "<table>" if isinstance(value, Mapping) else "<number>"


PerType = Annotated[
    Annotated[NonNegative, Tag("<number>")] | Annotated[Mapping[str, NonNegative | None], Tag("<table>")],
    Discriminator(number_or_table),
]
"""One number for all node types, or node type → number."""


def fractions(shares: npt.ArrayLike) -> FloatArray:
    """Shares scaled to sum to 1."""
    array = np.asarray(shares, dtype=np.float64)
    scaled: FloatArray = array / array.sum()
    return scaled


def zipf_fractions(count: int, exponent: float) -> FloatArray:
    """Popularity of rank 1 … count: proportional to rank^−exponent; 0 is uniform."""
    return fractions(np.arange(1, count + 1, dtype=np.float64) ** -exponent)


def choose(rng: np.random.Generator, frac: FloatArray, n: int) -> IntArray:
    """Positions drawn with these probabilities, [n]; one uniform number each, inverted."""
    edges = np.cumsum(frac)
    return np.searchsorted(edges / edges[-1], rng.random(n), side="right").astype(np.int64)
