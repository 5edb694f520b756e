"""The section `cluster.network`: the network as a graph, of racks, a wide area, and single links."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trimtab.validation.base import NonNegative, Positive, Spec


class TreeSpec(Spec):
    """Racks of each zone: nodes at a rack's switch, racks at the zone's spines, spines at the zone.

    A rack's links up have together the capacity of its nodes' links over `oversubscription`, divided equally
    over the spines; a spine's link to its zone that of its racks' links to it, over `oversubscription` again.
    """

    nodes_per_rack: int = Field(ge=1, description="nodes of a zone at one switch, in the order of the file")
    nic_gib_per_s: Positive = Field(description="capacity of a node's link, unless its group has its own")
    spines: int = Field(
        1, ge=1, le=64, description="switches of a zone that join its racks: as many equal routes"
    )
    oversubscription: float = Field(1.0, ge=1, description="capacity from below over capacity to above")
    delay_s: NonNegative = Field(0.0, description="delay of each of these links, in each direction")


class WideAreaSpec(Spec):
    """A link between each two zones."""

    gib_per_s: Positive = Field(description="capacity of each link, in each direction")
    delay_s: NonNegative | None = Field(
        None, description="delay in each direction; null = half of cluster.rtt_s between the zones"
    )


class LinkSpec(Spec):
    """A link between two nodes, zones or switches."""

    between: tuple[str, str] = Field(description="its ends: names of nodes, zones, switches")
    gib_per_s: Positive = Field(description="capacity from the first end to the second")
    delay_s: NonNegative = Field(0.0, description="delay in that direction")
    back_gib_per_s: Positive | None = Field(None, description="capacity the other way; null = the same")
    back_delay_s: NonNegative | None = Field(None, description="delay the other way; null = the same")


class NetworkSpec(Spec):
    """The network as a graph: capacity and delay of each link in each direction.

    All that moves takes it, and shares links by max-min fairness.
    """

    tree: TreeSpec | None = Field(None, description="racks and spines of every zone; null = none")
    wide_area: WideAreaSpec | None = Field(None, description="a link between each two zones; null = none")
    switches: tuple[str, ...] = Field((), description="further vertices of the graph")
    links: tuple[LinkSpec, ...] = Field((), description="further links")
    routing: Literal["least-delay", "ecmp", "least-congested"] = Field(
        "ecmp",
        description="which of the routes of least delay, then fewest links, a flow takes: always the same; "
        "one drawn by the request; the one with most room when it starts",
    )
    store: str | None = Field(
        None,
        description="zone or switch that nodes fetch models and adapters from; load_s then comes on top; "
        "null = from disks of their own",
    )

    @model_validator(mode="after")
    def _has_links(self) -> NetworkSpec:
        if self.tree is None and self.wide_area is None and not self.links:
            raise ValueError("a tree, a wide_area or links")
        return self
