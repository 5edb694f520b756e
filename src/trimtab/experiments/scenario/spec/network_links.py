"""The links of a cluster's network, as its section has them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trimtab.domain.network import MOST_VERTICES
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.network_section import TreeSpec, WideAreaSpec
from trimtab.validation.names import FieldError, Path, known, listed

_AT = ("cluster", "network")


class Link(NamedTuple):
    """One link, and where the file has it."""

    a: str
    b: str
    gib_per_s: float
    delay_s: float
    back_gib_per_s: float
    back_delay_s: float
    path: Path


def switches_of(cluster: ClusterSpec) -> list[str]:
    """Switches of a cluster with a network: those of its racks, and those that the file names."""
    assert cluster.network is not None
    tree, found = cluster.network.tree, []
    for zone, racks in _racks(cluster):
        found += [f"{zone}/rack-{k + 1}" for k in range(len(racks))]
        found += [f"{zone}/spine-{k + 1}" for k in range(0 if tree is None else tree.spines)]
    return [*found, *cluster.network.switches]


def links_of(cluster: ClusterSpec) -> Iterator[Link]:
    """All links of a cluster with a network."""
    network = cluster.network
    assert network is not None
    if network.tree is not None:
        for zone, racks in _racks(cluster):
            yield from _tree_links(network.tree, zone, racks)
    if network.wide_area is not None:
        yield from _wide_links(network.wide_area, cluster)
    for k, link in enumerate(network.links):
        back = link.gib_per_s if link.back_gib_per_s is None else link.back_gib_per_s
        back_s = link.delay_s if link.back_delay_s is None else link.back_delay_s
        yield Link(*link.between, link.gib_per_s, link.delay_s, back, back_s, (*_AT, "links", k, "between"))


def _racks(cluster: ClusterSpec) -> Iterator[tuple[str, list[list[tuple[str, float]]]]]:
    """Zones with the nodes and capacities of each rack; none without a tree."""
    tree = None if cluster.network is None else cluster.network.tree
    if tree is None:
        return
    of_zone: dict[str, list[tuple[str, float]]] = {}
    for name, group in cluster.each_node():
        nodes = of_zone.setdefault(group.zone or cluster.zone_names[0], [])
        nodes.append((name, group.nic_gib_per_s or tree.nic_gib_per_s))
    for zone, nodes in of_zone.items():
        firsts = range(0, len(nodes), tree.nodes_per_rack)
        yield zone, [nodes[first : first + tree.nodes_per_rack] for first in firsts]


def _tree_links(tree: TreeSpec, zone: str, racks: Sequence[Sequence[tuple[str, float]]]) -> Iterator[Link]:
    of_spine = 0.0
    for k, nodes in enumerate(racks):
        rack = f"{zone}/rack-{k + 1}"
        for name, gib_per_s in nodes:
            yield _both_ways(name, rack, gib_per_s, tree.delay_s, (*_AT, "tree"))
        up = sum(gib_per_s for _, gib_per_s in nodes) / tree.oversubscription / tree.spines
        of_spine += up
        for spine in range(tree.spines):
            yield _both_ways(rack, f"{zone}/spine-{spine + 1}", up, tree.delay_s, (*_AT, "tree"))
    for spine in range(tree.spines):
        to_zone = of_spine / tree.oversubscription
        yield _both_ways(f"{zone}/spine-{spine + 1}", zone, to_zone, tree.delay_s, (*_AT, "tree"))


def _wide_links(wide: WideAreaSpec, cluster: ClusterSpec) -> Iterator[Link]:
    zones = cluster.zone_names
    for i, a in enumerate(zones):
        for b in zones[i + 1 :]:
            delay_s = cluster.round_trip_s(a, b) / 2 if wide.delay_s is None else wide.delay_s
            yield _both_ways(a, b, wide.gib_per_s, delay_s, (*_AT, "wide_area"))


def _both_ways(a: str, b: str, gib_per_s: float, delay_s: float, path: Path) -> Link:
    return Link(a, b, gib_per_s, delay_s, gib_per_s, delay_s, path)


def network_field_errors(cluster: ClusterSpec) -> Iterator[FieldError]:
    """Unknown ends, links that are there twice, names used twice, and a graph in pieces."""
    network = cluster.network
    if network is None:
        return
    nodes = [name for name, _ in cluster.each_node()]
    switches, zones = switches_of(cluster), cluster.zone_names
    names = [*nodes, *zones, *switches]
    if len(names) > MOST_VERTICES:
        yield FieldError(_AT, len(names), f"at most {MOST_VERTICES} nodes, zones and switches together")
        return
    taken = set(nodes)
    for name in (*zones, *switches):
        if name in taken:
            yield FieldError(_AT, name, "names of zones and switches that no other vertex has")
        taken.add(name)
    if network.store is not None:
        yield from known((*_AT, "store"), network.store, [*zones, *switches], "zone or switch")
    yield from _misplaced_bandwidths(cluster)
    links = list(links_of(cluster))
    is_known = True
    seen: set[frozenset[str]] = set()
    for link in links:
        for end in (link.a, link.b):
            if end not in taken:
                is_known = False
                yield from known(link.path, end, names, "node, zone or switch")
        if link.a == link.b or frozenset((link.a, link.b)) in seen:
            expected = "two different ends" if link.a == link.b else "each link once"
            yield FieldError(link.path, [link.a, link.b], expected)
        seen.add(frozenset((link.a, link.b)))
    if is_known:
        yield from _pieces(links, nodes, names)


def _pieces(links: Sequence[Link], nodes: Sequence[str], names: Sequence[str]) -> Iterator[FieldError]:
    """A field error for vertices that no route leads to; nodes forward nothing."""
    ends: dict[str, list[str]] = {name: [] for name in names}
    for link in links:
        ends[link.a].append(link.b)
        ends[link.b].append(link.a)
    inner = set(nodes)
    reached, waiting = set(), [names[len(nodes)]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [] if name in inner else ends[name]
    apart = [name for name in names if name not in reached]
    if apart:
        shown = f"{listed(apart[:4])}{f' and {len(apart) - 4} more' if len(apart) > 4 else ''}"
        yield FieldError(_AT, shown, f"links that join them to {names[len(nodes)]!r}; nodes forward nothing")


def _misplaced_bandwidths(cluster: ClusterSpec) -> Iterator[FieldError]:
    for name, zone in cluster.zones.items():
        if zone.ingress_gib_per_s is not None:
            path: Path = ("cluster", "zones", name, "ingress_gib_per_s")
            yield FieldError(path, zone.ingress_gib_per_s, "null where cluster.network is given: its links")
    for k, group in enumerate(cluster.nodes):
        if group.nic_gib_per_s is not None and cluster.network is not None and cluster.network.tree is None:
            path = ("cluster", "nodes", k, "nic_gib_per_s")
            yield FieldError(path, group.nic_gib_per_s, "null where cluster.network has no tree: its links")
    wide = None if cluster.network is None else cluster.network.wide_area
    if cluster.rtt_s and (wide is None or wide.delay_s is not None):
        yield FieldError(("cluster", "rtt_s"), cluster.rtt_s, "0: the links of cluster.network have delays")
