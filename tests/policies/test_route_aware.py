"""Policies on a network: costs worked out by hand, and what they gain in the built-in scenario."""

from __future__ import annotations

import pytest

from support.builders import cluster
from support.dispatch_by_hand import Desk
from support.networks import network, on_network
from trimtab.domain.cluster import Cluster
from trimtab.domain.network import Routing
from trimtab.policies import find


def spines(store: str | None = None, models: int = 0) -> Cluster:
    """Two nodes in racks of their own; two spines of 1 GiB/s to each rack, and the zone at both."""
    links = [("node0", "rack0", 4.0, 0.0), ("node1", "rack1", 4.0, 0.0)]
    links += [(rack, spine, 1.0, 0.0) for rack in ("rack0", "rack1") for spine in ("a", "b")]
    links += [("a", "zone0", 8.0, 0.0), ("b", "zone0", 8.0, 0.0)]
    names = ["rack0", "rack1", "a", "b"]
    given = network(["node0", "node1"], ["zone0"], names, links, Routing.LEAST_CONGESTED, store)
    return on_network(cluster(2, models=models, load_s=0.0), given)


def desk_of(policy: str, c: Cluster, payload_gib: float = 1.0) -> Desk:
    desk = Desk(c, find(policy)[0])
    desk.work["units"], desk.work["zone_idx"], desk.work["payload_gib"] = 1.0, 0, payload_gib
    desk.work["model_idx"] = desk.work["adapter_idx"] = -1
    return desk


def flows(desk: Desk, c: Cluster, **on: int) -> None:
    assert c.network is not None
    for name, count in on.items():
        desk.state.link_active[c.network.link_names.index(name.replace("_to_", ">"))] = count


def test_congestion_aware_counts_the_fullest_link_of_the_first_route() -> None:
    c = spines()
    desk = desk_of("congestion-aware", c)
    assert desk.decide() == [0, 1]
    assert desk.score() == 1.0 + 1.0
    flows(desk, c, a_to_rack0=1)
    assert desk.decide() == [1, 0]
    flows(desk, c, a_to_rack1=2, zone0_to_a=15)  # 16 on 8 GiB/s are as full as 2 on 1
    assert desk.decide() == [0, 1]
    assert desk.score() == 2.0 + 1.0


def test_route_aware_takes_the_best_of_equal_routes() -> None:
    c = spines()
    desk = desk_of("route-aware", c)
    flows(desk, c, a_to_rack0=5, a_to_rack1=5, b_to_rack0=1, zone0_to_a=9)  # so the zone sends by b
    assert desk.decide() == [1, 0]
    assert desk.score() == 2.0
    flows(desk, c, b_to_rack0=1, b_to_rack1=2)
    desk.set(0, in_flight=1, running=1, backlog_s=2.5, outstanding_s=2.5)
    assert desk.decide() == [0, 1]  # 2.5 s for the node, and a flow ends 1 s later; or 3 s and two flows
    assert desk.score() == 2.5 + 1.0 + 0.5


def test_route_aware_counts_models_on_their_way_and_what_others_lose() -> None:
    """A model of 6 GiB over 1 GiB/s: 6 s on an idle network; 12 s and 6 s of another's, weighted by half."""
    c = spines(store="zone0", models=1)
    desk = desk_of("route-aware", c, payload_gib=0.0)
    desk.work["model_idx"] = 0
    assert desk.decide() == [0, 1]
    assert desk.score() == 6.0 + 1.0
    flows(desk, c, a_to_rack0=1, b_to_rack0=1, a_to_rack1=1, b_to_rack1=1)
    assert desk.decide() == [0, 1]
    assert desk.score() == 12.0 + 1.0 + 0.5 * 6.0
    desk.state.resident[1, 0] = 1
    assert desk.decide() == [1, 0]
    assert desk.score() == 1.0


@pytest.mark.parametrize("policy", ["congestion-aware", "route-aware"])
def test_a_node_that_no_route_leads_to_is_no_candidate(policy: str) -> None:
    c = spines()
    desk = desk_of(policy, c)
    assert c.network is not None
    desk.state.way_s[c.network.zone_vertex(0), 0] = float("inf")
    assert desk.decide() == [1]
