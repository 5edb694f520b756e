"""How often the requests of each tenant fail, at whatever node.

A tenant can send requests that make every node fail. So failures at a node are evidence against the node only
as far as the failures of the same tenants at other nodes do not explain them. For a tenant of which nothing
is known the rate is a third, so that five failures in a row at one node still speak against the node (a
chance of 0.4 %).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from trimtab.gateway.model import Tenant
from trimtab.gateway.nodes.tenant_holds import name_of

KEEP_FRAC: Final = 0.9  # of all counts, each time `age` is called
FORGOTTEN: Final = 0.05  # counts below this are dropped
_PRIOR_FAILURES: Final = 0.5
_PRIOR_ATTEMPTS: Final = 1.5


class _Counts:
    """One tenant's attempts."""

    __slots__ = ("bad", "good")

    def __init__(self) -> None:
        self.good = 0.0
        self.bad: dict[int, float] = {}  # by node: failures are few


class TenantFailures:
    """Counts the attempts of each tenant, with forgetting."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}

    def succeeded(self, tenant: Tenant | None) -> str:
        """An attempt of this tenant has succeeded; returns the tenant's name."""
        name = name_of(tenant)
        counts = self._counts.get(name) or self._new(name)
        counts.good += 1.0
        return name

    def failed(self, tenant: Tenant | None, node_idx: int) -> str:
        """An attempt of this tenant has failed at this node; returns the tenant's name."""
        name = name_of(tenant)
        bad = (self._counts.get(name) or self._new(name)).bad
        bad[node_idx] = bad.get(node_idx, 0.0) + 1.0
        return name

    def failure_frac(self, tenant: str, node_idx: int) -> float:
        """The failed part of a tenant's attempts, failures at this node left out."""
        counts = self._counts.get(tenant)
        good, bad = 0.0, 0.0
        if counts is not None:
            good, bad = counts.good, sum(n for j, n in counts.bad.items() if j != node_idx)
        return (bad + _PRIOR_FAILURES) / (good + bad + _PRIOR_ATTEMPTS)

    def chance_of(self, failures: Mapping[str, int], node_idx: int) -> float:
        """The chance that these failures at a node, by tenant, come from the tenants' requests alone."""
        return prod(self.failure_frac(name, node_idx) ** n for name, n in failures.items())

    def age(self) -> None:
        """Forget a part of everything."""
        for name, counts in list(self._counts.items()):
            counts.good *= KEEP_FRAC
            counts.bad = {j: n * KEEP_FRAC for j, n in counts.bad.items() if n * KEEP_FRAC >= FORGOTTEN}
            if counts.good < FORGOTTEN and not counts.bad:
                del self._counts[name]

    def _new(self, name: str) -> _Counts:
        counts = self._counts[name] = _Counts()
        return counts
