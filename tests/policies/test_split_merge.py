"""split-merge: what it plans at which load, against prices worked out here and against the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.domain.view import Plan
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies.data_aware.split_merge import SplitMerge

NODES, FIXED_S, UNITS = 10, 0.5, 4.0


def stream(per_s: float, n: int = 300, seed: int = 1) -> Requests:
    """Requests of 4 units, up to 4 parts, at this rate."""
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1.0 / per_s, n))
    return asked(cluster(NODES, fixed_s=FIXED_S), arrival_s.tolist(), UNITS, parts_max=4)


def planned(per_s: float, policy: SplitMerge, down: int = 0) -> Plan:
    """What it plans after 300 arrivals, with some nodes down."""
    d = Driver(
        cluster(NODES, fixed_s=FIXED_S), stream(per_s), Options(), Decider.of(policy), mode="interpreted"
    )
    d.state.counts["arrived"], d.state.counts["now_s"] = 300, d.state.work["arrival_s"][-1]
    d.state.nodes["up"][:down] = 0
    plan = policy.plan(d.view(), d.history(), None, None)
    assert plan is not None
    return plan


def capacity_per_s(parts: int) -> float:
    return NODES / (FIXED_S * parts + UNITS)


@pytest.mark.parametrize(
    ("load", "parts"), [(0.1, {4}), (0.5, {3, 4}), (0.85, {1, 2}), (0.97, {1}), (1.3, {1})]
)
def test_fewer_parts_the_higher_the_load(load: float, parts: set[int]) -> None:
    assert int(planned(load * capacity_per_s(1), SplitMerge()).split_max[0]) in parts


def test_it_counts_the_nodes_that_are_up() -> None:
    assert planned(0.3 * capacity_per_s(1), SplitMerge(), down=0).split_max[0] == 4
    assert planned(0.3 * capacity_per_s(1), SplitMerge(), down=7).split_max[0] == 1
    assert planned(0.3 * capacity_per_s(1), SplitMerge(), down=NODES).batch_max[0] == 1


def test_joining_that_costs_more_than_parts_save_is_not_done() -> None:
    """4 parts save 3 s of service."""
    low = 0.05 * capacity_per_s(1)
    assert planned(low, SplitMerge(join_s=2.9)).split_max[0] > 1
    assert planned(low, SplitMerge(join_s=3.1)).split_max[0] == 1


def test_batches_and_windows_grow_with_the_load() -> None:
    policy = SplitMerge(batch_max=6, batch_from_load_frac=0.5, window_frac=0.4)
    low, high, full = (planned(load * capacity_per_s(1), policy) for load in (0.3, 0.75, 1.5))
    assert [plan.batch_max[0] for plan in (low, high, full)] == [1, 6, 6]
    assert low.batch_window_s[0] == 0.0 < high.batch_window_s[0] < full.batch_window_s[0]
    assert full.batch_window_s[0] == pytest.approx(0.4 * (FIXED_S + UNITS))


def test_batches_that_save_time_leave_room_for_parts() -> None:
    """At load .85 four parts are more than nodes can serve one by one: 1.13 times what they can."""
    per_s = 0.85 * capacity_per_s(1)
    assert per_s > 1.1 * capacity_per_s(4)
    assert planned(per_s, SplitMerge()).split_max[0] < 4
    assert planned(per_s, SplitMerge(marginal_frac=0.1)).split_max[0] == 4


def test_before_anything_has_arrived_it_splits_all_it_can() -> None:
    c = cluster(NODES, fixed_s=FIXED_S)
    d = Driver(c, stream(1.0), Options(), Decider.of(SplitMerge()), mode="interpreted")
    plan = SplitMerge().plan(d.view(), d.history(), None, None)
    assert plan is not None
    assert plan.split_max[0] >= 4
    assert plan.batch_max[0] == 1


def mean_s(r: Requests, policy: Any) -> float:
    options = Options(join_s=np.zeros(1))
    d = run(cluster(NODES, fixed_s=FIXED_S), r, options, Decider.of(policy), mode="interpreted")
    return float((d.state.requests["finish_s"][: len(r)] - r.work["arrival_s"]).mean())


@pytest.mark.parametrize("load", [0.2, 0.85])
def test_it_is_near_the_best_fixed_number_of_parts(load: float) -> None:
    """Fixed numbers: the same policy where requests have no more parts; within 15 % of the best of them.

    At the higher load two parts are best and three more than the nodes can serve.
    """
    r = stream(load * capacity_per_s(1), n=250)
    means = []
    for parts in (1, 2, 3, 4):
        work = r.work.copy()
        work["parts_max"] = parts
        means.append(mean_s(replace(r, work=work), Always(batch_max=1)))
    assert mean_s(r, SplitMerge(batch_max=1)) <= 1.15 * min(means)


@pytest.mark.parametrize(("faster", "nodes"), [(1.03, {0, 1, 2, 3}), (2.0, {1, 3})])
def test_parts_go_to_idle_nodes_of_about_the_same_speed(faster: float, nodes: set[int]) -> None:
    """Four parts, on two nodes each of two types; a node has four slots."""
    c = cluster(4, types=2, slots=4, speeds=(1.0, 1.2 * faster))  # a unit takes type 1 1.2 times as long
    r = asked(c, [1.0, 100.0], UNITS, parts_max=4)
    state = run(c, r, Options(join_s=np.zeros(1)), Decider.of(SplitMerge()), mode="interpreted").state
    for first in (2, 6):
        parts = state.requests["node_idx"][first : first + 4].tolist()
        assert set(parts) == nodes, parts


class Always(SplitMerge):
    """As many parts as there can be."""

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan | None:
        return super().plan(view, history._replace(work=history.work[:0]), waiting, rollout)


@pytest.mark.parametrize("wrong", [{"recent": 1}, {"batch_max": 0}, {"join_s": -1.0}, {"window_frac": -0.1}])
def test_parameters_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SplitMerge(**wrong)
