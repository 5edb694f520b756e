"""Waits in G/G/c from two moments, by corrections of M/M/c.

Source: W. Whitt, Approximations for the GI/G/m queue, Production and Operations Management 2(2), 1993: φ for
the mean wait, π for the probability of waiting. c_a² and c_s² are `arrival_scv` and `service_scv`, m and ρ
`servers` and `load_frac`. Cost: O(1).
"""

from __future__ import annotations

from math import erfc, exp, sqrt

from trimtab.forecast.queueing.station import Demand

FEW_SERVERS = 6  # up to which the normal limit of many servers says nothing


def wait_factor(demand: Demand) -> float:
    """φ: the mean wait as a multiple of Allen and Cunneen's."""
    a, s = demand.arrival_scv, demand.service_scv
    if a == 0.0 and s == 0.0:
        return 1.0
    gamma = _gamma(demand)
    after_constant = (1.0 - 4.0 * gamma) * exp(
        -2.0 * (1.0 - demand.load_frac) / (3.0 * demand.load_frac)
    )  # φ3
    both = _psi((a + s) / 2.0, min(1.0, (1.0 + gamma + after_constant) / 2.0))
    if a >= s:
        return (4.0 * (a - s) * (1.0 + gamma) + s * both) / (4.0 * a - 3.0 * s)
    return ((s - a) * after_constant + (s + 3.0 * a) * both) / (2.0 * a + 2.0 * s)


def _gamma(demand: Demand) -> float:
    m, load = demand.servers, demand.load_frac
    return min(0.24, (1.0 - load) * (m - 1.0) * (sqrt(4.0 + 5.0 * m) - 2.0) / (16.0 * m * load))


def _psi(scv: float, base: float) -> float:
    return 1.0 if scv >= 1.0 else float(base ** (2.0 * (1.0 - scv)))


def wait_frac(demand: Demand, exponential: float) -> float:
    """π: probability of waiting, from that of M/M/c (`exponential`)."""
    a, s, m, load = demand.arrival_scv, demand.service_scv, demand.servers, demand.load_frac
    if a == 0.0 and s == 0.0:
        return 0.0
    plain = load**2 * _scaled(demand, (1.0 + s) / (a + s), exponential)
    plain += (1.0 - load**2) * _scaled(demand, 2.0 / (1.0 + a), exponential)
    if m <= FEW_SERVERS or a >= 1.0:
        return min(1.0, plain)
    spare = (m - m * load - 0.5) / sqrt(m * load * (a + s) / (1.0 + s))
    smooth = a * plain + (1.0 - a) * _normal_tail(spare)
    share = min(1.0, max(0.0, 2.0 * (spare - 0.5)))
    weight = (1.0 - a) * share if share < 1.0 else 1.0
    return min(1.0, weight * smooth + (1.0 - weight) * plain)


def _scaled(demand: Demand, spread: float, exponential: float) -> float:
    """M/M/c's probability, scaled as its normal tail changes when spare capacity counts `spread` times."""
    spare = (1.0 - demand.load_frac) * sqrt(demand.servers)
    tail = _normal_tail(spare)
    return min(1.0, exponential * _normal_tail(spread * spare) / tail) if tail > 0.0 else 0.0


def _normal_tail(x: float) -> float:
    return 0.5 * erfc(x / sqrt(2.0))
