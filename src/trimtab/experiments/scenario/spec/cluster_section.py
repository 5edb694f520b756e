"""The cluster section: node types, nodes, zones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag, model_validator

from trimtab.domain.cluster import RESOURCES, ResourceName
from trimtab.experiments.scenario.spec.network_section import NetworkSpec
from trimtab.experiments.scenario.spec.node_services import ModelService, NodeService
from trimtab.experiments.scenario.spec.shared_types import Capacity
from trimtab.validation.base import NonNegative, Positive, Spec, Texts, number_or_table
from trimtab.validation.names import FieldError, raise_field_errors

DEFAULT_ZONE = "default"


class NodeType(Spec):
    """A type of node, by memory and speed; the hardware does not matter."""

    accelerator: Literal["gpu", "cpu", "tpu", "fpga", "npu"] = Field("gpu", description="kind of accelerator")
    accelerators: NonNegative = Field(1.0, description="accelerators per node, for accelerator-seconds")
    memory_gib: Positive = Field(description="memory for models and adapters, of the whole node")
    slots: int = Field(
        1,
        ge=1,
        description="concurrent requests of a node; with service kind llm: that it serves well, "
        "1 = as many of mean size as its KV memory holds",
    )
    service: NodeService | None = Field(None, description="how its nodes serve; null = one request a slot")
    speed: Positive = Field(1.0, description="divisor of service times given as one number")
    usd_per_hour: NonNegative = Field(0.0, description="price of a node")
    paid_while_down: bool = Field(
        True, description="whether a node that is down is paid; false: its price ends then"
    )
    resources: Capacity = Field(
        {}, description="resource → capacity of a node, for classes with a demand; default: 0"
    )

    @property
    def hosts(self) -> int:
        """Hosts that a node spans. Its accelerators, memory, price and resources are those of all of them."""
        return self.service.hosts if isinstance(self.service, ModelService) else 1

    @model_validator(mode="after")
    def _accelerators_of_all_hosts(self) -> NodeType:
        if self.accelerators % self.hosts:
            expected = f"the accelerators of all {self.hosts} hosts together, as many on each"
            raise_field_errors([FieldError(("accelerators",), self.accelerators, expected)], "node type")
        return self


MOST_NODES = 1_000_000  # of a group


class NodeGroup(Spec):
    """A number of nodes of one type."""

    type: str = Field(description="node type, a key of cluster.types")
    count: int = Field(1, ge=1, le=MOST_NODES, description="number of nodes")
    name: str | None = Field(
        None,
        description="nodes are called NAME-1, NAME-2, …, a single one NAME; default: TYPE-1, TYPE-2, …",
    )
    weight: Positive | None = Field(
        None, description="capacity of a slot under weighted policies, relative; default: its mean speed"
    )
    zone: str | None = Field(None, description="zone of the nodes; default: the first zone")
    slots: int | None = Field(None, ge=1, description="concurrent requests; default: the type's slots")
    queue_max: int | None = Field(None, ge=0, description="capacity of a node's queue; null = unbounded")
    nic_gib_per_s: Positive | None = Field(
        None, description="bandwidth of a node's link; null = not modelled"
    )
    partition: Texts = Field((), description="partitions that the nodes are in, for training jobs")
    labels: Texts = Field((), description="labels of the nodes, for training jobs that ask for them")


class Zone(Spec):
    """A location whose nodes share one link to the outside."""

    ingress_gib_per_s: Positive | None = Field(
        None, description="bandwidth of the link into the zone; null = not modelled"
    )


RoundTrips = Annotated[
    Annotated[NonNegative, Tag("<number>")]
    | Annotated[Mapping[str, Mapping[str, NonNegative]], Tag("<table>")],
    Discriminator(number_or_table),
]


class Node(NamedTuple):
    """One node of a group."""

    name: str
    group: NodeGroup


class ClusterSpec(Spec):
    """Nodes, their types, and the round-trip times between zones."""

    types: Mapping[str, NodeType] = Field(min_length=1, description="name → node type")
    nodes: tuple[NodeGroup, ...] = Field(min_length=1, description="groups of equal nodes")
    zones: Mapping[str, Zone] = Field({}, description="name → zone; default: the zones of the nodes")
    rtt_s: RoundTrips = Field(
        0.0, description="round trip between different zones: one number, or zone → zone → seconds"
    )
    network: NetworkSpec | None = Field(
        None, description="the network as a graph; null = links into zones and nodes, one after the other"
    )

    @property
    def resource_names(self) -> tuple[ResourceName, ...]:
        """Resources that some node type has."""
        return tuple(name for name in RESOURCES if any(name in t.resources for t in self.types.values()))

    @property
    def has_models(self) -> bool:
        """Whether some node type serves a language model."""
        return any(isinstance(kind.service, ModelService) for kind in self.types.values())

    @property
    def zone_names(self) -> tuple[str, ...]:
        """All zones, the first one being the default."""
        named = dict.fromkeys(group.zone for group in self.nodes if group.zone is not None)
        return tuple(self.zones or named) or (DEFAULT_ZONE,)

    def round_trip_s(self, a: str, b: str) -> float:
        """Round trip between two zones by `rtt_s`; a pair given in one direction holds in both."""
        if not isinstance(self.rtt_s, Mapping):
            return self.rtt_s if a != b else 0.0
        given = self.rtt_s.get(a, {}).get(b)
        return given if given is not None else self.rtt_s.get(b, {}).get(a, 0.0)

    def _called(self) -> Counter[str]:
        """Name or type → how many nodes are called by it."""
        called: Counter[str] = Counter()
        for group in self.nodes:
            called[group.name or group.type] += group.count
        return called

    @model_validator(mode="after")
    def _no_name_twice(self) -> ClusterSpec:
        called = self._called()
        types = {group.type for group in self.nodes if group.name is None}
        for name in (group.name for group in self.nodes if group.name and called[group.name] == 1):
            prefix, _, number = name.rpartition("-")
            has_numbers = prefix in types or called[prefix] > 1
            if has_numbers and number.isdigit() and 1 <= int(number) <= called[prefix]:
                raise ValueError(f"two nodes called {name}, one of them of the nodes called {prefix}-1, …")
        return self

    def each_node(self) -> Iterator[Node]:
        """Every node with its name, in the order of the file."""
        called, seen = self._called(), Counter[str]()
        for group in self.nodes:
            prefix = group.name or group.type
            if group.name is not None and called[prefix] == 1:
                yield Node(prefix, group)
                continue
            for _ in range(group.count):
                seen[prefix] += 1
                yield Node(f"{prefix}-{seen[prefix]}", group)
