"""Edge-first and congestion-aware: transfers and overflow worked out by hand, and what they gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.dispatch_by_hand import Desk
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.policies import find


def places() -> Cluster:
    """Zones a, b, c, .1 s apart, a and c .4 s; a node each (c's is 10/3 as fast) and a second one in a."""
    c = cluster(4, types=2, speeds=[1.0, 4.0], zones=3)
    rtt_s = np.array([[0.0, 0.1, 0.4], [0.1, 0.0, 0.1], [0.4, 0.1, 0.0]])
    zone_idx, type_idx = np.array([0, 1, 2, 0]), np.array([0, 0, 1, 0])
    return replace(c, rtt_s=rtt_s, zone_idx=zone_idx, type_idx=type_idx)


def busy(desk: Desk, j: int, seconds: float) -> None:
    desk.set(j, in_flight=1, running=1, backlog_s=seconds, outstanding_s=seconds)


def desk_of(policy: str, c: Cluster) -> Desk:
    desk = Desk(c, find(policy)[0])
    desk.work["units"], desk.work["zone_idx"] = 1.0, 0
    return desk


def test_edge_first_goes_outwards_as_the_near_ones_fill() -> None:
    """Service takes 1 s, in c .3: done there in .7 s, in b in 1.1."""
    desk = desk_of("edge-first", places())
    assert desk.decide() == [0, 3, 2]
    busy(desk, 0, 0.6)
    assert desk.decide() == [3, 0, 2]
    busy(desk, 3, 0.62)
    assert desk.decide() == [0, 3, 2]  # begins after .6 s, before c would be done
    busy(desk, 0, 0.75)
    busy(desk, 3, 0.75)
    assert desk.decide() == [1, 2]  # b begins after .1 s
    busy(desk, 1, 0.8)
    assert desk.decide() == [2]  # .7 s
    desk.set(2, up=0)
    assert desk.decide() == [0, 3, 1]  # .75 s here; b would be done after 1.8


def test_what_is_down_or_full_is_passed_over() -> None:
    desk = desk_of("edge-first", places())
    desk.set(0, up=0)
    desk.set(3, room=0)
    assert desk.decide() == [1, 2]
    for j in (1, 2):
        desk.set(j, room=0)
    assert desk.decide() == []


def test_transfers_share_links_equally() -> None:
    """.5 GiB into c: .4 s there, .5 s on c's link of 1 GiB/s, a fourth as long on the node's own of 4."""
    c = replace(
        places(),
        zone_gib_per_s=np.array([np.inf, np.inf, 1.0]),
        nic_gib_per_s=np.array([1.0, 0.5, 4.0, 0.25]),
    )
    desk = desk_of("congestion-aware", c)
    desk.work["payload_gib"] = 0.5
    assert desk.decide() == [2, 0, 1, 3]  # 1.325, 1.5, 2.1, 3
    desk.state.link_active[2] = 1  # c's link is shared: 1.825
    assert desk.decide() == [0, 2, 1, 3]
    desk.state.link_active[3 + 0] = 1  # and that of the first node: 2
    assert desk.decide() == [2, 0, 1, 3]


def test_a_node_works_off_its_backlog_while_the_payload_is_under_way() -> None:
    desk = desk_of("congestion-aware", replace(places(), nic_gib_per_s=np.array([1.0, 1.0, 1.0, 1.0])))
    desk.work["payload_gib"] = 0.9
    busy(desk, 3, 0.89)
    assert desk.decide() == [2, 0, 3, 1]  # 1.6, 1.9, 1.9, 2
    busy(desk, 3, 1.2)
    assert desk.decide() == [2, 0, 1, 3]  # 2.2


@pytest.mark.parametrize("policy", ["edge-first", "congestion-aware"])
def test_without_distances_they_choose_by_completion(policy: str) -> None:
    c = cluster(9, types=3, slots=2)
    work = requests(c, 1000, load=0.9, seed=2)
    ours, theirs = (run(c, work, Options(), *find(p)).requests for p in (policy, "least-expected-completion"))
    np.testing.assert_array_equal(ours["finish_s"], theirs["finish_s"])


def test_on_shared_links_the_congestion_aware_finish_sooner_and_edge_first_moves_less() -> None:
    """Payloads that take about as long as service, over links into six zones."""
    c = cluster(12, zones=6, nic_gib_per_s=2.0, rtt_s=0.1)
    c = replace(c, zone_gib_per_s=np.full(6, 1.0))
    work = requests(c, 1500, load=0.7, seed=5, payload_gib=0.5)
    work.work["zone_idx"] = np.where(np.arange(1500) % 2 == 0, 0, work.work["zone_idx"])  # one busy site

    def figures(policy: str) -> tuple[float, float]:
        """Mean completion, share of requests that left their zone."""
        rows = run(c, work, Options(), *find(policy)).requests
        is_away = c.zone_idx[rows["node_idx"]] != work.work["zone_idx"]
        return float((rows["finish_s"] - work.work["arrival_s"]).mean()), float(is_away.mean())

    aware, edge, plain = (figures(p) for p in ("congestion-aware", "edge-first", "least-expected-completion"))
    assert aware[0] < 0.9 * plain[0]
    assert edge[1] < 0.7 * plain[1]
