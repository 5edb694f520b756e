"""Holds that one tenant alone has caused.

A tenant can send requests that nodes refuse or fail at. So what only one tenant has met at a node withholds
the node from this tenant, and not from others:

- It is about the node, and withholds it from all, once two tenants have met it there without a good answer
  in between.
- Until then it is about the tenant. While no other tenant is active the node is withheld from all, since
  nobody else is there: so a gateway with one tenant needs no second one. The first request of another tenant
  ends that.
- A tenant that nodes are withheld from gets the others; if there are no others it gets these.

A tenant is active for ACTIVE_S after its last request.

How often the requests of each tenant fail, at whatever node.

A tenant can send requests that make every node fail. So failures at a node are evidence against the node only
as far as the failures of the same tenants at other nodes do not explain them. For a tenant of which nothing
is known the rate is a third, so that five failures in a row at one node still speak against the node (a
chance of 0.4 %).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Final

from trimtab.gateway.model import Node, Tenant
from trimtab.gateway.nodes.node_state import Hold

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


ACTIVE_S: Final = 60.0


def name_of(tenant: Tenant | None) -> str:
    """The tenant's name; "" = requests without one."""
    return "" if tenant is None else tenant.name


def sole(tenants: Collection[str]) -> str | None:
    """The tenant that alone has met something; None = several have."""
    return next(iter(tenants)) if len(tenants) == 1 else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A node that is withheld from a tenant."""

    node: Node
    reason: str
    until_s: float
    timer: asyncio.TimerHandle


class TenantHolds:
    """Which nodes are withheld from which tenant. `ended(node, tenant)` is called when that is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Node, str], None]) -> None:
        self._loop, self._ended = loop, ended
        self._kept: dict[tuple[str, int, Hold], _Kept] = {}
        # Holds for all that only this tenant has caused, by node and kind.
        self.provisional: dict[tuple[int, Hold], str] = {}
        self._last, self._before = (
            ("", -inf),
            ("", -inf),
        )  # the tenant of the last request, and the one before

    def note(self, tenant: str) -> None:
        """A request of this tenant has come."""
        if tenant != self._last[0]:
            self._before = self._last
        self._last = tenant, self._loop.time()

    def others_are_active(self, tenant: str) -> bool:
        """Whether another tenant sends requests."""
        seen_s = self._before[1] if self._last[0] == tenant else self._last[1]
        return self._loop.time() - seen_s < ACTIVE_S

    def keep(self, node: Node, hold: Hold, reason: str, tenant: str, for_s: float) -> None:
        """Withhold the node from this tenant."""
        key = tenant, node.idx, hold
        self._drop(key)
        timer = self._loop.call_later(for_s, self._release, key)
        self._kept[key] = _Kept(node, reason, self._loop.time() + for_s, timer)

    def until_s(self, node: Node, hold: Hold, tenant: str) -> float:
        """Until when the node is withheld from this tenant; −inf = it is not."""
        kept = self._kept.get((tenant, node.idx, hold))
        return -inf if kept is None else kept.until_s

    def of(self, tenant: str) -> list[int]:
        """Positions of the nodes that are withheld from this tenant."""
        if not self._kept:
            return []
        return list(dict.fromkeys(node_idx for name, node_idx, _ in self._kept if name == tenant))

    def reasons(self) -> dict[str, dict[str, str]]:
        """Why nodes are withheld, by the name of the node and of the tenant."""
        found: dict[str, dict[str, str]] = {}
        for (tenant, _, _), kept in self._kept.items():
            found.setdefault(kept.node.name, {})[tenant] = kept.reason
        return found

    def forget(self, node: Node) -> None:
        """The node is gone."""
        for held in [held for held in self.provisional if held[0] == node.idx]:
            del self.provisional[held]
        for key in [key for key in self._kept if key[1] == node.idx]:
            self._drop(key)

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._kept):
            self._drop(key)

    def _drop(self, key: tuple[str, int, Hold]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.timer.cancel()

    def _release(self, key: tuple[str, int, Hold]) -> None:
        kept = self._kept.pop(key)
        tenant, node_idx, _ = key
        if node_idx not in self.of(tenant):
            self._ended(kept.node, tenant)
