"""The network between clients, nodes and stores as a graph: directed links between vertices. Pure data.

The vertices are the nodes, then the zones, then switches. Clients of a zone, and stored data that lie there,
are at the zone's vertex. Nodes forward nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EQUAL_S = 1e-12  # delays of routes that differ by no more are equal
MOST_VERTICES = 4096  # tables of routes grow with the square


class Routing(IntEnum):
    """Which of the routes of least delay a flow takes; of equal delay, those of fewest links count."""

    LEAST_DELAY = 0  # always the same one
    ECMP = 1  # drawn anew for each flow (equal-cost multi-path)
    LEAST_CONGESTED = 2  # the one whose fullest link has most room when the flow starts


class Ways(NamedTuple):
    """Routes of least delay between all vertices, [from, to] each."""

    delay_s: Floats  # inf = no route
    links: NDArray[np.int32]  # of which the route has fewest
    next_link: NDArray[np.int32]  # the first link of such a route; -1 = none


@dataclass(frozen=True, eq=False)
class Network:
    """V vertices and L directed links, ordered by `source`."""

    vertex_names: tuple[str, ...]  # nodes, zones, switches
    n_nodes: int
    n_zones: int
    source: Ints  # [links]
    target: Ints  # [links]
    gib_per_s: Floats  # [links]
    delay_s: Floats  # [links]
    cable: Ints  # [links]; both directions of a link have one number
    routing: Routing = Routing.ECMP
    store: int = -1  # vertex that models are loaded from; -1 = each node has them on a disk of its own

    @property
    def n_vertices(self) -> int:
        """Number of vertices."""
        return len(self.vertex_names)

    @property
    def n_links(self) -> int:
        """Number of directed links."""
        return len(self.source)

    @property
    def link_names(self) -> tuple[str, ...]:
        """`FROM>TO` of each link."""
        names = self.vertex_names
        pairs = zip(self.source.tolist(), self.target.tolist(), strict=True)
        return tuple(f"{names[a]}>{names[b]}" for a, b in pairs)

    @property
    def first_out(self) -> NDArray[np.int32]:
        """Position of the first link that leaves each vertex, [vertices + 1]."""
        return np.searchsorted(self.source, np.arange(self.n_vertices + 1)).astype(np.int32)

    def zone_vertex(self, zone_idx: int) -> int:
        """Vertex of a zone."""
        return self.n_nodes + zone_idx

    @cached_property
    def ways(self) -> Ways:
        """Routes while all links are there: Bellman and Ford, for all destinations at once."""
        n = self.n_vertices
        delay_s, links = np.full((n, n), np.inf), np.zeros((n, n), np.int32)
        np.fill_diagonal(delay_s, 0.0)
        ends = list(zip(self.source.tolist(), self.target.tolist(), self.delay_s.tolist(), strict=True))
        is_changed = True
        while is_changed:
            is_changed = False
            for a, b, link_s in ends:
                then_s, then = link_s + delay_s[b], links[b] + 1
                less = then_s < delay_s[a] - EQUAL_S
                is_better = less | (
                    np.isfinite(then_s) & (then_s <= delay_s[a] + EQUAL_S) & (then < links[a])
                )
                if b < self.n_nodes:  # a node is an end only
                    is_better &= np.arange(n) == b
                if is_better.any():
                    delay_s[a, is_better], links[a, is_better] = then_s[is_better], then[is_better]
                    is_changed = True
        next_link = np.full((n, n), -1, np.int32)
        for link in range(self.n_links - 1, -1, -1):
            a, b, link_s = ends[link]
            is_next = (np.abs(link_s + delay_s[b] - delay_s[a]) <= EQUAL_S) & (links[a] == links[b] + 1)
            if b < self.n_nodes:
                is_next &= np.arange(n) == b
            next_link[a, is_next] = link
        return Ways(delay_s, links, next_link)

    def least_gib_per_s(self, source: int) -> Floats:
        """Capacity of the narrowest link of a route from here to each vertex, [vertices]."""
        least = np.full(self.n_vertices, np.inf)
        for v in range(self.n_vertices):
            a, narrowest = source, np.inf
            while a != v:
                link = self.ways.next_link[a, v]
                narrowest, a = min(narrowest, self.gib_per_s[link]), int(self.target[link])
            least[v] = narrowest
        return least

    def unreachable(self) -> tuple[int, int] | None:
        """Two vertices of which the second cannot be reached from the first; None if there are none."""
        found = np.argwhere(np.isinf(self.ways.delay_s))
        return None if not len(found) else (int(found[0, 0]), int(found[0, 1]))

    def round_trips_s(self) -> Floats:
        """Round trips between the zones, [zones, zones]."""
        at = slice(self.n_nodes, self.n_nodes + self.n_zones)
        there_s = self.ways.delay_s[at, at]
        return there_s + there_s.T
