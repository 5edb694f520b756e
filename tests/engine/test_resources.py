"""Requests start when a slot is free and their demand fits beside what runs; each time is worked out by hand.

One second of service per unit. The node has two slots, four cores and eight GiB unless said.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from support.builders import cluster
from support.by_hand import asked, fault_table, finishes, once, played, starts
from support.mini_policies import Emptiest
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, OnFailure, Options
from trimtab.domain.requests import Reason, Status
from trimtab.engine.records import records_of

BIG, SMALL, IDLE = range(3)  # classes: 3 cores and 2 GiB, 1 core and 5 GiB, nothing


def machine(nodes: int = 1, *, slots: int = 2, cores: float = 4.0) -> Cluster:
    c = cluster(nodes, slots=slots, classes=3)
    return replace(
        c,
        unit_s=np.ones_like(c.unit_s),
        resource_names=("cpu_cores", "ram_gib"),
        capacity=np.tile([cores, 8.0], (nodes, 1)),
        demand=np.array([[3.0, 2.0], [1.0, 5.0], [0.0, 0.0]]),
    )


def test_a_second_request_waits_while_it_does_not_fit_beside_the_first() -> None:
    c = machine()
    d = played(c, asked(c, [0.0, 1.0], 4.0, class_idx=[BIG, BIG]))
    assert starts(d) == [0.0, 4.0]
    d = played(c, asked(c, [0.0, 1.0], 4.0, class_idx=[BIG, SMALL]))
    assert starts(d) == [0.0, 1.0]
    d = played(c, asked(c, [0.0, 1.0], 4.0, class_idx=[SMALL, SMALL]))  # the other resource binds
    assert starts(d) == [0.0, 4.0]


def test_the_head_of_the_queue_holds_back_what_would_fit() -> None:
    c = machine()
    d = played(c, asked(c, [0.0, 1.0, 2.0], 4.0, class_idx=[BIG, BIG, SMALL]))
    assert starts(d) == [0.0, 4.0, 4.0]


def test_a_slot_is_needed_even_by_what_takes_nothing() -> None:
    c = machine()
    d = played(c, asked(c, [0.0, 0.0, 0.0], 4.0, class_idx=[IDLE, BIG, IDLE]))
    assert starts(d) == [0.0, 0.0, 4.0]


def test_one_end_may_let_several_start() -> None:
    c = machine(slots=4, cores=3.0)
    d = played(c, asked(c, [0.0, 1.0, 1.0, 1.0], [3.0, 1.0, 1.0, 1.0], class_idx=[BIG, SMALL, IDLE, SMALL]))
    assert starts(d) == [0.0, 3.0, 3.0, 4.0]


def test_a_node_refuses_what_is_larger_than_it() -> None:
    c = machine(2)
    c = replace(c, capacity=np.array([[2.0, 8.0], [4.0, 8.0]]))
    d = played(c, asked(c, [0.0, 0.0], 4.0, class_idx=[BIG, BIG], key=[2 * 1000, 0]))  # 0 then 1; 0 only
    assert d.state.requests["node_idx"].tolist() == [1, -1]
    assert d.state.requests["status"].tolist() == [Status.FINISHED, Status.HELD]


def test_what_is_larger_than_every_node_is_rejected_on_arrival() -> None:
    c = machine(2, cores=2.0)
    d = played(c, asked(c, [0.0, 0.0], 4.0, class_idx=[BIG, SMALL]))
    assert d.state.requests["reason"].tolist() == [Reason.FITS_NO_NODE, Reason.NONE]
    assert finishes(d)[1] == 4.0


def test_cancelling_gives_back_at_once() -> None:
    c = machine()
    r = asked(c, [0.0, 1.0], 9.0, class_idx=[BIG, BIG], deadline_s=[3.0, np.inf])
    d = played(c, r, Options(cancel=Cancel.ALWAYS))
    assert starts(d)[1] == 3.0
    assert (d.state.used == 0.0).all()


def test_a_failed_node_gives_all_back_or_keeps_what_it_will_go_on_with() -> None:
    c = machine()
    r = asked(c, [0.0, 6.0], 4.0, class_idx=[BIG, BIG])
    faults = fault_table(once(0, 1.0, 5.0))
    assert starts(played(c, r, Options(faults=faults), Emptiest())) == [5.0, 9.0]
    resumed = played(c, r, Options(faults=faults, on_failure=OnFailure.RESUME), Emptiest())
    assert finishes(resumed) == [8.0, 12.0]


def test_tenths_add_up_to_one() -> None:
    """Ten times 0.1 is not 1 in floating point; on paper it is, and so it fits."""
    c = replace(
        cluster(1, slots=20),
        unit_s=np.ones((1, 1)),
        resource_names=("cpu_cores",),
        capacity=np.array([[1.0]]),
        demand=np.array([[0.1]]),
    )
    d = played(c, asked(c, [0.0] * 11, 2.0))
    assert starts(d) == [0.0] * 10 + [2.0]
    assert (d.state.used == 0.0).all()


def test_records_hold_what_requests_took_of_each_resource() -> None:
    """BIG runs 4 s and ends; SMALL runs 2 s beside it; a second BIG runs from 5 s past the horizon, 6 s."""
    c = machine()
    r = asked(c, [0.0, 1.0, 5.0], [4.0, 2.0, 9.0], class_idx=[BIG, SMALL, BIG])
    d = played(c, r, Options(horizon_s=6.0))
    resources = records_of(d, c, r, np.full(3, np.inf)).resources
    assert resources.names == ("cpu_cores", "ram_gib")
    assert resources.capacity.tolist() == [[4.0, 8.0]]
    assert resources.used_s.tolist() == [[3 * 4 + 1 * 2 + 3 * 1, 2 * 4 + 5 * 2 + 2 * 1]]
