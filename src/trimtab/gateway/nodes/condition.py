"""Why a node gets no work, and how much it gets while it warms up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from trimtab.gateway.model import Health, Node
from trimtab.gateway.nodes.address import Address
from trimtab.gateway.nodes.spec import Listing, NodeSpec


class Hold(Enum):
    """A reason why a node gets no new work. Several may hold it at once; each is let go by whoever set it."""

    REMOVED = "removed"
    DRAINING = "draining"
    CHECKS = "checks"  # its health checks fail
    BREAKER = "breaker"  # nothing connects
    OUTLIER = "outlier"  # it answers worse than the others
    SILENT = "silent"  # bytes that were predicted do not come
    BUSY = "busy"  # it asked for a pause: back-pressure, not a fault


_HEALTH = {  # the first that holds decides
    Hold.REMOVED: Health.DRAINING,
    Hold.DRAINING: Health.DRAINING,
    Hold.CHECKS: Health.DOWN,
    Hold.BREAKER: Health.DOWN,
    Hold.OUTLIER: Health.EJECTED,
    Hold.SILENT: Health.SUSPECT,
    Hold.BUSY: Health.UP,
}
LEAVING = frozenset({Hold.REMOVED, Hold.DRAINING})
FAULTS = frozenset({Hold.CHECKS, Hold.BREAKER, Hold.OUTLIER, Hold.SILENT})
MAY_BE_ANEW = frozenset({Hold.CHECKS, Hold.BREAKER})  # after these it may be another process
COLD = frozenset({Hold.CHECKS, Hold.BREAKER, Hold.OUTLIER})  # after these a node starts slowly


@dataclass(slots=True, eq=False)
class Condition:
    """What the fleet knows of one node beside the shared `Node`."""

    spec: NodeSpec
    address: Address
    source: str  # who described it: "config", "admin", "dns:…", "file:…"
    adapters: dict[str, str] = field(default_factory=dict)  # adapter → its model
    listing: Listing | None = None  # what it said last that it serves
    held_adapters: set[str] = field(
        default_factory=set
    )  # listed, reported or served there, not only declared
    holds: dict[Hold, str] = field(default_factory=dict)  # with the reason in words
    until_s: dict[Hold, float] = field(default_factory=dict)
    timers: dict[Hold, asyncio.TimerHandle] = field(default_factory=dict)
    warm_from_s: float = float("-inf")  # when its ramp began; inf = on trial
    warm_timer: asyncio.TimerHandle | None = None
    was_up: bool = False  # it has answered since it was added
    remove_by_s: float = float("inf")

    @property
    def is_open(self) -> bool:
        """Whether it gets work."""
        return not self.holds

    @property
    def is_on_trial(self) -> bool:
        """Whether it must answer one request before it gets more."""
        return self.warm_from_s == float("inf")

    def write_health(self, node: Node) -> None:
        """Set the health and the reason that the others read."""
        worst = next((hold for hold in _HEALTH if hold in self.holds), None)
        node.health = Health.UP if worst is None else _HEALTH[worst]
        node.reason = "" if worst is None else self.holds[worst]

    def cancel_timers(self) -> None:
        """Nothing happens to it by itself any more."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        self.until_s.clear()
        self.cancel_warming()

    def cancel_warming(self) -> None:
        """The next step of its ramp does not come."""
        if self.warm_timer is not None:
            self.warm_timer.cancel()
            self.warm_timer = None
