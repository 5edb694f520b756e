"""Turns the cluster section and the service classes into the arrays of `Cluster`, and their capacity.

Capacity of a cluster for a mix of request classes: the arrival rate that is load 1.0.

The fluid programme: the highest rate Λ at which rates x_cg of class c on group g exist with
    Σ_g x_cg = Λ share_c,   Σ_c x_cg E[service_cg] ≤ slots_g,   x ≥ 0,   x_cg = 0 where g cannot serve c,
and, where nodes have resources k,   Σ_c x_cg E[service_cg] demand_ck ≤ capacity_gk.
Model loads, transfers and what does not go evenly into a node are left out. Solved as its scaled twin: the
least largest utilisation u at rate 1, Λ = 1/u.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trimtab.domain.cluster import Cluster, ResourceName
from trimtab.domain.view import UNLIMITED
from trimtab.errors import ScenarioError, TrimtabError
from trimtab.experiments.scenario.build.engine_tables import (
    BuiltEngines,
    build_engines,
    line_through,
    mean_service_s,
)
from trimtab.experiments.scenario.build.generated import Members, RequestColumns
from trimtab.experiments.scenario.build.network_graph import build_network
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.node_services import ModelService
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served, ServiceClass
from trimtab.experiments.scenario.spec.shared_types import FloatArray, holds
from trimtab.validation.names import require


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
    built = build_engines(spec, columns)
    of_type = np.array([kind.slots for kind in types]) if built is None else built.slots
    slots = np.array([group.slots or of_type[type_names.index(group.type)] for _, group in nodes])
    fixed_s, unit_s = service_tables(spec, served)
    if built is not None:
        _refuse_parts(served, columns)
        _set_engine_seconds(spec, served, built, columns, fixed_s, unit_s)
    items, network = items_of(served, columns), build_network(spec)
    nic_gib_per_s = [g.nic_gib_per_s or np.inf if network is None else np.inf for _, g in nodes]
    return Cluster(
        type_names=type_names,
        node_names=tuple(name for name, _ in nodes),
        type_idx=type_idx,
        slots=slots,
        queue_max=np.array([UNLIMITED if g.queue_max is None else g.queue_max for _, g in nodes]),
        zone_idx=np.array([0 if g.zone is None else zones.index(g.zone) for _, g in nodes]),
        weight=slots.astype(np.float64),
        nic_gib_per_s=np.array(nic_gib_per_s),
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
        rtt_s=_round_trips_s(spec) if network is None else network.round_trips_s(),
        network=network,
        holding_cost=np.array([service.holding_cost for service in served.classes.values()]),
        prompt_token_units=np.array([service.prompt_token_units for service in served.classes.values()]),
        zone_gib_per_s=np.array([_ingress_gib_per_s(spec, zone) for zone in zones]),
        resource_names=spec.resource_names,
        capacity=_amounts([t.resources for t in types], spec)[type_idx],
        demand=_amounts([s.demand for s in served.classes.values()], spec),
        engines=None if built is None else built.engines,
    )


def _refuse_parts(served: Served, columns: RequestColumns) -> None:
    """Raise ScenarioError for requests of a language model that are to be split, or batched by a policy."""
    if columns.output_tokens is None:
        return
    of_models = np.bincount(columns.class_idx, columns.output_tokens > 0, len(served.classes)) > 0
    for (name, service), is_model in zip(served.classes.items(), of_models, strict=True):
        for field in ("split", "batch"):
            if is_model and getattr(service, field) is not None:
                raise ScenarioError(
                    "has no meaning for a language model, which batches by itself",
                    field=f"classes.{name}.{field}",
                    value="given",
                    expected="null, where node types serve with kind: llm",
                )


def _set_engine_seconds(
    spec: ClusterSpec,
    served: Served,
    built: BuiltEngines,
    columns: RequestColumns,
    fixed_s: FloatArray,
    unit_s: FloatArray,
) -> None:
    """Set the seconds of classes on types that tell their own: estimates, in a batch of as many as slots.

    inf for a class that null excludes, or of a language model without tokens.
    """
    for g in range(len(spec.types)):
        if built.engines.types["sizes"][g] > 0:
            _set_measured_seconds(g, built, columns, fixed_s, unit_s)
    if columns.prompt_tokens is None or columns.output_tokens is None:
        return
    names = list(served.classes)
    for c, name in enumerate(names):
        parent, role = served.roles.get(name, (name, ""))
        rows = (columns.class_idx == names.index(parent)) & (columns.output_tokens > 0)
        prompt, output, units = (
            float(of[rows].mean()) if rows.any() else 0.0
            for of in (columns.prompt_tokens, columns.output_tokens, columns.units)
        )
        if role == "prefill":
            units = max(served.classes[parent].prompt_token_units * prompt, 1e-9)
        elif role == "decode":
            units = output = max(output - 1.0, 1.0)
        for g, kind in enumerate(spec.types.values()):
            if not isinstance(kind.service, ModelService):
                continue
            if (
                not rows.any()
                or fixed_s[c, g] == np.inf
                or (role and kind.service.role not in (role, "both"))
            ):
                fixed_s[c, g] = np.inf
                continue
            fixed_s[c, g] = 0.0
            slots = int(built.slots[g])
            unit_s[c, g] = mean_service_s(built.engines, g, slots, prompt, output, role) / units


def _set_measured_seconds(
    g: int, built: BuiltEngines, columns: RequestColumns, fixed_s: FloatArray, unit_s: FloatArray
) -> None:
    """Set the line nearest to the measured seconds of each class's sizes; of all sizes if it has none."""
    kind, among = built.engines.types[g], int(min(built.slots[g], built.engines.types["batch_max"][g]))
    measured = built.engines.size_at[g, : int(kind["sizes"])]
    for c in np.flatnonzero(np.isfinite(fixed_s[:, g])):
        own = columns.units[(columns.class_idx == c) & (columns.units <= measured[-1])]
        sizes = own if len(own) else measured
        fixed_s[c, g], unit_s[c, g] = line_through(sizes, built.engines.among_s(g, among, sizes))


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
    """Round-trip times, [zones, zones]."""
    zones = spec.zone_names
    return np.array([[spec.round_trip_s(a, b) for b in zones] for a in zones])


