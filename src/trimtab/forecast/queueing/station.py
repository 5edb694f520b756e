"""What the formulas tell of a station: c equal servers, one queue, first come first served unless said."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from trimtab.errors import UsageError
from trimtab.forecast.queueing.checks import checked_at_least, checked_positive, checked_servers

Method: TypeAlias = Literal["whitt", "allen-cunneen"]


@dataclass(frozen=True, slots=True)
class Demand:
    """What comes to the servers: a rate, and the first two moments of gaps and services.

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
        """Mean number of servers that the work keeps busy, if there are enough."""
        return self.arrivals_per_s * self.mean_service_s

    @property
    def load_frac(self) -> float:
        """Offered work over capacity; from 1 on a queue without bound grows for ever."""
        return self.offered / self.servers


@dataclass(frozen=True, slots=True)
class Station:
    """Steady state. Without bound on the queue, at load 1 and above: all wait, for ever (inf)."""

    demand: Demand
    wait_frac: float  # of those who enter, how many wait at all
    wait_s: float  # mean, waiters and others, of those who enter
    loss_frac: float = 0.0  # turned away

    @property
    def time_s(self) -> float:
        """Mean wait and service together."""
        return self.wait_s + self.demand.mean_service_s

    @property
    def entering_per_s(self) -> float:
        """Rate of those who are not turned away."""
        return self.demand.arrivals_per_s * (1.0 - self.loss_frac)

    @property
    def waiting(self) -> float:
        """Mean number that waits (Little's law)."""
        return self.entering_per_s * self.wait_s if self.entering_per_s else 0.0

    @property
    def in_system(self) -> float:
        """Mean number that waits or is served."""
        return self.entering_per_s * self.time_s if self.entering_per_s else 0.0

    @property
    def busy_frac(self) -> float:
        """Mean share of the servers that is busy."""
        return min(1.0, self.demand.load_frac * (1.0 - self.loss_frac))


def overloaded(demand: Demand) -> Station:
    """A queue that grows for ever."""
    return Station(demand, wait_frac=1.0, wait_s=inf)


def checked_method(method: str) -> None:
    """One of `Method`. Raises UsageError."""
    if method not in ("whitt", "allen-cunneen"):
        raise UsageError("unknown", field="method", value=method, expected="whitt or allen-cunneen")
