"""Late fraction: the probability that wait and service together take longer than a deadline.

Model: a fraction `wait_frac` waits, with exponential times of the station's mean; the others do not wait.
For M/M/c that is exact (Kleinrock, Queueing Systems vol. 1, 1975); for G/G/c it is the limit of heavy traffic
(Kingman 1962; Whitt 1993). Services come from a family with the mean and spread of the demand: constant where
there is next to no spread, else gamma (exponential at 1) or lognormal. P(W + S > d) is then an integral of
one bounded function, taken by Gauss and Legendre. Cost: O(nodes).
"""

from __future__ import annotations

from functools import cache
from math import exp, inf, log, log1p, sqrt
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc, ndtr

from trimtab.compiled.elementwise import elementwise
from trimtab.errors import UsageError
from trimtab.forecast.queueing.station import Demand, Station, checked_at_least

Floats: TypeAlias = npt.NDArray[np.float64]
Family: TypeAlias = Literal["gamma", "lognormal"]
NODES = 200
LONGEST_WAITS = 40.0  # in units of the mean: e^−40 is nothing beside a float's precision
CONSTANT_BELOW_SCV = 1e-6  # a spread of a thousandth


def late_frac(station: Station, deadline_s: float, family: Family = "gamma") -> float:
    """Fraction of the admitted requests not finished `deadline_s` after their arrival. Raises UsageError."""
    deadline_s = checked_at_least(0.0, deadline_s, "deadline_s")
    if family not in ("gamma", "lognormal"):
        raise UsageError("unknown", field="family", value=family, expected="gamma or lognormal")
    if station.wait_s == inf:
        return 1.0
    at_once = float(_service_tail(station.demand, np.array([deadline_s]), family)[0])
    if station.wait_s == 0.0 or station.wait_frac == 0.0:
        return at_once
    return (1.0 - station.wait_frac) * at_once + station.wait_frac * _late_waiter(station, deadline_s, family)


def _late_waiter(station: Station, deadline_s: float, family: Family) -> float:
    mean_s = station.wait_s / station.wait_frac
    if station.demand.service_scv < CONSTANT_BELOW_SCV:
        return exp(-max(0.0, deadline_s - station.demand.mean_service_s) / mean_s)
    upto = min(deadline_s / mean_s, LONGEST_WAITS)
    nodes, weights = _quadrature()
    wait = upto * (nodes + 1.0) / 2.0  # in units of its mean
    late = _service_tail(station.demand, deadline_s - mean_s * wait, family)
    return float(exp(-upto) + upto / 2.0 * (weights * late * elementwise(exp, -wait)).sum())


@cache
def _quadrature() -> tuple[Floats, Floats]:
    """Nodes in −1 … 1 and weights, both [nodes]."""
    return np.polynomial.legendre.leggauss(NODES)


def _service_tail(demand: Demand, times_s: Floats, family: Family) -> Any:
    """P(S > t) for each of `times_s` [nodes]."""
    scv, relative = demand.service_scv, np.maximum(times_s, 0.0) / demand.mean_service_s
    if scv < CONSTANT_BELOW_SCV:
        return (relative < 1.0).astype(np.float64)
    if family == "gamma":
        return gammaincc(1.0 / scv, relative / scv)
    sigma = sqrt(log1p(scv))
    logs = elementwise(lambda x: log(x) if x > 0.0 else -inf, relative)
    return ndtr(-(logs / sigma + sigma / 2.0))