def _ingress_gib_per_s(spec: ClusterSpec, zone: str) -> float:
    given = spec.zones[zone].ingress_gib_per_s if zone in spec.zones else None
    return given or np.inf


SAME_PROFILE = 1e-12  # relative difference up to which classes count as served at equal relative speeds


@dataclass(frozen=True, slots=True, eq=False)
class CapacityResult:
    """The highest sustainable arrival rate, and a split that serves it."""

    rate_per_s: float  # of the whole stream of which the classes have their shares
    allocation_per_s: FloatArray  # [classes, groups], rate of class c served by group g at that rate


def fluid_capacity_per_s(
    mean_service_s: npt.ArrayLike,
    share: npt.ArrayLike,
    slots: npt.ArrayLike,
    demand: npt.ArrayLike | None = None,
    capacity: npt.ArrayLike | None = None,
) -> CapacityResult:
    """Highest arrival rate at which the fluid programme class × group of nodes is feasible, loads excluded.

    `mean_service_s` [classes, groups], infinity where a group cannot serve a class; `share` [classes] of all
    arrivals, which need not sum to one (a class that no type serves has share 0 here); `slots` [groups];
    `demand` [classes, resources] of a request while it is served, of the `capacity` [groups, resources].
    Raises UsageError for tables that do not fit together, and for a class with a share that no group serves.
    """
    service, weight, free = (np.asarray(table, dtype=np.float64) for table in (mean_service_s, share, slots))
    _check(service, weight, free)
    taken = np.zeros((len(weight), 0)) if demand is None else np.asarray(demand, dtype=np.float64)
    held = np.zeros((len(free), 0)) if capacity is None else np.asarray(capacity, dtype=np.float64)
    _check_resources(taken, held, len(weight), len(free))
    service = np.where(((taken[:, None] > 0) & (held == 0)).any(axis=2), np.inf, service)
    classes, groups = np.flatnonzero(weight > 0), np.flatnonzero(free > 0)
    cell = np.ix_(classes, groups)
    _check_served(service[cell], classes)
    use = _use(service[cell], free[groups], taken[classes], held[groups])
    split = _split(service[cell], weight[classes], free[groups], use)
    busy = np.where(split > 0, use, 0.0) * split * weight[classes, None]
    rate_per_s = 1.0 / float(busy.sum(axis=1).max())
    allocation_per_s = np.zeros(service.shape)
    allocation_per_s[cell] = rate_per_s * weight[classes, None] * split
    return CapacityResult(rate_per_s, allocation_per_s)


