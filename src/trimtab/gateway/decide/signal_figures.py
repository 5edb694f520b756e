"""Resources, distances and prices of nodes and the demand of classes, as policies see them, for displays."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TypedDict

from trimtab.domain.cluster import RESOURCES
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.nodes.fleet import Fleet


class ResourceFigures(TypedDict):
    """One resource of a node."""

    capacity: float
    used: float  # by requests from here, and by others


class SignalFigures(TypedDict):
    """Figures of a node besides its queue that policies read."""

    zone: str
    round_trip_s: float | None  # measured by health checks
    nic_gib_per_s: float | None  # of the link to it, declared or measured
    transfers: int  # large bodies that are being sent to it
    usd_per_hour: float
    foreign_requests: int  # that others sent to it, as it reports
    report_age_s: dict[str, float]  # by source: backend, machine, gpu
    resources: dict[str, ResourceFigures]
    resident: list[str]  # adapters, and models where calls load these, that it is known to hold
    loading: list[str]


def signal_figures(registry: Registry, fleet: Fleet) -> dict[str, SignalFigures]:
    """Of each node, by name."""
    signals, shape, now_s = registry.signals, registry.shape, fleet.loop.time()
    names = [RESOURCES[k] for k in shape.modelled]
    capacity = shape.capacity[:, shape.modelled]
    used = signals.used(shape, registry.class_keys, registry.rows)
    found: dict[str, SignalFigures] = {}
    for node in fleet.present():
        j = node.idx
        if j >= len(shape.members):
            continue
        member, gib_per_s = shape.members[j], signals.nic_gib_per_s(shape, j)
        found[node.name] = {
            "zone": member.zone,
            "round_trip_s": signals.round_trips.of_node(j),
            "nic_gib_per_s": gib_per_s if isfinite(gib_per_s) else None,
            "transfers": signals.links.active[j],
            "usd_per_hour": member.usd_per_hour,
            "foreign_requests": signals.foreign.get(j, 0),
            "report_age_s": {source: now_s - read_s for source, read_s in node.reported_s.items()},
            "resources": {
                name: {"capacity": float(capacity[j, k]), "used": float(used[j, k])}
                for k, name in enumerate(names)
            },
            "resident": sorted(fleet.state(node).held()),
            "loading": node.loader.loading(node) if node.loader is not None else [],
        }
    return found


def demand_figures(registry: Registry) -> Mapping[str, Mapping[str, float]]:
    """The demand of one request of each class: class → resource → amount, declared or learned."""
    shape, keys = registry.shape, registry.class_keys
    demand = registry.signals.demand(shape, keys, registry.rows)
    return {
        f"{model}/{kind.value}": {
            RESOURCES[k]: float(amount) for k, amount in zip(shape.modelled, demand[c], strict=True) if amount
        }
        for c, (model, kind) in enumerate(keys)
    }
