"""Amounts that are drawn per request: a number, a distribution, or a product or sum of named distributions.

size: 30
size: {distribution: lognormal, mean: 200, cv: 0.8}
size: {product: {steps: {distribution: choice, values: {20: 1, 30: 9}}, images: …}, powers: {images: 0.5}}
size: {sum: {output_tokens: …, prompt_tokens: …}, weights: {prompt_tokens: 0.05}}
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from trimtab.experiments.scenario.spec.shared_types import FloatArray, choose, fractions
from trimtab.traces.generators import (
    ConstantSizes,
    EmpiricalSizes,
    ExponentialSizes,
    LognormalSizes,
    ParetoSizes,
)
from trimtab.validation.base import Frac, NonNegative, Positive, Spec


class ChoiceSizes(Spec):
    """One of some values, with given shares."""

    distribution: Literal["choice"] = Field(description="values with probabilities")
    values: Mapping[Positive, NonNegative] = Field(min_length=1, description="value → share")

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Values [n]."""
        values = np.array(list(self.values), dtype=np.float64)
        return values[choose(rng, fractions(list(self.values.values())), n)]


class QuantileSizes(Spec):
    """A distribution by its quantiles, linear between them, for published tables of percentiles."""

    distribution: Literal["quantiles"] = Field(description="a distribution by its quantiles")
    values: Mapping[Frac, Positive] = Field(min_length=2, description="probability → quantile, from 0 to 1")

    @field_validator("values")
    @classmethod
    def _rise_from_0_to_1(cls, values: Mapping[float, float]) -> Mapping[float, float]:
        points = sorted(values.items())
        if points[0][0] != 0 or points[-1][0] != 1:
            raise ValueError("quantiles of probability 0 and 1, the least and the largest value")
        if any(after[1] < before[1] for before, after in itertools.pairwise(points)):
            raise ValueError("quantiles that do not fall as the probability rises")
        return dict(points)

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Values [n]."""
        return np.interp(rng.random(n), list(self.values), list(self.values.values()))


Distribution = Annotated[
    LognormalSizes
    | ParetoSizes
    | ExponentialSizes
    | ConstantSizes
    | EmpiricalSizes
    | ChoiceSizes
    | QuantileSizes,
    Field(discriminator="distribution"),
]


def _constant(value: object) -> object:
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    return {"distribution": "constant", "value": value} if is_number else value


class ProductAmount(Spec):
    """Product of independent parts, each to a power."""

    product: Mapping[str, Annotated[Distribution, BeforeValidator(_constant)]] = Field(
        min_length=1, description="part → number or distribution"
    )
    powers: Mapping[str, float] = Field({}, description="part → exponent; default: 1")

    @model_validator(mode="after")
    def _known_powers(self) -> ProductAmount:
        _refuse_unknown("powers", self.powers, self.product)
        return self

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Products [n]; each part has its own stream."""
        total = np.ones(n)
        for name, part in self.draw_parts(rng, n).items():
            total = total * part ** self.powers.get(name, 1.0)
        return total

    def draw_parts(self, rng: np.random.Generator, n: int) -> dict[str, FloatArray]:
        """Part → values [n], without powers."""
        return _drawn_parts(self.product, rng, n)


class SumAmount(Spec):
    """Weighted sum of independent parts."""

    sum: Mapping[str, Annotated[Distribution, BeforeValidator(_constant)]] = Field(
        min_length=1, description="part → number or distribution"
    )
    weights: Mapping[str, Positive] = Field({}, description="part → factor; default: 1")

    @model_validator(mode="after")
    def _known_weights(self) -> SumAmount:
        _refuse_unknown("weights", self.weights, self.sum)
        return self

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Sums [n]; each part has its own stream."""
        return self.of_parts(self.draw_parts(rng, n), n)

    def draw_parts(self, rng: np.random.Generator, n: int) -> dict[str, FloatArray]:
        """Part → values [n], without weights."""
        return _drawn_parts(self.sum, rng, n)

    def of_parts(self, parts: Mapping[str, FloatArray], n: int) -> FloatArray:
        """The weighted sums of drawn parts, [n]."""
        total = np.zeros(n)
        for name, part in parts.items():
            total = total + part * self.weights.get(name, 1.0)
        return total


def _drawn_parts(
    parts: Mapping[str, Distribution], rng: np.random.Generator, n: int
) -> dict[str, FloatArray]:
    """Part → values [n]; each part has its own stream."""
    streams = rng.spawn(len(parts))
    return {name: part.draw(own, n) for (name, part), own in zip(parts.items(), streams, strict=True)}


def _refuse_unknown(field: str, given: Mapping[str, float], parts: Mapping[str, Distribution]) -> None:
    unknown = [name for name in given if name not in parts]
    if unknown:
        raise ValueError(f"{field} only of the parts {list(parts)}, not of {unknown}")


def _form(value: object) -> str:
    keys = value if isinstance(value, Mapping) else {}
    if isinstance(value, ProductAmount) or "product" in keys:
        return "<product>"
    return "<sum>" if isinstance(value, SumAmount) or "sum" in keys else "<distribution>"


Amount = Annotated[
    Annotated[Distribution, Tag("<distribution>")]
    | Annotated[ProductAmount, Tag("<product>")]
    | Annotated[SumAmount, Tag("<sum>")],
    Discriminator(_form),
    BeforeValidator(_constant),
]
"""A number, a distribution, a product or a sum; `.draw(rng, n)` gives values [n]."""
