"""A node's total of each resource and the part in use, from its entry and its reports.

All lists are [resources], in the order of `RESOURCES`; 0 = unknown capacity, None = unknown use. A declared
capacity counts before a reported one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from trimtab.domain.cluster import RESOURCES, ResourceName
from trimtab.gateway.model import Health, Node
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


Reported = Mapping[str, float]  # names of `metric_mappings`

BUSY_DISK_GIB_PER_S: Final = 1.0  # capacity of a disk that only reports how busy it is
_GIB: Final = float(1 << 30)
_MILLI: Final = 1000.0  # thousandths of an accelerator
_HAS: Final[Mapping[ResourceName, tuple[str, float]]] = {  # reported name, and its unit
    "cpu_cores": ("cpu_cores", 1.0),
    "ram_gib": ("memory_gib", 1.0),
    "network_gib_per_s": ("net_link_gib_per_s", 1.0),
    "gpu_milli": ("gpus", _MILLI),
    "gpu_gib": ("gpu_memory_gib", 1.0),
}
_BUSY: Final[Mapping[ResourceName, tuple[str, ...]]] = {  # reported shares in use; the first one counts
    "cpu_cores": ("cpu_busy_frac",),
    "ram_gib": ("memory_used_frac",),
    "io_gib_per_s": ("disk_busy_frac",),
    "gpu_milli": ("gpu_busy_frac",),
    # Servers reserve the memory of their cache in advance, so its use says more than the memory's:
    "gpu_gib": ("kv_used_frac", "gpu_memory_used_frac"),
}
_DISK: Final = ("disk_read_bytes_per_s", "disk_write_bytes_per_s")
_NETWORK: Final = ("net_receive_bytes_per_s", "net_transmit_bytes_per_s")


def capacity_of(declared: Mapping[ResourceName, float], reported: Reported) -> list[float]:
    """Capacity of each resource: as declared, else as reported; 0 = unknown."""
    return [declared.get(name, 0.0) or _reported_capacity(name, reported) for name in RESOURCES]


def use_of(declared: Mapping[ResourceName, float], reported: Reported) -> list[float | None]:
    """How much of each resource is in use, by anyone, at most the capacity; None = not reported."""
    found: list[float | None] = []
    for name, has in zip(RESOURCES, capacity_of(declared, reported), strict=True):
        # A share is one of what the machine has, which may be more than what is declared:
        amounts = _flows(name, reported)
        share = next((reported[word] for word in _BUSY.get(name, ()) if word in reported), None)
        if share is not None:
            amounts.append(share * (_reported_capacity(name, reported) or has))
        found.append(min(max(amounts), has) if amounts and has > 0.0 else None)
    return found


def said_by(values: Reported) -> frozenset[int]:
    """The resources of whose use one page says something."""
    words: dict[ResourceName, tuple[str, ...]] = {"io_gib_per_s": _DISK, "network_gib_per_s": _NETWORK}
    found = [(*_BUSY.get(name, ()), *words.get(name, ())) for name in RESOURCES]
    return frozenset(k for k, of in enumerate(found) if any(word in values for word in of))


def _reported_capacity(name: ResourceName, reported: Reported) -> float:
    if name == "io_gib_per_s":
        return BUSY_DISK_GIB_PER_S if "disk_busy_frac" in reported else 0.0
    word, unit = _HAS[name]
    return unit * reported.get(word, 0.0)


def _flows(name: ResourceName, reported: Reported) -> list[float]:
    """GiB/s of disks, reading and writing; or of the network, in its busier direction."""
    if name == "io_gib_per_s":
        flows = [reported[word] for word in _DISK if word in reported]
        return [sum(flows) / _GIB] if flows else []
    if name == "network_gib_per_s":
        return [reported[word] / _GIB for word in _NETWORK if word in reported]
    return []
