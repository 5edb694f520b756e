"""Synthetic traces: an arrival process and a size distribution, from one seed.

Distributions of work sizes. Functions of a generator, and the same as checked configuration.

Every function returns n sizes greater than 0 in the unit of their mean, shape [n].
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from trimtab.errors import TraceError
from trimtab.traces.arrivals import (
    ArrivalSpec,
    arrivals_diurnal,
    arrivals_gamma,
    arrivals_mmpp,
    arrivals_poisson,
)
from trimtab.traces.read import read_trace

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


FloatArray: TypeAlias = npt.NDArray[np.float64]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def sizes_lognormal(rng: np.random.Generator, mean: float, cv: float, n: int) -> FloatArray:
    """Lognormal of this mean and coefficient of variation: sigma² = ln(1 + cv²), mu = ln(mean) − sigma²/2."""
    variance = math.log1p(cv**2)
    return rng.lognormal(math.log(mean) - variance / 2.0, math.sqrt(variance), n)


def sizes_pareto(rng: np.random.Generator, mean: float, alpha: float, n: int) -> FloatArray:
    """Pareto (type I) with tail exponent alpha > 1; the smallest size is mean · (alpha − 1) / alpha."""
    smallest = mean * (alpha - 1.0) / alpha
    return smallest * (1.0 + rng.pareto(alpha, n))


def sizes_exponential(rng: np.random.Generator, mean: float, n: int) -> FloatArray:
    """Exponential with this mean."""
    return rng.exponential(mean, n)


def sizes_empirical(rng: np.random.Generator, observed: FloatArray, n: int) -> FloatArray:
    """Drawn with replacement from observed sizes."""
    return rng.choice(observed, n)


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LognormalSizes(_Spec):
    """`sizes_lognormal` as configuration."""

    distribution: Literal["lognormal"]
    mean: Positive = Field(description="mean size")
    cv: Positive = Field(description="standard deviation ÷ mean")

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Sizes [n]."""
        return sizes_lognormal(rng, self.mean, self.cv, n)


class ParetoSizes(_Spec):
    """`sizes_pareto` as configuration; the variance is finite only for alpha > 2."""

    distribution: Literal["pareto"]
    mean: Positive = Field(description="mean size")
    alpha: float = Field(gt=1, allow_inf_nan=False, description="tail exponent; lower = heavier tail")

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Sizes [n]."""
        return sizes_pareto(rng, self.mean, self.alpha, n)


class ExponentialSizes(_Spec):
    """`sizes_exponential` as configuration."""

    distribution: Literal["exponential"]
    mean: Positive = Field(description="mean size")

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Sizes [n]."""
        return sizes_exponential(rng, self.mean, n)


class ConstantSizes(_Spec):
    """All sizes equal."""

    distribution: Literal["constant"]
    value: Positive = Field(description="the size of every request")

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Sizes [n]; takes nothing from the generator."""
        return np.full(n, self.value)


class EmpiricalSizes(_Spec):
    """Sizes resampled from one column of a trace file; see `sizes_empirical`."""

    distribution: Literal["empirical"]
    file: Path = Field(description="trace to draw sizes from")
    format: str = Field("auto", description="format of the trace; auto = by the columns")
    column: str = Field("size", description="canonical column to draw from")

    def draw(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Sizes [n]; reads the file.

        Raises:
            TraceError: the file is no trace, or has no such column with values greater than 0.
        """
        return sizes_empirical(rng, self._observed(), n)

    def _observed(self) -> FloatArray:
        table = read_trace(self.file, self.format).table
        numeric = [name for name in table.columns if table[name].dtype.is_numeric()]
        if self.column not in numeric:
            raise TraceError(
                "no such column of numbers",
                file=str(self.file),
                value=self.column,
                expected=f"one of {numeric}",
            )
        observed = table[self.column].drop_nulls().cast(float).to_numpy()
        if not len(observed) or observed.min() <= 0:
            raise TraceError(
                "not sizes", file=str(self.file), field=self.column, expected="values greater than 0"
            )
        return observed


SizeSpec = Annotated[
    LognormalSizes | ParetoSizes | ExponentialSizes | ConstantSizes | EmpiricalSizes,
    Field(discriminator="distribution"),
]
