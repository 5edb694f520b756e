"""Builds the Cluster that policies see, from the fleet's nodes grouped into types and the request classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from trimtab.domain.cluster import RESOURCES, Cluster, Floats
from trimtab.gateway.api.units import PROMPT_TOKEN_FRAC
from trimtab.gateway.decide.dispatch_rules import HERE
from trimtab.gateway.decide.learning import FIRST_LOAD_S, ClassKey, LoadKey, ServiceEstimates
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.node_spec import NodeSpec

NO_ITEMS = -1, -1
_GPU_MEMORY = RESOURCES.index("gpu_gib")
UNKNOWN_CAPACITY = (0.0,) * len(RESOURCES)
SPARE_CLASSES = 16  # rows for later classes; when they run out the state is rebuilt


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the shape; a change of any field needs a new shape."""

    name: str
    type_name: str
    serves: frozenset[str]  # models and adapters
    slots: int
    weight: float
    bases: Mapping[str, str] = field(default_factory=dict)  # adapter → its model; "" = not known
    adapter_load_s: float = 0.0
    loads_models: bool = False  # its models are loaded by calls of its own
    zone: str = HERE
    nic_gib_per_s: float = 0.0  # 0 = not declared
    usd_per_hour: float = 0.0
    capacity: tuple[float, ...] = UNKNOWN_CAPACITY  # [resources], declared or reported; 0 = unknown

    @property
    def memory_gib(self) -> float:
        """Memory for models, in whole GiB, so that nodes of one type agree; inf = unknown."""
        return float(round(self.capacity[_GPU_MEMORY])) or float("inf")


PLACEHOLDER = Member("", "", frozenset(), 1, 1.0)  # a cluster has at least one node


class NodeType(NamedTuple):
    """The common properties of nodes of one type. Several may share a name, and with it their estimates."""

    name: str
    serves: frozenset[str]
    usd_per_hour: float = 0.0
    memory_gib: float = float("inf")


class Surroundings(NamedTuple):
    """Resources of nodes, distances between zones, links and models' memory, as the cluster begins with."""

    resource_names: tuple[str, ...] = ()
    capacity: Floats = np.zeros((0, 0))  # [nodes, resources]
    demand: Floats = np.zeros((0, 0))  # [classes, resources]
    zones: tuple[str, ...] = (HERE,)
    rtt_s: Floats = np.zeros((1, 1))  # [zones, zones]
    zone_gib_per_s: Floats = np.full(1, np.inf)  # [zones]
    nic_gib_per_s: Floats = np.zeros(0)  # [nodes]; none = not modelled
    model_gib: Mapping[str, float] = {}


@dataclass(frozen=True)
class ClusterShape:
    """Nodes by position, with their types."""

    members: tuple[Member, ...]
    types: tuple[NodeType, ...]
    type_idx: tuple[int, ...]
    items: tuple[str, ...]
    bases: Mapping[str, str]  # adapters that no node serves as a model → their model; "" = not known

    @cached_property
    def modelled(self) -> list[int]:
        """Positions of the resources of which some node's capacity is known."""
        return [k for k in range(len(RESOURCES)) if any(m.capacity[k] for m in self.members)]

    @cached_property
    def capacity(self) -> Floats:
        """Capacity [nodes, resources]; a node of which it is unknown counts as the largest."""
        known = np.array([m.capacity for m in self.members])
        return np.where(known > 0.0, known, known.max(axis=0))

    @cached_property
    def item_at(self) -> Mapping[str, int]:
        """Model or adapter → its position among the items."""
        return {name: i for i, name in enumerate(self.items)}

    @cached_property
    def items_needed(self) -> Mapping[str, tuple[int, int]]:
        """Model or adapter → positions of model and adapter that a request for it needs; -1 = none.

        An adapter of an unknown model takes the model's position.
        """
        at = self.item_at
        pairs = {name: (at[base], at[name]) for name, base in self.bases.items() if base in at}
        return {name: (i, -1) for name, i in at.items()} | pairs

    @cached_property
    def _least(self) -> dict[str, Floats]:
        return {}

    def least_capacity(self, model: str) -> Floats:
        """The least amounts of all nodes of a model, [resources]; inf where no node serves it."""
        if model not in self._least:
            serving = [j for j, g in enumerate(self.type_idx) if self.serves(g, model)]
            self._least[model] = self.capacity[serving].min(axis=0, initial=np.inf)
        return self._least[model]

    def serves(self, g: int, model: str) -> bool:
        """Whether nodes of type g serve this model; "" = a path without a model: every node."""
        return not model or model in self.types[g].serves


def shape_of(members: Iterable[Member]) -> ClusterShape:
    """The shape of a cluster of these nodes."""
    members = tuple(members)
    keys = [NodeType(m.type_name, m.serves, m.usd_per_hour, m.memory_gib) for m in members]
    types = tuple(dict.fromkeys(keys))
    position = {key: g for g, key in enumerate(types)}
    items = tuple(sorted({name for m in members for name in m.serves}))
    models = {name for m in members for name in m.serves - m.bases.keys()}
    bases: dict[str, str] = {}
    for name, base in (pair for m in members for pair in m.bases.items() if pair[0] not in models):
        bases[name] = bases.get(name) or base
    return ClusterShape(members, types, tuple(position[key] for key in keys), items, bases)


