"""Nodes that a host of the simulator switches off and on: each time is worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders import cluster
from support.by_hand import asked, fault_table, finishes, once, starts
from support.mini_policies import Emptiest
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Status
from trimtab.engine import simulator
from trimtab.engine.driver import Driver

TWO = cluster(2)
ONE = cluster(1)


def run(c: Any, r: Any, options: Options, *switches: tuple[float, int, bool]) -> Driver:
    """To the end, with nodes switched at these times."""
    policy = Emptiest()
    driver = simulator.begun(c, r, options, Decider(policy, policy), mode="interpreted")
    for at_s, node, up in switches:
        simulator.go_to(driver, at_s)
        simulator.switch(driver, node, up, at_s)
    simulator.go_to(driver, float("inf"))
    return driver


def test_what_runs_goes_on_and_nothing_new_comes_until_the_node_is_on() -> None:
    r = asked(TWO, [0.0, 2.0, 2.0, 6.0], [4.0, 4.0, 4.0, 1.0])
    d = run(TWO, r, Options(), (1.0, 0, False), (5.0, 0, True))
    assert finishes(d)[0] == 4.0  # on node 0, off from 1 to 5
    assert d.state.requests["node_idx"].tolist() == [0, 1, 1, 0]
    assert starts(d) == [0.0, 2.0, 6.0, 6.0]  # the third waits at node 1


def test_what_waits_at_a_node_moves_when_it_is_switched_off() -> None:
    r = asked(TWO, [0.0, 0.0, 0.5], [4.0, 1.0, 1.0])  # the third waits at node 0, which has the lower number
    d = run(TWO, r, Options(), (0.75, 0, False))
    assert d.state.requests["node_idx"].tolist() == [0, 1, 1]
    assert finishes(d) == [4.0, 1.0, 2.0]


def test_a_cancelled_request_frees_its_slot_and_a_slow_down_strikes() -> None:
    r = asked(ONE, [0.0, 4.0], [9.0, 1.0], deadline_s=[3.0, float("inf")])
    d = run(ONE, r, Options(cancel=Cancel.ALWAYS), (1.0, 0, False), (4.5, 0, True))
    assert d.state.requests["status"].tolist() == [Status.CANCELLED, Status.FINISHED]
    assert starts(d)[1] == 4.5
    assert d.state.hidden["allocated_slot_s"].tolist() == [3.0 + 1.0]
    slowed = Options(faults=fault_table(once(0, 2.0, 6.0, factor=0.5)))
    d = run(ONE, asked(ONE, [0.0], 5.0), slowed, (1.0, 0, False))
    assert finishes(d) == [pytest.approx(2.0 + 4.0 + 1.0)]  # 2 s alone, 2 s of work in 4 s, the last alone
