"""The shape of the cluster that policies see: the fleet's nodes, grouped into types, and what they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from trimtab.domain.cluster import RESOURCES, Floats
from trimtab.gateway.decide.dispatch_rules import HERE

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