def _use(service: FloatArray, slots: FloatArray, demand: FloatArray, capacity: FloatArray) -> FloatArray:
    """Seconds of a group's slots, then of each of its resources, that one request uses.

    Shape [1 + resources, classes, groups]; infinite where a group cannot serve.
    """
    seconds = [service / slots]
    for of_class, of_group in zip(demand.T, capacity.T, strict=True):
        share = np.divide(of_class[:, None], of_group, out=np.zeros(service.shape), where=of_group > 0)
        seconds.append(np.where(np.isfinite(service), service, 0.0) * share)
    return np.stack(seconds)


def _split(service: FloatArray, share: FloatArray, slots: FloatArray, use: FloatArray) -> FloatArray:
    """Fraction of each class that each group serves, shape [classes, groups]; rows sum to one."""
    speed = 1.0 / service  # 0 where a group cannot serve
    profile = speed / speed.sum(axis=1, keepdims=True)
    if len(use) == 1 and np.allclose(profile, profile[0], rtol=SAME_PROFILE, atol=0.0):
        return _rows_to_one(
            profile * slots
        )  # any split that fills every group is best: take the same for all
    return _least_utilisation_split(np.where(np.isfinite(service), use, 0.0) * share[:, None])


def _least_utilisation_split(demand: FloatArray) -> FloatArray:
    """Minimise the largest utilisation u over the split z: variables z [classes · groups], then u.

    `demand` [1 + resources, classes, groups] is the utilisation of the slots, then of each resource, of a
    group that serves a class alone; 0 of the slots where it cannot.
    """
    from scipy.optimize import linprog  # 0.4 s to import: only where there is no closed form

    classes, groups = demand.shape[1:]
    possible = demand[0] > 0
    scaled = demand / demand[0].min(axis=1, where=possible, initial=np.inf).sum()  # then u ≥ 1 / groups
    rows = [np.hstack([*(np.diag(row) for row in kind), -np.ones((groups, 1))]) for kind in scaled]
    outcome = linprog(
        np.append(np.zeros(possible.size), 1.0),
        A_ub=np.vstack(rows),
        b_ub=np.zeros(groups * len(rows)),
        A_eq=np.hstack([np.kron(np.eye(classes), np.ones(groups)), np.zeros((classes, 1))]),
        b_eq=np.ones(classes),
        bounds=[(0.0, float(allowed)) for allowed in possible.flat] + [(0.0, None)],
        method="highs",
    )
    if outcome.x is None:
        raise TrimtabError(f"the fluid programme was not solved: {outcome.message}")
    return _rows_to_one(np.clip(outcome.x[:-1].reshape(classes, groups), 0.0, None) * possible)


def _rows_to_one(parts: FloatArray) -> FloatArray:
    return np.asarray(parts / parts.sum(axis=1, keepdims=True), dtype=np.float64)


def _check(service: FloatArray, share: FloatArray, slots: FloatArray) -> None:
    shape = (share.size, slots.size)
    require(service.shape == shape, "mean_service_s", f"shape {shape}", service.shape)
    require(bool((service > 0).all()), "mean_service_s", "seconds above zero", service.min(initial=np.inf))
    require(
        bool((share >= 0).all() and np.isfinite(share).all()), "share", "finite numbers, zero or more", share
    )
    require(bool((share > 0).any()), "share", "at least one class above zero", share)
    require(
        bool((slots >= 0).all() and np.isfinite(slots).all()), "slots", "finite numbers, zero or more", slots
    )


def _check_resources(demand: FloatArray, capacity: FloatArray, classes: int, groups: int) -> None:
    fits = demand.shape[:1] == (classes,) and capacity.shape == (groups, *demand.shape[1:])
    require(fits, "demand", "[classes, resources], with capacity [groups, resources]", demand.shape)
    for name, table in (("demand", demand), ("capacity", capacity)):
        is_amount = bool((table >= 0).all() and np.isfinite(table).all())
        require(is_amount, name, "finite numbers, zero or more", table)


def _check_served(service: FloatArray, classes: npt.NDArray[np.intp]) -> None:
    unserved = classes[~np.isfinite(service).any(axis=1)]
    expected = "classes that some group with slots serves"
    require(not unserved.size, "share", expected, f"class {', '.join(map(str, unserved))}")
