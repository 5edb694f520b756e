"""Limits of many servers of rate 1 under Poisson arrivals of `load` per server, and exact chains of few."""

from __future__ import annotations

from math import fsum

import numpy as np

LEVELS = 60  # requests at a server beyond which nothing is counted


def memory_time(load: float) -> float:
    """Mean time in the system with one sample and one remembered server.

    The remembered server's length changes with each arrival, all others slowly, so it is stationary given the
    lengths: from length a, with a sample of length l, to min(a, l) where they are equal, else to one more.
    Flow up = flow down: share of servers with more than i requests = load × P(both have at least i).
    """
    tail = load ** np.arange(LEVELS + 1.0)
    tail[0] = 1.0
    for _ in range(500):
        share = tail[:-1] - tail[1:]
        share[-1] += tail[-1]
        chain = np.zeros((LEVELS, LEVELS))
        for a in range(LEVELS):
            for sampled, p in enumerate(share):
                low = min(a, sampled)
                chain[a, min(low + (a != sampled), LEVELS - 1)] += p
        system = np.vstack([(chain.T - np.eye(LEVELS))[:-1], np.ones(LEVELS)])
        remembered = np.linalg.solve(system, np.append(np.zeros(LEVELS - 1), 1.0))
        at_least = np.cumsum(remembered[::-1])[::-1]
        new = np.append(1.0, load * tail[:-1] * at_least)
        if np.abs(new - tail).max() < 1e-12:
            break
        tail = 0.5 * tail + 0.5 * new
    return fsum(tail[1:]) / load


def least_loaded_time(load: float, choices: int) -> float:
    """Mean time in the system where each request takes the sampled server with the least work; exponential.

    The share of servers with more than w work solves F' = load F^d − F, F(0) = load (Hellemans, Van Houdt:
    "On the power-of-d-choices with least loaded server selection", SIGMETRICS 2018), so E[time] = 1 + ∫ F^d
    dw = 1 + ∫ x^(d−1) / (1 − load x^(d−1)) dx, x from 0 to load.
    """
    x = (np.arange(200_000) + 0.5) / 200_000 * load
    power = x ** (choices - 1)
    return float(1.0 + load * np.mean(power / (1.0 - load * power)))


def idle_queue_time(load: float, servers: int = 2) -> float:
    """Mean time in the system at two servers: an idle one first, otherwise a random one; its Markov chain."""
    assert servers == 2
    n = LEVELS
    rates = np.zeros((n * n, n * n))
    total = servers * load
    for a in range(n):
        for b in range(n):
            here = a * n + b
            if (a > 0 and b > 0) or (a == b == 0):
                up = ((a + 1, b, total / 2), (a, b + 1, total / 2))
            else:
                up = ((a + 1, b, total),) if a == 0 else ((a, b + 1, total),)
            for x, y, rate in up:
                if x < n and y < n:
                    rates[here, x * n + y] += rate
            if a > 0:
                rates[here, here - n] += 1.0
            if b > 0:
                rates[here, here - 1] += 1.0
    rates -= np.diag(rates.sum(axis=1))
    system = np.vstack([rates.T[:-1], np.ones(n * n)])
    p = np.linalg.solve(system, np.append(np.zeros(n * n - 1), 1.0))
    return float(p @ np.add.outer(np.arange(n), np.arange(n)).ravel() / total)
