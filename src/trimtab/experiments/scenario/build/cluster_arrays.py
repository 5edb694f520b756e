"""Turns the cluster section and the service classes into the arrays of `Cluster`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trimtab.domain.cluster import Cluster, ResourceName
from trimtab.domain.view import UNLIMITED
from trimtab.experiments.scenario.build.generated import Members, RequestColumns
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served, ServiceClass
from trimtab.experiments.scenario.spec.shared_types import FloatArray, holds


class Item(NamedTuple):
    """One model or adapter that a node can hold."""

    name: str
    family: ItemFamily
    is_adapter: bool


def items_of(served: Served, columns: RequestColumns) -> list[Item]:
    """All models, then all adapters."""
    models = _each(served.models, columns.models, is_adapter=False)
    return [*models, *_each(served.adapters, columns.adapters, is_adapter=True)]


def _each(families: Mapping[str, ItemFamily], members: Members, *, is_adapter: bool) -> Iterator[Item]:
    for name, family in families.items():
        yield from (Item(member, family, is_adapter) for member in members[name])


def first_positions(members: Members, start: int) -> dict[str, int]:
    """Family → position of its first member among all items."""
    positions = {}
    for name, names in members.items():
        positions[name], start = start, start + len(names)
    return positions


def build_cluster(spec: ClusterSpec, served: Served, columns: RequestColumns) -> Cluster:
    """The cluster; `weight` is the number of slots, corrected for speed later, when the load is known."""
    types, nodes, zones = list(spec.types.values()), list(spec.each_node()), spec.zone_names
    type_names = tuple(spec.types)
    type_idx = np.array([type_names.index(group.type) for _, group in nodes])
    slots = np.array([group.slots or spec.types[group.type].slots for _, group in nodes])
    fixed_s, unit_s = service_tables(spec, served)
    items = items_of(served, columns)
    return Cluster(
        type_names=type_names,
        node_names=tuple(name for name, _ in nodes),
        type_idx=type_idx,
        slots=slots,
        queue_max=np.array([UNLIMITED if g.queue_max is None else g.queue_max for _, g in nodes]),
        zone_idx=np.array([0 if g.zone is None else zones.index(g.zone) for _, g in nodes]),
        weight=slots.astype(np.float64),
        nic_gib_per_s=np.array([g.nic_gib_per_s or np.inf for _, g in nodes]),
        memory_gib=np.array([t.memory_gib for t in types]),
        accelerators=np.array([t.accelerators for t in types]),
        usd_per_hour=np.array([t.usd_per_hour for t in types]),
        is_paid_down=np.array([t.paid_while_down for t in types]),
        class_names=tuple(served.classes),
        fixed_s=fixed_s,
        unit_s=unit_s,
        item_names=tuple(item.name for item in items),
        item_gib=np.array([item.family.memory_gib for item in items], dtype=np.float64),
        item_is_adapter=np.array([item.is_adapter for item in items], dtype=np.uint8),
        load_s=np.array([_load_row(item.family, type_names) for item in items]).reshape(-1, len(types)),
        zone_names=zones,
        rtt_s=_round_trips_s(spec),
        holding_cost=np.array([service.holding_cost for service in served.classes.values()]),
        prompt_token_units=np.array([service.prompt_token_units for service in served.classes.values()]),
        zone_gib_per_s=np.array([_ingress_gib_per_s(spec, zone) for zone in zones]),
        resource_names=spec.resource_names,
        capacity=_amounts([t.resources for t in types], spec)[type_idx],
        demand=_amounts([s.demand for s in served.classes.values()], spec),
    )


def service_tables(spec: ClusterSpec, served: Served) -> tuple[FloatArray, FloatArray]:
    """(fixed_s, unit_s), [classes, types] each; fixed_s is inf if a type cannot serve a class.

    A type serves a class only if its memory holds the model together with any adapter of its requests,
    and its resources cover the demand of a request.
    """
    shape = (len(served.classes), len(spec.types))
    fixed_s, unit_s = np.full(shape, np.inf), np.zeros(shape)
    for c, service in enumerate(served.classes.values()):
        needed_gib = _needed_gib(service, served)
        for g, (name, kind) in enumerate(spec.types.items()):
            seconds = service.service_on(name, kind.speed)
            fits = needed_gib <= kind.memory_gib and holds(kind.resources, service.demand)
            if seconds is not None and fits:
                fixed_s[c, g], unit_s[c, g] = seconds
    return fixed_s, unit_s


def _amounts(rows: Sequence[Mapping[ResourceName, float]], spec: ClusterSpec) -> FloatArray:
    """Amounts as an array, [rows, resources]; 0 where a row has none."""
    names = spec.resource_names
    return np.array([[row.get(name, 0.0) for name in names] for row in rows]).reshape(len(rows), len(names))


def _needed_gib(service: ServiceClass, served: Served) -> float:
    model_gib = 0.0 if service.model is None else served.models[service.model].memory_gib
    return model_gib + (0.0 if service.adapter is None else served.adapters[service.adapter].memory_gib)


def _load_row(family: ItemFamily, type_names: tuple[str, ...]) -> list[float]:
    if isinstance(family.load_s, Mapping):
        return [family.load_s[name] or 0.0 for name in type_names]
    return [family.load_s] * len(type_names)


def _round_trips_s(spec: ClusterSpec) -> FloatArray:
    """Round-trip times, [zones, zones]; a pair given in one direction holds in both."""
    zones, given = spec.zone_names, spec.rtt_s
    if not isinstance(given, Mapping):
        return np.where(np.eye(len(zones), dtype=np.bool_), 0.0, given)
    table = np.zeros((len(zones), len(zones)))
    pairs = [(zones.index(a), zones.index(b), s) for a, row in given.items() for b, s in row.items()]
    for a, b, seconds in pairs:
        table[b, a] = seconds
    for a, b, seconds in pairs:
        table[a, b] = seconds
    return table


def _ingress_gib_per_s(spec: ClusterSpec, zone: str) -> float:
    given = spec.zones[zone].ingress_gib_per_s if zone in spec.zones else None
    return given or np.inf
