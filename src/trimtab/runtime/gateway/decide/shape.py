"""What the cluster is: the fleet's nodes, grouped into types, and the classes of requests, as a Cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.runtime.gateway.decide.estimates import ClassKey, Estimates
from trimtab.runtime.gateway.model import Node

SPARE_CLASSES = 16  # rows for classes that show up later; when they are used up the state is made anew


@dataclass(frozen=True, slots=True)
class Member:
    """A node as the deciding side has taken it over; what changes of it later makes another shape."""

    name: str
    type_name: str
    serves: frozenset[str]  # models and adapters
    slots: int
    weight: float


NOBODY = Member("", "", frozenset(), 1, 1.0)  # where there is no node yet: a cluster has at least one


@dataclass(frozen=True)
class Shape:
    """Nodes by position, with their types; a type is a name and what its nodes serve."""

    members: tuple[Member, ...]
    types: tuple[tuple[str, frozenset[str]], ...]
    type_idx: tuple[int, ...]
    items: tuple[str, ...]

    def serves(self, g: int, model: str) -> bool:
        """Whether nodes of type g serve this model; "" = a path without a model: every node."""
        return not model or model in self.types[g][1]


def shape_of(members: Iterable[Member]) -> Shape:
    """The shape of a cluster of these nodes."""
    members = tuple(members)
    keys = [(m.type_name, m.serves) for m in members]
    types = tuple(dict.fromkeys(keys))
    position = {key: g for g, key in enumerate(types)}
    items = tuple(sorted({name for m in members for name in m.serves}))
    return Shape(members, types, tuple(position[key] for key in keys), items)


def member_of(node: Node, adapters: Iterable[str], weight: float, most_requests: int) -> Member:
    """A node of the fleet."""
    serves = frozenset(node.models) | frozenset(adapters)
    return Member(node.name, node.type_name or node.name, serves, max(1, most_requests), weight)


def cluster_of(shape: Shape, classes: Sequence[ClassKey], rows: int, estimates: Estimates) -> Cluster:
    """The cluster that policies see; `rows` ≥ the number of classes."""
    n, g, items = len(shape.members), len(shape.types), len(shape.items)
    fixed_s, unit_s = np.full((rows, g), np.inf), np.zeros((rows, g))
    for c, key in enumerate(classes):
        write_estimates(fixed_s, unit_s, c, key, shape, estimates)
    slots = np.array([m.slots for m in shape.members], np.int64)
    return Cluster(
        type_names=tuple(name for name, _ in shape.types),
        node_names=tuple(m.name for m in shape.members),
        type_idx=np.array(shape.type_idx, np.int64),
        slots=slots,
        queue_max=np.zeros(n, np.int64),
        zone_idx=np.zeros(n, np.int64),
        weight=np.array([m.weight for m in shape.members], np.float64) * slots,
        nic_gib_per_s=np.full(n, np.inf),
        memory_gib=np.full(g, np.inf),
        accelerators=np.ones(g),
        usd_per_hour=np.zeros(g),
        class_names=tuple(f"{model}/{kind.value}" for model, kind in classes)
        + tuple(f"spare{k}" for k in range(rows - len(classes))),
        fixed_s=fixed_s,
        unit_s=unit_s,
        item_names=shape.items,
        item_gib=np.zeros(items),
        item_is_adapter=np.zeros(items, np.uint8),
        load_s=np.zeros((items, g)),
        zone_names=("here",),
        rtt_s=np.zeros((1, 1)),
        zone_gib_per_s=np.full(1, np.inf),
    )


def write_estimates(
    fixed_s: np.ndarray, unit_s: np.ndarray, c: int, key: ClassKey, shape: Shape, estimates: Estimates
) -> None:
    """Set row c of both tables [classes, types]: inf where a type does not serve the model."""
    for g, (type_name, _) in enumerate(shape.types):
        if shape.serves(g, key[0]):
            fixed_s[c, g], unit_s[c, g] = estimates.of(key, type_name)


def item_positions(shape: Shape) -> Mapping[str, int]:
    """Model or adapter → its position among the items."""
    return {name: i for i, name in enumerate(shape.items)}
