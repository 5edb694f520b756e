"""Online services that hold GPUs all the time: their load over the day, and how a job beside one slows both.

A service is a row of the workload that never ends. Its load ℓ is from 0 to 1. A job beside it that may use
the share p of the GPU keeps min(1 − ℓ (1 − kept), p / busy) of its speed; the service answers 1 + ℓ p (1 /
kept − 1) times as slowly. `kept` is what each keeps of its speed at full load and p = 1, as measured for
the pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints, ServiceLoads

SLOWDOWN_LIMIT: Final = 1.2  # of a service, over its latency alone


def load_of(services: ServiceLoads, job_idx: Any, age_s: Any) -> Floats:
    """Load of services after so many seconds; 0 of other jobs."""
    if services.series is not None:
        since_s = np.asarray(age_s) + services.phase_s[job_idx] + 1e-6
        step = np.minimum(since_s // services.step_s, len(services.series) - 1).astype(np.int64)
        return np.where(services.is_service[job_idx], services.series[step, job_idx], 0.0)
    steps = np.floor((np.asarray(age_s) + 1e-6) / services.step_s) * services.step_s
    angle = 2 * math.pi * (services.phase_s[job_idx] + steps) / services.period_s
    wave = np.array([(1.0 - math.cos(a)) / 2.0 for a in np.atleast_1d(angle)])
    level = services.least + (services.most - services.least) * wave
    return np.where(services.is_service[job_idx], level, 0.0)


def guest_kept(load: Any, kept: Any, share: Any, busy_frac: Any) -> Floats:
    """Share of its speed that a job keeps beside a service."""
    busy = np.maximum(busy_frac, 1e-9)
    return np.asarray(np.minimum(1.0 - load * (1.0 - np.asarray(kept)), share / busy), np.float64)


def host_slowdown(load: Any, kept: Any, share: Any) -> Floats:
    """Latency of a service beside a job, over that alone; inf where the pair can't share a GPU."""
    with np.errstate(divide="ignore"):
        excess = 1.0 / np.asarray(kept, np.float64) - 1.0
    pressed = np.asarray(load) * share
    return np.where(pressed > 0, 1.0 + np.where(pressed > 0, pressed, 1.0) * excess, 1.0)


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
