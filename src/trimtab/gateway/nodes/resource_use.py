"""Use of the nodes' resources, as the nodes report it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from trimtab.domain.cluster import RESOURCES, ResourceName
from trimtab.gateway.model import Health, Node
from trimtab.gateway.nodes.node_resources import capacity_of, use_of
from trimtab.metrics.definitions import MODEL_MEMORY, SHORT_NAMES

_NAMES: Final = tuple(SHORT_NAMES.get(name, MODEL_MEMORY) for name in RESOURCES)


class ResourceUse(NamedTuple):
    """One resource of one node, now."""

    node: str
    resource: str  # its name in `trimtab.metrics`: cpu, ram, io, network, gpu, gpu_memory
    used: float
    capacity: float


def resource_use(
    nodes: Iterable[tuple[Node, Mapping[ResourceName, float]]],
) -> Iterator[ResourceUse]:
    """Every resource whose use a node reports, of nodes that are up. `nodes`: each with what is declared."""
    for node, declared in nodes:
        if node.health > Health.SUSPECT or not node.reported:
            continue
        capacities, uses = capacity_of(declared, node.reported), use_of(declared, node.reported)
        for resource, capacity, used in zip(_NAMES, capacities, uses, strict=True):
            if used is not None:
                yield ResourceUse(node.name, resource, used, capacity)
