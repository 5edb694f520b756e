"""Flows over the network: by hand, and against fair shares by their definition, anew at every change."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, everything_on
from support.by_hand import asked, count, fault_table, finishes, on_cable, once, played, starts
from support.chains import Stage, chained
from support.mini_policies import ByDeadline, Emptiest, Scripted
from support.networks import Moved, fair_rates, move, network, on_network, route
from support.same_state import differences
from trimtab.domain.chains import Flow
from trimtab.domain.cluster import Cluster
from trimtab.domain.network import Network, Routing
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests, Status
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE
from trimtab.engine.simulator import run

NODES = ["node0", "node1"]


def star(wan_gib_per_s: float = 2.0, delay_s: float = 0.0, store: bool = False) -> Cluster:
    """Two nodes at one switch by links of 2 GiB/s, and a link from the switch to their zone."""
    links = [*((node, "rack", 2.0, delay_s) for node in NODES), ("rack", "zone0", wan_gib_per_s, delay_s)]
    given = network(NODES, ["zone0"], ["rack"], links, store="zone0" if store else None)
    return on_network(cluster(2, slots=4, models=2 if store else 0, load_s=0.5), given)


def carried(d: Driver, given: Cluster) -> dict[str, float]:
    assert given.network is not None
    return dict(zip(given.network.link_names, d.state.net_links["carried_gib"].tolist(), strict=True))


def test_a_lone_flow_has_its_narrowest_link_for_itself_after_the_round_trip() -> None:
    c = star(wan_gib_per_s=1.0, delay_s=0.125)
    d = played(c, asked(c, [1.0], payload_gib=3.0))
    assert starts(d) == [1.0 + 4 * 0.125 + 3.0]
    assert carried(d, c) == {
        "node0>rack": 0,
        "node1>rack": 0,
        "zone0>rack": 3,
        "rack>node0": 3,
        "rack>node1": 0,
        "rack>zone0": 0,
    }


def test_flows_of_a_full_link_share_it_and_the_longer_then_speeds_up() -> None:
    c = star()
    d = played(c, asked(c, [0.0, 0.0], payload_gib=[1.0, 3.0], key=[0, 1]))
    assert starts(d) == [1.0, 2.0]
    assert count(d, "moved_gib") == 4


def test_what_one_flow_cannot_use_goes_to_the_others() -> None:
    links = [("node0", "rack", 0.5, 0.0), ("node1", "rack", 2.0, 0.0), ("rack", "zone0", 2.0, 0.0)]
    c = on_network(cluster(2, slots=4), network(NODES, ["zone0"], ["rack"], links))
    d = played(c, asked(c, [0.0, 0.0], payload_gib=[1.0, 3.0], key=[0, 1]))
    assert starts(d) == [2.0, 2.0]


def test_the_parking_lot_of_the_textbook() -> None:
    """A flow over three links of 1, 1 and 2; one more on each: 1/2 each, and 3/2 for the one on the third."""
    assert fair_rates([[0, 1, 2], [0], [1], [2]], [1.0, 1.0, 2.0]) == [0.5, 0.5, 0.5, 1.5]
    links = [("zone0", "a", 1.0, 0.0), ("a", "b", 1.0, 0.0), ("b", "node0", 2.0, 0.0)]
    links += [
        ("zone1", "a", 9.0, 0.0),
        ("zone2", "b", 9.0, 0.0),
        ("node1", "a", 9.0, 0.0),
        ("node2", "b", 9.0, 0.0),
    ]
    given = network(["node0", "node1", "node2"], ["zone0", "zone1", "zone2"], ["a", "b"], links)
    c = on_network(cluster(3, slots=4, zones=3), given)
    r = asked(c, [0.0] * 4, payload_gib=[0.5, 0.5, 0.5, 1.5], zone_idx=[0, 0, 1, 2], key=[0, 1, 2, 0])
    assert starts(played(c, r)) == [1.0, 1.0, 1.0, 1.0]


def test_cancelling_a_transfer_speeds_up_the_others_and_what_it_carried_counts() -> None:
    c = star()
    r = asked(c, [0.0, 0.0], payload_gib=2.0, deadline_s=[1.0, np.inf])
    d = played(c, r, Options(cancel=Cancel.WAITING))
    assert starts(d)[1] == 1.5
    assert carried(d, c)["rack>node0"] == 3.0


def test_the_result_goes_back_and_the_request_ends_when_it_is_there() -> None:
    c = star(delay_s=0.25)
    r = replace(asked(c, [0.0], units=1.0, payload_gib=2.0), result_gib=np.array([4.0]))
    d = played(c, r)
    assert finishes(d) == [1.0 + 1.0 + 1.0 + 2.0 + 0.5]  # round trip, payload, service, result, delay
    assert count(d, "returned_gib") == 4


def test_both_directions_of_a_link_are_apart() -> None:
    c = star()
    r = replace(asked(c, [0.0, 2.0], payload_gib=[0.0, 2.0]), result_gib=np.array([4.0, 0.0]))
    assert finishes(played(c, r)) == [3.0, 4.0]


def test_models_come_from_the_store_and_share_the_links_with_payloads() -> None:
    """6 GiB of a model beside 2 GiB of a payload on 2 GiB/s: the payload is there at 2, the model at 4."""
    c = star(store=True)
    r = asked(c, [0.0, 0.0], payload_gib=[0.0, 2.0], model_idx=[0, -1])
    d = played(c, r)
    assert starts(d) == [0.0, 2.0]
    assert finishes(d) == [4.0 + 0.5 + 1.0, 3.0]
    assert count(d, "loaded_gib") == 6


def test_a_request_for_a_model_on_its_way_waits_for_it_in_its_slot() -> None:
    c = star(store=True)
    d = played(c, asked(c, [0.0, 1.0, 4.0], model_idx=0))
    assert finishes(d) == [4.5, 4.5, 5.0]
    assert count(d, "model_loads") == 1


def test_a_failed_node_stops_the_load_and_another_one_starts_it_again() -> None:
    c = star(store=True)
    d = played(c, asked(c, [0.0], model_idx=0), Options(faults=fault_table(once(0, 1.0, 2.0))))
    assert finishes(d) == [2.0 + 3.0 + 0.5 + 1.0]  # held until the repair: its key is node 0
    assert carried(d, c)["zone0>rack"] == 8.0


def test_congestion_slows_a_link_for_a_while() -> None:
    c = star()
    d = played(c, asked(c, [0.0], payload_gib=4.0), Options(faults=fault_table(on_cable(2, 1.0, 2.0, 0.25))))
    assert starts(d) == [2.75]


def test_flows_of_a_failed_link_wait_for_the_repair_where_there_is_no_other_route() -> None:
    c = star()
    d = played(c, asked(c, [0.0], payload_gib=4.0), Options(faults=fault_table(on_cable(2, 1.0, 5.0))))
    assert starts(d) == [6.0]
    assert carried(d, c)["zone0>rack"] == 4.0


def ring() -> Cluster:
    """Two ways from the zone to a node, one of them quicker."""
    links = [
        ("zone0", "a", 2.0, 0.1),
        ("zone0", "b", 1.0, 0.3),
        ("a", "node0", 2.0, 0.1),
        ("b", "node0", 1.0, 0.3),
    ]
    return on_network(cluster(1, slots=4), network(["node0"], ["zone0"], ["a", "b"], links))


def test_flows_of_a_failed_link_take_another_route_and_keep_it() -> None:
    c = ring()
    d = played(c, asked(c, [0.0], payload_gib=4.0), Options(faults=fault_table(on_cable(0, 1.4, 2.4))))
    assert starts(d) == pytest.approx([1.4 + 2.0])
    of_links = carried(d, c)
    assert (of_links["zone0>a"], of_links["zone0>b"]) == pytest.approx((2.0, 2.0))


def test_a_node_that_is_cut_off_refuses_and_takes_requests_again_after_the_repair() -> None:
    c = star()
    r = asked(c, [1.0, 1.0], payload_gib=2.0, key=[0, 1])
    d = played(c, r, Options(faults=fault_table(on_cable(0, 0.5, 3.0))))
    assert starts(d) == [4.0, 2.0]


def two_spines(routing: Routing, n_nodes: int = 1) -> Cluster:
    nodes = [f"node{j}" for j in range(n_nodes)]
    links = [("zone0", s, 1.0, 0.0) for s in ("a", "b")] + [(s, "leaf", 1.0, 0.0) for s in ("a", "b")]
    links += [("leaf", node, 9.0, 0.0) for node in nodes]
    return on_network(
        cluster(n_nodes, slots=99), network(nodes, ["zone0"], ["a", "b", "leaf"], links, routing)
    )


def test_the_least_congested_of_equal_routes_is_taken() -> None:
    d = played(
        c := two_spines(Routing.LEAST_CONGESTED), asked(c, [0.0, 0.0, 1.0], payload_gib=[4.0, 2.0, 2.0])
    )
    assert starts(d) == [6.0, 2.0, 5.0]  # one flow on each when the third comes: the first route wins


def test_ecmp_spreads_flows_over_equal_routes_the_same_way_for_all_policies() -> None:
    c = two_spines(Routing.ECMP, 2)
    r = asked(c, np.arange(200.0), payload_gib=1.0, key=np.arange(200) % 2)
    of_links = [carried(played(c, r, policy=policy), c) for policy in (None, Emptiest())]
    assert 70 <= of_links[0]["zone0>a"] <= 130
    assert of_links[0]["zone0>a"] == of_links[1]["zone0>a"]
    assert of_links[0]["zone0>a"] + of_links[0]["zone0>b"] == 200


@pytest.mark.parametrize(("nodes", "start_s"), [((0, 0), 1.0), ((0, 1), 3.0)])
def test_outputs_of_stages_move_between_nodes_and_not_by_the_zone(
    nodes: tuple[int, int], start_s: float
) -> None:
    c = star(wan_gib_per_s=0.001)
    stages = {"a": Stage(output_gib=4.0, key=nodes[0]), "b": Stage(after={"a": Flow.EACH}, key=nodes[1])}
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert d.state.requests["start_s"][2] == start_s
    assert finishes(d)[0] == start_s + 1.0


def test_inputs_from_several_nodes_move_at_once() -> None:
    """Maps on two nodes of 2 GiB and 4 GiB each into one: its link of 2 GiB/s takes 1.5 s from node 1."""
    c = star()
    stages = {
        "a": Stage(output_gib=2.0, key=0),
        "b": Stage(output_gib=3.0, key=1),
        "c": Stage(after={"a": Flow.ALL, "b": Flow.ALL}, key=0),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert d.state.requests["start_s"][3] == 2.5


def drawn(seed: int, n_nodes: int = 4, n_zones: int = 2, n_switches: int = 3) -> Network:
    """A connected network: each node at a switch, a ring of switches and zones, and chords."""
    rng = np.random.default_rng(seed)
    nodes, zones = [f"node{j}" for j in range(n_nodes)], [f"zone{k}" for k in range(n_zones)]
    switches = [f"s{k}" for k in range(n_switches)]
    inner = [*rng.permutation([*zones, *switches]).tolist()]
    pairs = [(node, switches[rng.integers(n_switches)]) for node in nodes]
    pairs += list(itertools.pairwise([*inner, inner[0]]))
    chords = [p for p in itertools.combinations(inner, 2) if p not in pairs and p[::-1] not in pairs]
    pairs += [chords[k] for k in rng.permutation(len(chords))[:2]]
    draw = [(a, b, float(rng.choice([0.5, 1.0, 2.0])), float(rng.choice([0.0, 0.1, 0.2]))) for a, b in pairs]
    given = network(nodes, zones, switches, draw)
    return replace(given, gib_per_s=rng.choice([0.5, 1.0, 2.0, 4.0], given.n_links))


@pytest.mark.parametrize("seed", range(40))
def test_arrivals_are_those_of_rates_computed_by_definition_and_bytes_are_conserved(seed: int) -> None:
    given, rng = drawn(seed), np.random.default_rng(1000 + seed)
    c, n = on_network(cluster(4, slots=64, zones=2), given), 30
    arrival_s, gib = np.sort(rng.uniform(0.0, 6.0, n)), rng.exponential(1.5, n)
    zone, node = rng.integers(0, 2, n), rng.integers(0, 4, n)
    cable, at = int(rng.integers(given.cable.max() + 1)), np.flatnonzero
    faults = fault_table(on_cable(cable, 2.0, 5.0, 0.3))
    d = played(c, asked(c, arrival_s, payload_gib=gib, zone_idx=zone, key=node), Options(faults=faults))
    routes = [
        route(given, given.zone_vertex(z), j) for z, j in zip(zone.tolist(), node.tolist(), strict=True)
    ]
    flows = []
    for k, links in enumerate(routes):
        back = route(given, int(node[k]), given.zone_vertex(int(zone[k])))
        flows.append(
            Moved(arrival_s[k] + given.delay_s[links].sum() + given.delay_s[back].sum(), gib[k], links)
        )
    whole = given.gib_per_s
    changes = [
        (t, link, whole[link] * f) for t, f in ((2.0, 0.3), (5.0, 1.0)) for link in at(given.cable == cable)
    ]
    move(flows, whole.tolist(), changes)
    assert starts(d) == pytest.approx([f.there_s for f in flows], abs=1e-6)
    expected = np.zeros(given.n_links)
    for links, amount in zip(routes, gib, strict=True):
        expected[links] += amount
    assert d.state.net_links["carried_gib"] == pytest.approx(expected)
    assert not d.state.link_active.any()


@pytest.mark.parametrize("seed", range(10))
def test_failures_of_links_lose_no_bytes(seed: int) -> None:
    """Links fail again and again: all is there in the end, and every node received what was sent to it."""
    given, rng = drawn(seed), np.random.default_rng(seed)
    c, n = on_network(cluster(4, slots=64, zones=2), replace(given, routing=Routing(seed % 3))), 40
    gib, node = rng.exponential(1.5, n), rng.integers(0, 4, n)
    r = asked(c, np.sort(rng.uniform(0.0, 9.0, n)), payload_gib=gib, zone_idx=rng.integers(0, 2, n), key=node)
    times = rng.uniform(0.0, 9.0, 12)
    struck = [on_cable(int(rng.integers(given.cable.max() + 1)), t, t + 1.0) for t in times]
    d = played(c, r, Options(faults=fault_table(*struck)))
    assert (d.state.requests["status"] == Status.FINISHED).all()
    into = [d.state.net_links["carried_gib"][given.target == j].sum() for j in range(4)]
    assert into == pytest.approx(np.bincount(node, gib, 4))
    assert d.state.way_s == pytest.approx(given.ways.delay_s)  # found anew after the last repair
    assert (d.state.next_link == given.ways.next_link).all()


@pytest.mark.parametrize("seed", range(12))
def test_routes_are_those_of_a_search_through_all(seed: int) -> None:
    given = drawn(seed)
    for a in range(given.n_vertices):
        for b in range(given.n_nodes, given.n_vertices):
            if a != b:
                found = route(given, a, b)
                assert given.ways.delay_s[a, b] == pytest.approx(given.delay_s[found].sum())
                assert given.ways.links[a, b] == len(found)
                assert given.ways.next_link[a, b] == found[0]


def on(given: tuple[Cluster, Requests, Options]) -> tuple[Cluster, Requests, Options]:
    """Everything on, with two spines, a store, results, and links that fail and are congested."""
    c, r, options = given
    nodes = list(c.node_names)
    links = [(node, f"rack{j % 2}", 1.0, 0.001) for j, node in enumerate(nodes)]
    links += [(f"rack{k}", spine, 1.0, 0.001) for k in range(2) for spine in ("a", "b")]
    links += [("a", "zone0", 1.0, 0.001), ("b", "zone0", 1.0, 0.001), ("a", "zone1", 0.5, 0.02)]
    links += [("b", "zone1", 0.5, 0.02)]
    made = network(
        nodes, ["zone0", "zone1"], ["rack0", "rack1", "a", "b"], links, Routing.ECMP, store="zone1"
    )
    assert options.faults is not None
    struck = fault_table(on_cable(8, 3.0, 9.0), on_cable(7, 5.0, 20.0, 0.2), on_cable(0, 30.0, 33.0))
    options = replace(options, faults=np.concatenate([options.faults, struck]))
    c = on_network(replace(c, item_gib=c.item_gib * 0.01), made)
    rng = np.random.default_rng(3)
    return c, replace(r, result_gib=rng.exponential(0.02, len(r))), options


@pytest.mark.parametrize("seed", range(3))
def test_everything_on_is_the_same_compiled_in_pieces_and_as_copies(seed: int) -> None:
    c, r, options = on(everything_on(300, seed=seed))
    decider = Decider.of(Emptiest(), ByDeadline())
    whole = run(c, r, options, decider, mode="compiled").state
    interpreted = run(c, r, options, decider, mode="interpreted").state
    assert not differences(whole, interpreted)
    pieces = Driver(c, r, options, decider, mode="compiled")
    while pieces.advance(max_steps=37) != DONE:
        pass
    assert not differences(whole, pieces.state)
    assert not whole.link_active.any()
    assert whole.counts["loaded_gib"][0] > 0.0
    assert whole.counts["returned_gib"][0] > 0.0


def test_the_room_for_flows_grows() -> None:
    c, n = star(wan_gib_per_s=1.0), 1500
    r = asked(c, np.zeros(n), payload_gib=1.0, key=np.arange(n) % 2)
    d = run(c, r, Options(), Decider.of(Scripted()), mode="compiled")
    assert len(d.state.flows) > 1200
    assert d.state.requests["start_s"][:1] == pytest.approx([n])
    assert carried(d, c)["zone0>rack"] == pytest.approx(n)
