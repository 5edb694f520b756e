"""Steady states of stations, from the exact (M/M/c, M/G/1, M/M/c/K, processor sharing) to the approximate.

Sources: Kleinrock, Queueing Systems vol. 1 (1975), ch. 3 and 5, and vol. 2 (1976), ch. 4 (processor sharing);
insensitivity of processor sharing with several servers: Cohen, Acta Informatica 12 (1979). G/G/c is
in `many_servers`.

Waits in G/G/c from two moments, by corrections of M/M/c.

Source: W. Whitt, Approximations for the GI/G/m queue, Production and Operations Management 2(2), 1993: φ for
the mean wait, π for the probability of waiting. c_a² and c_s² are `arrival_scv` and `service_scv`, m and ρ
`servers` and `load_frac`. Cost: O(1).
"""

from __future__ import annotations

import math
from math import erfc, exp, sqrt

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.forecast.queueing.erlang import erlang_b_unchecked, erlang_c_unchecked
from trimtab.forecast.queueing.station import (
    Demand,
    Method,
    Station,
    checked_count,
    checked_method,
    overloaded,
)

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


def mmc(servers: int, arrivals_per_s: float, mean_service_s: float) -> Station:
    """M/M/c, exact. Raises UsageError."""
    return _mmc(Demand(servers, arrivals_per_s, mean_service_s))


def _mmc(demand: Demand) -> Station:
    if demand.load_frac >= 1.0:
        return overloaded(demand)
    wait = erlang_c_unchecked(demand.servers, demand.offered)
    return Station(demand, wait, wait * demand.mean_service_s / (demand.servers - demand.offered))


def mg1(arrivals_per_s: float, mean_service_s: float, service_scv: float) -> Station:
    """M/G/1, exact (Pollaczek 1930, Khinchine 1932). Raises UsageError."""
    demand = Demand(1, arrivals_per_s, mean_service_s, service_scv)
    load = demand.load_frac
    if load >= 1.0:
        return overloaded(demand)
    return Station(demand, load, load * mean_service_s * (1.0 + service_scv) / 2.0 / (1.0 - load))


def mgc(
    servers: int, arrivals_per_s: float, mean_service_s: float, service_scv: float, method: Method = "whitt"
) -> Station:
    """M/G/c: exact for one server or exponential service, else approximate, see `ggc`. Raises UsageError."""
    checked_method(method)
    if servers == 1:
        return mg1(arrivals_per_s, mean_service_s, service_scv)
    return ggc(servers, arrivals_per_s, mean_service_s, service_scv, 1.0, method)


def ggc(
    servers: int,
    arrivals_per_s: float,
    mean_service_s: float,
    service_scv: float,
    arrival_scv: float,
    method: Method = "whitt",
) -> Station:
    """G/G/c from two moments of interarrival and service times: Whitt (1993), or Allen and Cunneen (cruder).

    Both are exact for M/M/c. At 16 servers and load 0.9 Whitt's mean wait is within 12 % of simulations,
    Allen's and Cunneen's within 28 % (docs/benchmarks/forecast.md). Raises UsageError.
    """
    checked_method(method)
    demand = Demand(servers, arrivals_per_s, mean_service_s, service_scv, arrival_scv)
    exponential = _mmc(demand)
    if demand.load_frac >= 1.0 or demand.load_frac == 0.0:
        return exponential
    mean_s = exponential.wait_s * (arrival_scv + service_scv) / 2.0
    if method == "allen-cunneen":
        return Station(demand, exponential.wait_frac, mean_s)
    return Station(demand, wait_frac(demand, exponential.wait_frac), mean_s * wait_factor(demand))


def mmck(servers: int, places: int, arrivals_per_s: float, mean_service_s: float) -> Station:
    """M/M/c/K, exact: at most `places` requests in service and waiting; others are lost. Raises UsageError.

    Its birth-death chain, from state c upwards, in units that keep every term at most 1. Cost: O(places).
    """
    demand = Demand(servers, arrivals_per_s, mean_service_s)
    places = checked_count(int(servers), places, "places")
    if arrivals_per_s == 0.0:
        return Station(demand, 0.0, 0.0)
    waiting = np.arange(places - servers + 1)
    largest = waiting[-1] if demand.load_frac > 1.0 else 0
    above = elementwise(math.exp, math.log(demand.load_frac) * (waiting - largest))  # states c … K
    below = _states_below(demand, float(above[0]))
    if below == np.inf:  # all servers busy is too rare for a float
        return Station(demand, 0.0, 0.0)
    total = below + above.sum()
    loss = float(above[-1] / total)
    entering = float((below + above[:-1].sum()) / total)
    wait_s = float((waiting * above).sum() / total) / (arrivals_per_s * entering)
    return Station(demand, float(above[:-1].sum() / total) / entering, wait_s, loss)


def _states_below(demand: Demand, full: float) -> float:
    """Weight of all states with a free server, where the state of c busy servers weighs `full`."""
    loss = erlang_b_unchecked(demand.servers, demand.offered)
    return full * (1.0 - loss) / loss if loss > 0.0 else np.inf


def processor_sharing(servers: int, arrivals_per_s: float, mean_service_s: float) -> Station:
    """M/G/c with processor sharing, at most one server per request: exact for any service distribution.

    `wait_s` is the delay beyond the service time, `wait_frac` the fraction that finds no free server. On one
    server a request of service x takes x · `stretch`. Raises UsageError.
    """
    return mmc(servers, arrivals_per_s, mean_service_s)


def stretch(station: Station) -> float:
    """Mean time over mean service: 1 / (1 − load) for processor sharing on one server."""
    return station.time_s / station.demand.mean_service_s
