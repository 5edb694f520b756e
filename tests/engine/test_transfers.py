"""Payloads: round trip, then zone link, then node link; equal shares; against a slow fluid simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.by_hand import asked, count, played, starts
from support.fluid_links import Payload, transfer
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options
from trimtab.domain.requests import Status

ONE = cluster(1, nic_gib_per_s=2.0)
INF = float("inf")


def zones(zone_gib_per_s: float, nic_gib_per_s: float, rtt_s: float = 0.25, n_nodes: int = 2) -> Cluster:
    c = cluster(n_nodes, zones=2, nic_gib_per_s=nic_gib_per_s, rtt_s=rtt_s, slots=64)
    return replace(c, zone_gib_per_s=np.full(2, zone_gib_per_s))


def test_a_lone_payload_has_the_link_for_itself() -> None:
    assert starts(played(ONE, asked(ONE, [1.0], payload_gib=3.0))) == [2.5]


def test_two_payloads_share_equally_and_the_longer_then_speeds_up() -> None:
    c = replace(ONE, slots=np.array([2]))
    d = played(c, asked(c, [0.0, 0.0], payload_gib=[1.0, 3.0]))
    assert starts(d) == [1.0, 2.0]
    assert count(d, "moved_gib") == 4


def test_the_round_trip_comes_first() -> None:
    c = zones(INF, INF, rtt_s=0.25)
    assert starts(played(c, asked(c, [1.0, 1.0], zone_idx=[0, 1], key=0))) == [1.0, 1.25]


def test_a_far_payload_crosses_the_zone_link_and_then_the_nodes_store_and_forward() -> None:
    c = zones(1.0, 2.0)
    d = played(c, asked(c, [0.0, 0.0], zone_idx=[1, 0], payload_gib=1.0, key=0))
    assert starts(d) == [0.25 + 1.0 + 0.5, 0.5]  # the near one uses the node's link only


def test_a_payload_counts_as_in_flight_while_it_travels_and_takes_no_slot() -> None:
    c = cluster(1, nic_gib_per_s=1.0, queue_max=0)
    r = asked(c, [0.0, 0.5], 1.0, payload_gib=[1.0, 0.0])
    d = played(c, r, Options(held_max=0))
    assert d.state.requests["status"].tolist() == [Status.FINISHED, Status.REJECTED]


def test_cancelling_a_transfer_speeds_up_the_others() -> None:
    c = replace(ONE, slots=np.array([2]))
    r = asked(c, [0.0, 0.0], payload_gib=2.0, deadline_s=[1.0, INF])
    d = played(c, r, Options(cancel=Cancel.WAITING))
    assert starts(d)[1] == 1.5  # 1 GiB by 1 s at half speed, 1 GiB at full
    assert d.state.requests["status"][0] == Status.CANCELLED
    assert count(d, "moved_gib") == 2


def test_cancelling_during_the_round_trip_leaves_the_link_alone() -> None:
    c = zones(1.0, INF)
    r = asked(c, [0.0, 0.0], zone_idx=1, payload_gib=1.0, deadline_s=[0.2, INF], key=0)
    d = played(c, r, Options(cancel=Cancel.WAITING))
    assert starts(d)[1] == 1.25


sizes = st.one_of(st.integers(1, 3).map(float), st.floats(0.01, 3.0))
times = st.one_of(st.integers(0, 5).map(float), st.floats(0.0, 5.0))
request = st.tuples(times, sizes, st.integers(0, 1), st.integers(0, 2), st.one_of(st.none(), times))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(request, min_size=1, max_size=25),
    st.sampled_from([0.5, 2.0, INF]),
    st.sampled_from([0.7, 1.0, INF]),
)
def test_transfers_take_as_long_as_in_a_fluid_simulation(
    asks: list[tuple[float, float, int, int, float | None]], zone_gib_per_s: float, nic_gib_per_s: float
) -> None:
    c = zones(zone_gib_per_s, nic_gib_per_s, n_nodes=3)
    rows = sorted(asks, key=lambda row: row[0])
    arrival_s, gib, zone, node, patience = (list(column) for column in zip(*rows, strict=True))
    # an odd millisecond keeps deadlines from tying with the end of a transfer, which rounding decides
    gives_up_s = [INF if p is None else a + p + 0.001234567 for a, p in zip(arrival_s, patience, strict=True)]
    r = asked(c, arrival_s, 0.0, payload_gib=gib, zone_idx=zone, key=node, deadline_s=gives_up_s)
    driver = played(c, r, Options(cancel=Cancel.WAITING))
    gib_per_s, fluid = [zone_gib_per_s] * 2 + [nic_gib_per_s] * 3, []
    for i in range(len(asks)):
        near = node[i] % 2 == zone[i]
        way = [2 + node[i]] if near else [node[i] % 2, 2 + node[i]]
        route = [link for link in way if gib_per_s[link] < INF]
        fluid.append(Payload(arrival_s[i] + (0.0 if near else 0.25), gib[i], route, gives_up_s[i]))
    transfer(fluid, gib_per_s)
    np.testing.assert_allclose(starts(driver), [p.there_s for p in fluid], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_equal_payloads_that_start_together_arrive_together(n: int) -> None:
    c = cluster(1, slots=8, nic_gib_per_s=0.3)
    together = starts(played(c, asked(c, [0.7] * n, payload_gib=0.1)))
    assert len(set(together)) == 1  # to the last bit
    assert together[0] == pytest.approx(0.7 + n / 3.0)
