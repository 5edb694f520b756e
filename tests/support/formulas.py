"""Closed forms of queueing theory; waits are without service, rates per second, `load` = λ E[S] / servers."""

from __future__ import annotations

from itertools import pairwise
from math import factorial, fsum

import numpy as np


def erlang_b(servers: int, offered: float) -> float:
    """Probability of loss in M/G/c/c (Erlang 1917), by the usual recursion."""
    loss = 1.0
    for k in range(1, servers + 1):
        loss = offered * loss / (k + offered * loss)
    return loss


def erlang_c(servers: int, offered: float) -> float:
    """Probability of having to wait in M/M/c."""
    tail = offered**servers / factorial(servers) * servers / (servers - offered)
    return tail / (fsum(offered**k / factorial(k) for k in range(servers)) + tail)


def mmc_wait_s(servers: int, arrivals_per_s: float, mean_service_s: float) -> float:
    """Mean wait in M/M/c, first come first served."""
    offered = arrivals_per_s * mean_service_s
    return erlang_c(servers, offered) * mean_service_s / (servers - offered)


def mg1_wait_s(arrivals_per_s: float, mean_service_s: float, scv: float) -> float:
    """Mean wait in M/G/1 (Pollaczek 1930, Khinchine 1932); `scv` = variance / mean² of service."""
    load = arrivals_per_s * mean_service_s
    return load * mean_service_s * (1.0 + scv) / 2.0 / (1.0 - load)


def mmck(servers: int, places: int, offered: float) -> tuple[float, float]:
    """(probability of loss, mean number waiting) in M/M/c/K, from its birth-death chain."""
    weights = [offered**n / factorial(n) for n in range(servers + 1)]
    for _ in range(servers, places):
        weights.append(weights[-1] * offered / servers)
    p = np.array(weights) / fsum(weights)
    waiting = np.maximum(0, np.arange(places + 1) - servers)
    return float(p[-1]), float(p @ waiting)


def cobham_waits_s(arrivals_per_s: list[float], mean_service_s: float, scv: float) -> list[float]:
    """Mean wait of each class in M/G/1 with non-preemptive priorities, most urgent first (Cobham 1954)."""
    load = np.concatenate([[0.0], np.cumsum(arrivals_per_s)]) * mean_service_s
    residual_s = load[-1] * mean_service_s * (1.0 + scv) / 2.0
    return [float(residual_s / ((1.0 - above) * (1.0 - upto))) for above, upto in pairwise(load)]


def supermarket_time(load: float, choices: int) -> float:
    """Mean time in the system in units of service, infinitely many servers, d choices.

    Vvedenskaya, Dobrushin, Karpelevich 1996; Mitzenmacher 2001, Corollary of Theorem 1.
    """
    terms = (load ** ((choices**i - choices) / (choices - 1)) for i in range(1, 40))
    return fsum(terms)


def supermarket_tail(load: float, choices: int, length: int) -> float:
    """Fraction of servers with at least `length` requests."""
    return load ** ((choices**length - 1) / (choices - 1))


def breakdown_number(arrivals_per_s: float, service_per_s: float, mtbf_s: float, mttr_s: float) -> float:
    """Mean number in an M/M/1 whose server fails, idle or not, and resumes: its Markov chain, solved."""
    levels = 400
    fail, repair = 1.0 / mtbf_s, 1.0 / mttr_s
    rates = np.zeros((2 * levels, 2 * levels))  # state 2n + up
    for n in range(levels):
        rates[2 * n + 1, 2 * n], rates[2 * n, 2 * n + 1] = fail, repair
        if n + 1 < levels:
            rates[2 * n, 2 * n + 2] = rates[2 * n + 1, 2 * n + 3] = arrivals_per_s
            rates[2 * n + 3, 2 * n + 1] = service_per_s
    rates -= np.diag(rates.sum(axis=1))
    system = np.vstack([rates.T[:-1], np.ones(2 * levels)])
    p = np.linalg.solve(system, np.concatenate([np.zeros(2 * levels - 1), [1.0]]))
    return float(p @ (np.arange(2 * levels) // 2))
