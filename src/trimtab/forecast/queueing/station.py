"""Inputs and results of the formulas: c equal servers with one queue, first come first served by default.

Checks of arguments name the argument, its value and what was expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, TypeAlias

from trimtab.errors import UsageError

Method: TypeAlias = Literal["whitt", "allen-cunneen"]


@dataclass(frozen=True, slots=True)
class Demand:
    """The offered work: a rate, and the first two moments of interarrival and service times.

    `arrival_scv` and `service_scv` are squared coefficients of variation, variance / mean²: 0 constant,
    1 exponential (a Poisson stream). Raises UsageError.
    """

    servers: int
    arrivals_per_s: float
    mean_service_s: float
    service_scv: float = 1.0
    arrival_scv: float = 1.0

    def __post_init__(self) -> None:
        checked_servers(self.servers)
        checked_at_least(0.0, self.arrivals_per_s, "arrivals_per_s")
        checked_positive(self.mean_service_s, "mean_service_s")
        checked_at_least(0.0, self.service_scv, "service_scv")
        checked_at_least(0.0, self.arrival_scv, "arrival_scv")

    @property
    def offered(self) -> float:
        """Offered load: the mean number of busy servers, if there are enough."""
        return self.arrivals_per_s * self.mean_service_s

    @property
    def load_frac(self) -> float:
        """Offered work over capacity; from 1 on an unbounded queue grows without end."""
        return self.offered / self.servers


@dataclass(frozen=True, slots=True)
class Station:
    """Steady state. With an unbounded queue at load 1 and above all wait, without end (inf)."""

    demand: Demand
    wait_frac: float  # of those who enter, how many wait at all
    wait_s: float  # mean, waiters and others, of those who enter
    loss_frac: float = 0.0  # turned away

    @property
    def time_s(self) -> float:
        """Mean time in the system: wait and service."""
        return self.wait_s + self.demand.mean_service_s

    @property
    def entering_per_s(self) -> float:
        """Rate of admitted requests."""
        return self.demand.arrivals_per_s * (1.0 - self.loss_frac)

    @property
    def waiting(self) -> float:
        """Mean number of waiting requests (Little's law)."""
        return self.entering_per_s * self.wait_s if self.entering_per_s else 0.0

    @property
    def in_system(self) -> float:
        """Mean number of requests that wait or are served."""
        return self.entering_per_s * self.time_s if self.entering_per_s else 0.0

    @property
    def busy_frac(self) -> float:
        """Mean fraction of busy servers."""
        return min(1.0, self.demand.load_frac * (1.0 - self.loss_frac))


def overloaded(demand: Demand) -> Station:
    """The station of a queue that grows without end."""
    return Station(demand, wait_frac=1.0, wait_s=inf)


def checked_method(method: str) -> None:
    """One of `Method`. Raises UsageError."""
    if method not in ("whitt", "allen-cunneen"):
        raise UsageError("unknown", field="method", value=method, expected="whitt or allen-cunneen")


def checked_servers(servers: int) -> int:
    """The value as a whole number above zero. Raises UsageError."""
    return checked_count(1, servers, "servers")


def checked_count(least: int, value: float, field: str) -> int:
    """The value as a whole number of at least `least`. Raises UsageError."""
    if not isfinite(value) or value != int(value) or value < least:
        expected = f"a whole number, at least {least}"
        raise UsageError("cannot be used", field=field, value=value, expected=expected)
    return int(value)


def checked_at_least(least: float, value: float, field: str) -> float:
    """The value as a finite number of at least `least`. Raises UsageError."""
    if not isfinite(value) or value < least:
        raise UsageError("cannot be used", field=field, value=value, expected=f"a number, at least {least:g}")
    return float(value)


def checked_positive(value: float, field: str) -> float:
    """The value as a finite number above zero. Raises UsageError."""
    if not isfinite(value) or value <= 0.0:
        raise UsageError("cannot be used", field=field, value=value, expected="a number above 0")
    return float(value)


def checked_frac(value: float, field: str) -> float:
    """The value as a probability above zero and at most one. Raises UsageError."""
    if not 0.0 < value <= 1.0:
        raise UsageError(
            "cannot be used", field=field, value=value, expected="a fraction, above 0 and at most 1"
        )
    return float(value)