def member_of(
    node: Node,
    spec: NodeSpec,
    adapters: Mapping[str, str],
    most_requests: int,
    gateway_zone: str = HERE,
    capacity: tuple[float, ...] = UNKNOWN_CAPACITY,
) -> Member:
    """A node of the fleet. `adapters`: name → model, "" = not known."""
    bases = {name: base for name, base in adapters.items() if name not in node.models}
    serves = frozenset((*node.models, *bases))
    type_name = node.type_name or node.name
    return Member(
        node.name,
        type_name,
        serves,
        max(1, most_requests),
        spec.weight,
        bases,
        spec.adapter_load_s,
        loads_models=spec.hooks is not None and spec.hooks.models is not None,
        zone=spec.zone or gateway_zone,
        nic_gib_per_s=spec.nic_gib_per_s,
        usd_per_hour=spec.usd_per_hour,
        capacity=capacity,
    )


def cluster_of(
    shape: ClusterShape,
    classes: Sequence[ClassKey],
    rows: int,
    estimates: ServiceEstimates,
    around: Surroundings = Surroundings(),  # noqa: B008 - never changed
    holding_cost: Mapping[str, float] = MappingProxyType({}),
    learned_load_s: Mapping[LoadKey, float] = MappingProxyType({}),
) -> Cluster:
    """The cluster that policies see; `rows` ≥ the number of classes."""
    n, g = len(shape.members), len(shape.types)
    fixed_s, unit_s = np.full((rows, g), np.inf), np.zeros((rows, g))
    for c, key in enumerate(classes):
        write_estimates(fixed_s, unit_s, c, key, shape, estimates)
    is_adapter = np.array([name in shape.bases for name in shape.items], np.uint8)
    slots = np.array([m.slots for m in shape.members], np.int64)
    return Cluster(
        type_names=tuple(kind.name for kind in shape.types),
        node_names=tuple(m.name for m in shape.members),
        type_idx=np.array(shape.type_idx, np.int64),
        slots=slots,
        queue_max=np.zeros(n, np.int64),
        zone_idx=np.array([around.zones.index(m.zone) for m in shape.members], np.int64),
        weight=np.array([m.weight for m in shape.members], np.float64) * slots,
        nic_gib_per_s=around.nic_gib_per_s if len(around.nic_gib_per_s) else np.full(n, np.inf),
        memory_gib=np.array([kind.memory_gib for kind in shape.types]),
        accelerators=np.ones(g),
        usd_per_hour=np.array([kind.usd_per_hour for kind in shape.types]),
        class_names=tuple(f"{model}/{kind.value}" for model, kind in classes)
        + tuple(f"spare{k}" for k in range(rows - len(classes))),
        fixed_s=fixed_s,
        unit_s=unit_s,
        item_names=shape.items,
        item_gib=np.array([around.model_gib.get(name, 0.0) for name in shape.items]),
        item_is_adapter=is_adapter,
        load_s=load_times(shape, is_adapter, learned_load_s),
        zone_names=around.zones,
        rtt_s=around.rtt_s,
        zone_gib_per_s=around.zone_gib_per_s,
        resource_names=around.resource_names,
        capacity=around.capacity,
        demand=around.demand,
        holding_cost=np.array(
            [holding_cost.get(model, 1.0) for model, _ in classes] + [1.0] * (rows - len(classes))
        ),
        prompt_token_units=np.full(rows, PROMPT_TOKEN_FRAC),
    )


def load_times(shape: ClusterShape, is_adapter: np.ndarray, learned: Mapping[LoadKey, float]) -> Floats:
    """Seconds to load each item on nodes of each type, [items, types]; learned ones replace first guesses."""
    adapter_s, model_s = np.zeros(len(shape.types)), np.zeros(len(shape.types))
    at = list(shape.type_idx)  # nodes of a type that differ count as the slowest of them
    np.maximum.at(adapter_s, at, [m.adapter_load_s for m in shape.members])
    np.maximum.at(model_s, at, [FIRST_LOAD_S if m.loads_models else 0.0 for m in shape.members])
    load_s: Floats = np.where(is_adapter[:, None] == 1, adapter_s, model_s)
    for m, item in enumerate(shape.items):
        for g, kind in enumerate(shape.types):
            load_s[m, g] = learned.get((item, kind.name), load_s[m, g])
    return load_s


def write_estimates(
    fixed_s: np.ndarray,
    unit_s: np.ndarray,
    c: int,
    key: ClassKey,
    shape: ClusterShape,
    estimates: ServiceEstimates,
) -> None:
    """Set row c of both tables [classes, types]: inf where a type does not serve the model."""
    for g, kind in enumerate(shape.types):
        if shape.serves(g, key[0]):
            fixed_s[c, g], unit_s[c, g] = estimates.of(key, kind.name)
