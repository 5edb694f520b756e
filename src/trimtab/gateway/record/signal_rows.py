"""Inputs of policies besides requests and service times, as lines of a recording."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LEAST_CHANGE_FRAC: Final = 0.02  # of a capacity: smaller changes of its use are not recorded


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals of all nodes, by position, and what is declared or learned of classes and tenants."""

    resources: Sequence[str] = ()  # of which some node's capacity is known
    capacity: Sequence[Sequence[float]] = ()  # [nodes, resources]
    used_by_others_frac: Sequence[Sequence[float]] = ()  # [nodes, resources], of the capacity
    demand: Mapping[str, Sequence[float]] = field(default_factory=dict)  # class → [resources]
    holding_cost: Mapping[str, float] = field(default_factory=dict)  # class → where it is not 1
    weight: Sequence[float] = ()  # [nodes], of a slot
    usd_per_hour: Sequence[float] = ()  # [nodes]
    zone: Sequence[str] = ()  # [nodes]
    zones: Sequence[str] = ()  # all; the gateway's own first
    rtt_s: Sequence[Sequence[float]] = ()  # [zones, zones]
    nic_gib_per_s: Sequence[float] = ()  # [nodes]; inf = unknown
    zone_gib_per_s: Sequence[float] = ()  # [zones], of the link into each; inf = no limit
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # tenant → where it is not 1


def signals_row(signals: Signals, tenant_weights: Mapping[str, float]) -> dict[str, Any]:
    """All signals but use. `tenant_weights`: by the names that the recording gives to tenants."""
    return {
        "resources": list(signals.resources),
        "capacity": [list(row) for row in signals.capacity],
        "demand": {name: list(row) for name, row in signals.demand.items()},
        "holding_cost": dict(signals.holding_cost),
        "weight": list(signals.weight),
        "usd_per_hour": list(signals.usd_per_hour),
        "zone": list(signals.zone),
        "zones": list(signals.zones),
        "rtt_s": [list(row) for row in signals.rtt_s],
        "nic_gib_per_s": _finite(signals.nic_gib_per_s),
        "zone_gib_per_s": _finite(signals.zone_gib_per_s),
        "tenant_weights": dict(tenant_weights),
    }


def _finite(amounts: Sequence[float]) -> list[float | None]:
    """JSON has no infinity."""
    return [amount if math.isfinite(amount) else None for amount in amounts]


class UseThinning:
    """Leaves out use that has hardly changed since it was recorded last."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, str], float] = {}

    def forget(self) -> None:
        """A new file begins: it holds everything once more."""
        self._written = dict.fromkeys(self._written, math.inf)

    def changed(self, signals: Signals) -> dict[str, dict[str, float]]:
        """Node position → resource → fraction of the capacity that others use, where it is news."""
        news: dict[str, dict[str, float]] = {}
        for j, name, frac in _uses(signals):
            if abs(frac - self._written.get((j, name), 0.0)) >= LEAST_CHANGE_FRAC:
                self._written[j, name] = frac
                news.setdefault(str(j), {})[name] = round(frac, 4)
        return news


def _uses(signals: Signals) -> Iterator[tuple[int, str, float]]:
    for j, row in enumerate(signals.used_by_others_frac):
        for name, frac in zip(signals.resources, row, strict=True):
            yield j, name, float(frac)
