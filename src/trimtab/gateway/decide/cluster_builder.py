"""Builds the Cluster that policies see, from the fleet's nodes grouped into types and the request classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.gateway.api.units import PROMPT_TOKEN_FRAC
from trimtab.gateway.decide.estimates import ClassKey, ServiceEstimates
from trimtab.gateway.model import Node

NO_ITEMS = -1, -1
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


PLACEHOLDER = Member("", "", frozenset(), 1, 1.0)  # a cluster has at least one node


@dataclass(frozen=True)
class ClusterShape:
    """Nodes by position, with their types; a type is a name and the models of its nodes."""

    members: tuple[Member, ...]
    types: tuple[tuple[str, frozenset[str]], ...]
    type_idx: tuple[int, ...]
    items: tuple[str, ...]
    bases: Mapping[str, str]  # adapters that no node serves as a model → their model; "" = not known

    def serves(self, g: int, model: str) -> bool:
        """Whether nodes of type g serve this model; "" = a path without a model: every node."""
        return not model or model in self.types[g][1]


def shape_of(members: Iterable[Member]) -> ClusterShape:
    """The shape of a cluster of these nodes."""
    members = tuple(members)
    keys = [(m.type_name, m.serves) for m in members]
    types = tuple(dict.fromkeys(keys))
    position = {key: g for g, key in enumerate(types)}
    items = tuple(sorted({name for m in members for name in m.serves}))
    models = {name for m in members for name in m.serves - m.bases.keys()}
    bases: dict[str, str] = {}
    for name, base in (pair for m in members for pair in m.bases.items() if pair[0] not in models):
        bases[name] = bases.get(name) or base
    return ClusterShape(members, types, tuple(position[key] for key in keys), items, bases)


def member_of(
    node: Node, adapters: Mapping[str, str], weight: float, most_requests: int, adapter_load_s: float = 0.0
) -> Member:
    """A node of the fleet. `adapters`: name → model, "" = not known."""
    bases = {name: base for name, base in adapters.items() if name not in node.models}
    serves = frozenset((*node.models, *bases))
    type_name = node.type_name or node.name
    return Member(node.name, type_name, serves, max(1, most_requests), weight, bases, adapter_load_s)


def cluster_of(
    shape: ClusterShape, classes: Sequence[ClassKey], rows: int, estimates: ServiceEstimates
) -> Cluster:
    """The cluster that policies see; `rows` ≥ the number of classes."""
    n, g, items = len(shape.members), len(shape.types), len(shape.items)
    fixed_s, unit_s = np.full((rows, g), np.inf), np.zeros((rows, g))
    for c, key in enumerate(classes):
        write_estimates(fixed_s, unit_s, c, key, shape, estimates)
    is_adapter = np.array([name in shape.bases for name in shape.items], np.uint8)
    adapter_s = np.zeros(g)  # nodes of a type that differ count as the slowest of them
    np.maximum.at(adapter_s, list(shape.type_idx), [m.adapter_load_s for m in shape.members])
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
        item_is_adapter=is_adapter,
        load_s=np.outer(is_adapter, adapter_s),
        zone_names=("here",),
        rtt_s=np.zeros((1, 1)),
        zone_gib_per_s=np.full(1, np.inf),
        prompt_token_units=np.full(rows, PROMPT_TOKEN_FRAC),
    )


def write_estimates(
    fixed_s: np.ndarray,
    unit_s: np.ndarray,
    c: int,
    key: ClassKey,
    shape: ClusterShape,
    estimates: ServiceEstimates,
) -> None:
    """Set row c of both tables [classes, types]: inf where a type does not serve the model."""
    for g, (type_name, _) in enumerate(shape.types):
        if shape.serves(g, key[0]):
            fixed_s[c, g], unit_s[c, g] = estimates.of(key, type_name)


def item_positions(shape: ClusterShape) -> Mapping[str, int]:
    """Model or adapter → its position among the items."""
    return {name: i for i, name in enumerate(shape.items)}


def items_needed(shape: ClusterShape) -> dict[str, tuple[int, int]]:
    """Model or adapter → positions of the model and of the adapter that a request for it needs; -1 = none.

    An adapter of an unknown model takes the model's position.
    """
    at = item_positions(shape)
    needed = {name: (i, -1) for name, i in at.items()}
    for name, base in shape.bases.items():
        if base in at:
            needed[name] = at[base], at[name]
    return needed
