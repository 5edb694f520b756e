"""Turns the section `cluster.network` into the graph of `Network`."""

from __future__ import annotations

import numpy as np

from trimtab.domain.network import Network, Routing
from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.network_links import links_of, switches_of


def build_network(spec: ClusterSpec) -> Network | None:
    """The network; None where the cluster has links into zones and nodes instead."""
    if spec.network is None:
        return None
    nodes, zones = [name for name, _ in spec.each_node()], spec.zone_names
    names = (*nodes, *zones, *switches_of(spec))
    at = {name: k for k, name in enumerate(names)}
    rows = []
    for cable, link in enumerate(links_of(spec)):
        rows.append((at[link.a], at[link.b], link.gib_per_s, link.delay_s, cable))
        rows.append((at[link.b], at[link.a], link.back_gib_per_s, link.back_delay_s, cable))
    rows.sort(key=lambda row: row[:2])
    source, target, gib_per_s, delay_s, cable_of = zip(*rows, strict=True)
    return Network(
        vertex_names=names,
        n_nodes=len(nodes),
        n_zones=len(zones),
        source=np.array(source, np.int64),
        target=np.array(target, np.int64),
        gib_per_s=np.array(gib_per_s, np.float64),
        delay_s=np.array(delay_s, np.float64),
        cable=np.array(cable_of, np.int64),
        routing=Routing[spec.network.routing.upper().replace("-", "_")],
        store=-1 if spec.network.store is None else at[spec.network.store],
    )


def cable_between(network: Network, ends: tuple[str, str]) -> int:
    """The link between these vertices."""
    a, b = (network.vertex_names.index(name) for name in ends)
    return int(network.cable[(network.source == a) & (network.target == b)][0])
