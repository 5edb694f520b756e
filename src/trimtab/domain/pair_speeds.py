"""How fast two jobs run on the same GPUs, against their speeds alone. Pure data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints

DEFAULT_BUSY_FRAC: Final = 0.7  # of a model of which nothing is known


def proportional_sharing(busy_frac: Any, partner_busy_frac: Any) -> Floats:
    """Share of its own speed that a job keeps beside another, where no pair was measured.

    Alone a job keeps `busy_frac` of its GPUs busy. Two that together want no more than the GPUs run as alone;
    otherwise each gets time in proportion to what it wants, hence 1 / (busy + busy of the partner).
    """
    wanted = np.maximum(np.asarray(busy_frac) + np.asarray(partner_busy_frac), 1.0)
    return np.asarray(1.0 / wanted, np.float64)


def busy_of_measured(kept_frac: Any) -> Floats:
    """`busy_frac` of curves [curves] from measured pairs [curves, curves] of one type and number of GPUs.

    A job beside one of its own kind keeps 1 / (2 busy). Without such a pair it is the default.
    """
    own = np.diagonal(np.asarray(kept_frac, np.float64))
    known = own > 0
    busy = 0.5 / np.where(known, own, 0.5 / DEFAULT_BUSY_FRAC)
    return np.asarray(np.minimum(busy, 1.0), np.float64)


@dataclass(frozen=True)
class PairSpeeds:
    """Measured pairs, and proportional sharing for the others. Both jobs have the same GPUs."""

    busy_frac: Floats  # [curves] share of one GPU that each curve keeps busy alone
    levels: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # [levels] GPUs of measured pairs
    kept_frac: Floats = field(default_factory=lambda: np.zeros((1, 0, 0, 0)))
    # [types, levels, curves, curves] of its own speed that the first keeps; 0 = can't share; nan = unmeasured
    factor: Floats = field(default_factory=lambda: np.ones((1, 1)))  # [curves, curves] a disturbance

    @classmethod
    def unknown(cls, n_curves: int) -> PairSpeeds:
        """Of curves of which nothing is known."""
        return cls(np.full(n_curves, DEFAULT_BUSY_FRAC))

    def kept(
        self, curve: Any, partner: Any, type_idx: Any, gpus: Any, efficiency: Any, partner_efficiency: Any
    ) -> Floats:
        """Share of its own speed that each curve keeps beside its partner on so many GPUs each.

        `efficiency`: speed with these GPUs over that many times the speed of one; a job that waits for others
        keeps less of its GPUs busy.
        """
        formula = proportional_sharing(
            self.busy_frac[curve] * efficiency, self.busy_frac[partner] * partner_efficiency
        )
        if len(self.factor) > 1:
            formula = np.minimum(formula * self.factor[curve, partner], 1.0)
        if not len(self.levels):
            return formula
        at = np.minimum(np.searchsorted(self.levels, gpus), len(self.levels) - 1)
        measured = self.kept_frac[type_idx, at, curve, partner]
        measured = np.where(self.levels[at] == gpus, measured, np.nan)
        return np.where(np.isnan(measured), formula, measured)

    def disturbed(self, cv: float, seed: int) -> PairSpeeds:
        """The same with every pair off by a lognormal factor of mean 1; no job is faster than alone."""
        if cv == 0:
            return self
        n, sigma = len(self.busy_frac), math.sqrt(math.log1p(cv**2))
        drawn = np.random.default_rng([seed, 2]).standard_normal((n, n))
        factor = np.array([math.exp(sigma * z - sigma**2 / 2) for z in drawn.ravel()]).reshape(n, n)
        return replace(
            self, factor=factor, kept_frac=np.minimum(self.kept_frac * _fitting(factor, self), 1.0)
        )


def _fitting(factor: Floats, pairs: PairSpeeds) -> Floats:
    return factor if pairs.kept_frac.shape[-1] else np.ones((0, 0))
