"""What a release costs: ρ of zero-concentrated differential privacy (zCDP), and (ε, δ).

Gaussian noise of standard deviation σ on a vector that one unit of privacy changes by at most Δ in L2 costs
ρ = Δ²/(2σ²); costs of several releases add up. Source: Bun and Steinke, "Concentrated differential privacy:
simplifications, extensions, and lower bounds", TCC 2016, Definition 1.1, Propositions 1.6 and 1.7. The
conversion to (ε, δ) is the tight one of Canonne, Kamath and Steinke, "The discrete Gaussian for differential
privacy", NeurIPS 2020, Proposition 12, as OpenDP computes it, rounded so that no promise is too strong.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from trimtab.privacy.library import opendp

MOST_RHO: Final = 1e6


def epsilon_of(rho: float, delta: float) -> float:
    """The least ε so that every ρ-zCDP release is (ε, δ)-differentially private; 0 for ρ = 0."""
    if rho <= 0.0:
        return 0.0
    dp = opendp()
    noise = dp.m.make_gaussian(
        dp.atom_domain(T="i64"), dp.absolute_distance(T="f64"), scale=sigma_of(rho, sensitivity=1.0)
    )
    return float(dp.c.make_zCDP_to_approxDP(noise).map(1.0).epsilon(delta))


@cache
def rho_of(epsilon: float, delta: float) -> float:
    """The greatest ρ, within one part in a million, whose releases are (ε, δ)-differentially private."""
    low, high = 0.0, 1.0
    while high < MOST_RHO and epsilon_of(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    while high - low > 1e-6 * high and high > 1e-18:
        middle = (low + high) / 2.0
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low


def sigma_of(rho: float, *, sensitivity: float) -> float:
    """Standard deviation of Gaussian noise that costs ρ where one unit changes a vector by Δ in L2."""
    return sensitivity / math.sqrt(2.0 * rho)


def rho_of_sigma(sigma: float, *, sensitivity: float) -> float:
    """What Gaussian noise of this standard deviation costs."""
    return 0.5 * (sensitivity / sigma) ** 2


@cache
def threshold_of(sigma: float, delta: float, *, contribution: int) -> int:
    """The noisy count above which keys may be shown: those that only one unit has pass with probability ≤ δ.

    One unit adds at most `contribution` to the counts of all keys together. Source: the Gaussian threshold
    mechanism of OpenDP, with noise of standard deviation σ on the count of every key that occurs.
    """
    dp, bounds = opendp(), (contribution, float(contribution), float(contribution))
    keys = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T="i64"))
    distance = dp.l02inf_distance(dp.absolute_distance(T="f64"))

    def is_enough(threshold: int) -> bool:
        shown = dp.m.make_gaussian_threshold(keys, distance, scale=sigma, threshold=threshold)
        return bool(shown.map(bounds)[1] <= delta)

    low, high = contribution + 1, contribution + 2
    while not is_enough(high):
        low, high = high, contribution + 2 * (high - contribution)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
