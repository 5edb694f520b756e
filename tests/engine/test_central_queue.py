"""Refusal, holding, and what is offered when; every case by hand. Service takes `units` seconds."""

from __future__ import annotations

import pytest

from support.builders import cluster
from support.by_hand import asked, count, finishes, played, starts
from support.mini_policies import HOLD, SECOND, ByDeadline, ByPriority, Emptiest
from trimtab.domain.options import OnRefusal, Options
from trimtab.domain.requests import Reason, Status

TWO = cluster(2, queue_max=0)
ONE = cluster(1)


def test_a_refused_request_falls_through_to_the_next_candidate() -> None:
    d = played(TWO, asked(TWO, [0.0, 0.0], 1.0, key=SECOND * 2))  # node 0, then node 1
    assert d.state.requests["node_idx"].tolist() == [0, 1]


def test_when_all_refuse_the_request_is_held() -> None:
    d = played(TWO, asked(TWO, [0.0, 0.0, 0.0], [1.0, 2.0, 1.0], key=SECOND * 2))
    assert starts(d) == [0.0, 0.0, 1.0]
    assert d.state.requests["node_idx"][2] == 0


def test_when_all_refuse_the_request_is_rejected_if_so_configured() -> None:
    r = asked(TWO, [0.0, 0.0, 0.5, 0.5, 5.0], 1.0, key=[0, 1, SECOND * 2, HOLD, HOLD])
    d = played(TWO, r, Options(on_refusal=OnRefusal.REJECT))
    rejected, held = Status.REJECTED, Status.HELD  # held: nodes are free, the policy itself wants it so
    assert d.state.requests["status"].tolist() == [6, 6, rejected, rejected, held]
    assert d.state.requests["reason"][2:4].tolist() == [Reason.REFUSED, Reason.REFUSED]


def test_a_full_central_queue_rejects() -> None:
    d = played(TWO, asked(TWO, [0.0, 0.0, 0.0, 0.0], 1.0, key=SECOND * 2), Options(held_max=1))
    assert d.state.requests["status"].tolist() == [6, 6, 6, Status.REJECTED]
    assert d.state.requests["reason"].tolist() == [0, 0, 0, Reason.QUEUE_FULL]


def test_each_dispatcher_has_a_central_queue_of_its_own() -> None:
    d = played(TWO, asked(TWO, [0.0] * 6, 1.0, key=0), Options(held_max=1, dispatchers=2))
    assert d.state.requests["status"].tolist() == [6, 6, 6, Status.REJECTED, Status.REJECTED, Status.REJECTED]
    # 0 runs; dispatcher 1 holds request 1, dispatcher 0 request 2; the rest find both full


@pytest.mark.parametrize(("lookahead", "third_starts_s"), [(1, 5.0), (2, 1.0)])
def test_a_pass_ends_when_lookahead_requests_were_offered_in_vain(
    lookahead: int, third_starts_s: float
) -> None:
    """Node 0 is busy until 5 s, node 1 until 1 s; request 2 wants node 0, request 3 node 1."""
    r = asked(TWO, [0.0, 0.0, 0.1, 0.2], [5.0, 1.0, 1.0, 1.0], key=[0, 1, 0, 1])
    d = played(TWO, r, Options(lookahead=lookahead))
    assert starts(d) == [0.0, 0.0, 5.0, third_starts_s]


def test_a_lookahead_of_two_does_not_reach_the_third() -> None:
    r = asked(TWO, [0.0, 0.0, 0.1, 0.2, 0.3], [5.0, 1.0, 1.0, 1.0, 1.0], key=[0, 1, 0, 0, 1])
    assert starts(played(TWO, r, Options(lookahead=2)))[4] == 5.0
    assert starts(played(TWO, r, Options(lookahead=3)))[4] == 1.0


def test_what_was_offered_in_vain_keeps_its_place() -> None:
    c = cluster(1, queue_max=0)
    d = played(c, asked(c, [0.0, 0.1, 0.2, 0.3], 1.0), Options(lookahead=3))
    assert starts(d) == [0.0, 1.0, 2.0, 3.0]
    assert d.state.requests["attempt"].tolist() == [1, 2, 1 + 2, 1 + 3]


def test_the_central_queue_is_in_the_order_of_the_key_and_then_of_arrival() -> None:
    c = cluster(1, queue_max=0)
    r = asked(c, [0.0, 0.1, 0.2, 0.3, 0.4], 1.0, deadline_s=[9.0, 8.0, 5.0, 8.0, 5.0])
    d = played(c, r, order=ByDeadline())
    assert starts(d) == [0.0, 3.0, 1.0, 4.0, 2.0]


def test_a_node_queue_is_in_the_order_of_the_key_and_then_of_arrival() -> None:
    r = asked(ONE, [0.0, 0.1, 0.2, 0.3, 0.4], 1.0, priority=[0, 1, 2, 1, 2])
    d = played(ONE, r, order=ByPriority())
    assert starts(d) == [0.0, 3.0, 1.0, 4.0, 2.0]
    assert finishes(d)[0] == 1.0  # what runs is not preempted


def test_a_request_that_fits_no_node_is_rejected_with_the_reason() -> None:
    c = cluster(2, types=1, classes=2, unserved=[(1, 0)])
    d = played(c, asked(c, [0.0, 0.0], 1.0, class_idx=[1, 0]), policy=Emptiest())
    assert d.state.requests["reason"].tolist() == [Reason.FITS_NO_NODE, Reason.NONE]
    assert (count(d, "rejected"), count(d, "finished")) == (1, 1)


def test_a_type_without_nodes_serves_nobody() -> None:
    c = cluster(1, types=2, classes=2, unserved=[(1, 0)])  # the one node is of type 0
    d = played(c, asked(c, [0.0, 0.0], 1.0, class_idx=[1, 0]), policy=Emptiest())
    assert d.state.requests["reason"].tolist() == [Reason.FITS_NO_NODE, Reason.NONE]
    assert d.state.work["estimate_s"].tolist() == [float("inf"), 1.0]
