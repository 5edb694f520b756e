"""Limits, guarantees and preemption of hierarchical queues; cases by hand, and random trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.by_hand import asked, count, finishes, played, starts
from support.invariants import check_all
from support.mini_policies import Emptiest
from support.queue_trees import of_tenants, with_queues
from trimtab.domain.policy import Decider
from trimtab.domain.queue_tree import Queue, QueueOrder
from trimtab.domain.requests import Status
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE
from trimtab.policies import find

FOUR = cluster(4, queue_max=0)


def run(c, arrival_s, units, tenants, queues, options=None, policy=None, order=None, **columns) -> Driver:
    """A run of tenants a, b, … under these queues."""
    r = of_tenants(asked(c, arrival_s, units, **columns), tenants, max(tenants) + 1)
    return played(c, r, with_queues(c, r, queues, options), policy or Emptiest(), order)


def test_a_queue_at_its_limit_waits_although_nodes_are_free() -> None:
    queues = [Queue("x", limit=0.5, tenants=("a",)), Queue("y", tenants=("b",))]
    d = run(FOUR, [0.0, 0.0, 0.0, 0.5], 2.0, [0, 0, 0, 1], queues)
    assert starts(d) == [0.0, 0.0, 2.0, 0.5]


def test_a_queue_borrows_all_that_is_idle_below_its_limit() -> None:
    queues = [Queue("x", guarantee=0.25, tenants=("a",)), Queue("y", guarantee=0.75, tenants=("b",))]
    assert starts(run(FOUR, [0.0] * 5, 2.0, [0] * 5, queues)) == [0.0] * 4 + [2.0]


def test_the_limit_of_a_queue_above_holds_too() -> None:
    inner = (Queue("x", tenants=("a",)), Queue("y", tenants=("b",)))
    queues = [Queue("dept", limit=0.5, children=inner), Queue("z", tenants=("c",))]
    d = run(FOUR, [0.0, 0.1, 0.2, 0.3], 2.0, [0, 1, 1, 2], queues)
    assert starts(d) == [0.0, 0.1, 2.0, 0.3]


def test_at_most_so_many_run_and_a_user_has_its_part_of_the_limit() -> None:
    most = [Queue("x", max_running=3, user_limit=0.5, tenants=("a", "b"))]
    d = run(FOUR, [0.0, 0.1, 0.2, 0.3, 0.4], [2.0, 2.0, 2.0, 2.0, 2.0], [0, 0, 0, 1, 1], most)
    assert starts(d) == [0.0, 0.1, 2.0, 0.3, 2.1]  # a has 2 of 4 slots; then 3 run in all


def test_an_empty_queue_sends_one_request_however_small_its_limit() -> None:
    d = run(FOUR, [0.0, 0.0], 1.0, [0, 0], [Queue("x", limit=0.1, tenants=("a",))])
    assert starts(d) == [0.0, 1.0]


def test_work_above_a_limit_holds_up_no_other_queue() -> None:
    """First come, first served, one offer a pass: what no limit forbids goes past what one does."""
    queues = [Queue("x", limit=0.5, tenants=("a",)), Queue("y", tenants=("b",))]
    d = run(
        cluster(2, queue_max=0), [0.0, 0.0, 0.1, 0.2, 0.3], [9.0, 1.0, 1.0, 1.0, 1.0], [0, 1, 0, 1, 1], queues
    )
    assert starts(d) == [0.0, 0.0, 9.0, 1.0, 2.0]


def borrowed(notice_s: float, **fields) -> list[Queue]:
    """Two queues, half of the slots guaranteed to each."""
    return [
        Queue("x", guarantee=0.5, notice_s=notice_s, tenants=("a",), **fields),
        Queue("y", guarantee=0.5, notice_s=notice_s, tenants=("b",)),
    ]


def test_after_its_notice_a_queue_gets_its_guarantee_from_the_youngest_borrowed_work() -> None:
    d = run(FOUR, [0.0, 0.1, 0.2, 0.3, 1.0, 1.0, 1.0], [9.0] * 7, [0, 0, 0, 0, 1, 1, 1], borrowed(2.0))
    assert starts(d)[4:6] == [3.0, 3.0]
    assert finishes(d)[:2] == [9.0, 9.1]  # the oldest two stay: they are within the guarantee
    assert [round(x, 9) for x in starts(d)[2:4]] == [9.0, 9.1]  # first come, first served
    assert starts(d)[6] == 12.0
    tree = d.state.tree
    assert tree["preempted"].tolist() == [2, 2, 0]
    assert tree["lost_s"][1] == pytest.approx(2.8 + 2.7)
    assert tree["short_s"][2] == pytest.approx(2.0)
    assert (count(d, "preempted"), count(d, "retries"), count(d, "finished")) == (2, 0, 7)
    assert d.state.preemptions["times"].tolist() == [0, 0, 1, 1, 0, 0, 0]


def test_a_leaf_that_is_not_preemptible_keeps_what_it_borrowed() -> None:
    """x borrows the part of z beside y, whose requests are the older ones: y's go, x's stay."""
    queues = [
        Queue("x", preemptible=False, tenants=("a",)),
        Queue("y", tenants=("b",)),
        Queue("z", guarantee=1.0, notice_s=2.0, tenants=("c",)),
    ]
    d = run(FOUR, [0.0, 0.1, 0.2, 0.3, 1.0, 1.0, 1.0], [9.0] * 7, [1, 1, 0, 0, 2, 2, 2], queues)
    assert d.state.tree["preempted"].tolist() == [2, 0, 2, 0]
    assert starts(d)[4:6] == [3.0, 3.0]
    assert finishes(d)[2:4] == [9.2, 9.3]


def test_without_notice_nothing_is_preempted_and_what_ends_in_time_saves_the_rest() -> None:
    work = [0.0] * 4 + [1.0], [3.0, 3.0, 9.0, 9.0, 1.0], [0, 0, 0, 0, 1]
    assert starts(run(FOUR, *work, borrowed(np.inf)))[4] == 3.0
    d = run(FOUR, *work, borrowed(2.5))
    assert (starts(d)[4], count(d, "preempted")) == (3.0, 0)
    d = run(FOUR, *work, borrowed(1.0))
    assert (starts(d)[4], count(d, "preempted")) == (2.0, 1)


def test_firm_classes_and_what_the_host_has_begun_to_answer_are_not_preempted() -> None:
    c = replace(cluster(1, queue_max=0, classes=2), unit_s=np.ones((2, 1)))
    r = of_tenants(asked(c, [0.0, 1.0], [9.0, 1.0], class_idx=[1, 0]), [0, 1], 2)
    queues = [Queue("x", tenants=("a",)), Queue("y", guarantee=1.0, notice_s=0.5, tenants=("b",))]
    options = with_queues(c, r, queues)
    assert starts(played(c, r, options, Emptiest())) == [2.5, 1.5]
    firm = replace(options, queues=replace(options.queues, is_firm=np.array([False, True])))
    assert starts(played(c, r, firm, Emptiest())) == [0.0, 9.0]


def test_a_queue_below_its_guarantee_goes_first_under_every_order() -> None:
    """First come, first served would give the slot to x, whose work all came before."""
    c = replace(cluster(1, queue_max=0, classes=2), unit_s=np.ones((2, 1)))
    r = of_tenants(
        asked(c, [0.0, 0.0, 0.0, 1.0], [4.0, 4.0, 4.0, 1.0], class_idx=[1, 1, 1, 0]), [0, 0, 0, 1], 2
    )
    queues = [Queue("x", tenants=("a",)), Queue("y", guarantee=1.0, notice_s=0.5, tenants=("b",))]
    options = with_queues(c, r, queues)
    firm = replace(options, queues=replace(options.queues, is_firm=np.array([False, True])))
    assert starts(played(c, r, firm, Emptiest()))[3] == 4.0


def test_a_queue_takes_back_no_more_than_others_exceed_their_guarantees() -> None:
    """x has 2 of its 2 slots, z 2 of none: y, with a guarantee of 1, gets its own from z only, once."""
    queues = [
        Queue("x", guarantee=0.5, tenants=("a",)),
        Queue("y", guarantee=0.25, notice_s=1.0, tenants=("b",)),
        Queue("z", tenants=("c",)),
    ]
    d = run(FOUR, [0.0, 0.0, 0.1, 0.1, 0.5, 0.5], 9.0, [2, 2, 0, 0, 1, 1], queues)
    assert d.state.tree["preempted"].tolist() == [1, 0, 0, 1]
    assert starts(d)[4] == 1.5
    assert starts(d)[5] >= 9.0


def test_work_moves_within_a_department_for_a_team_that_is_short() -> None:
    """Departments m and n: team b of m takes back from team a of m, not from n, which is within its own."""
    teams = (Queue("x", tenants=("a",)), Queue("y", guarantee=0.5, notice_s=1.0, tenants=("b",)))
    queues = [Queue("m", guarantee=0.5, children=teams), Queue("n", guarantee=0.5, tenants=("c",))]
    d = run(FOUR, [0.0, 0.0, 0.0, 0.0, 0.5], 9.0, [0, 0, 2, 2, 1], queues)
    assert d.state.tree["preempted"].tolist() == [1, 1, 1, 0, 0]


def test_as_many_are_taken_back_on_one_node_as_the_request_needs_of_its_resources() -> None:
    """One node of 4 cores; b's request takes 3, a's 1 each: three of them go, the youngest."""
    c = replace(
        cluster(1, slots=8, classes=2, queue_max=0),
        unit_s=np.ones((2, 1)),
        resource_names=("cpu_cores",),
        capacity=np.array([[4.0]]),
        demand=np.array([[1.0], [3.0]]),
    )
    r = of_tenants(asked(c, [0.0, 0.1, 0.2, 0.3, 1.0], 9.0, class_idx=[0, 0, 0, 0, 1]), [0, 0, 0, 0, 1], 2)
    queues = [Queue("x", tenants=("a",)), Queue("y", guarantee=1.0, notice_s=1.0, tenants=("b",))]
    d = played(c, r, with_queues(c, r, queues), find("best-fit").dispatch)
    assert d.state.preemptions["times"].tolist() == [0, 1, 1, 1, 0]
    assert starts(d)[4] == 2.0


def test_orders_inside_a_leaf() -> None:
    c = cluster(1, queue_max=0)
    work = [0.0, 0.1, 0.2, 0.3], [1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1]
    priority = [0, 0, 0, 2]
    order = find("best-fit+hdrf").order
    for kind, expected in (
        (QueueOrder.FIFO, [0.0, 1.0, 2.0, 3.0]),
        (QueueOrder.PRIORITY, [0.0, 2.0, 3.0, 1.0]),
    ):
        d = run(c, *work, [Queue("x", order=kind, tenants=("a", "b"))], order=order, priority=priority)
        assert starts(d) == expected, kind
    two = cluster(2, queue_max=0)
    d = run(
        two,
        [0.0] * 6,
        [4.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [0, 1, 0, 1, 0, 1],
        [Queue("x", order=QueueOrder.FAIR, tenants=("a", "b"))],
        order=order,
    )
    assert starts(d) == [0.0, 0.0, 3.0, 1.0, 4.0, 2.0]  # b holds less until its own are over


TENANTS = "abcd"


@st.composite
def trees(draw) -> list[Queue]:
    """One or two levels, a leaf for each tenant; guarantees that add up; some limits, some notices."""
    whole = [draw(st.integers(0, 3)) for _ in TENANTS]
    part = [k / max(sum(whole), 4) for k in whole]

    def queue(name: str, guarantee: float, **fields) -> Queue:
        limit = draw(st.sampled_from([1.0, max(0.5, guarantee)]))
        notice_s = draw(st.sampled_from([0.0, 1.5, np.inf]))
        weight = draw(st.sampled_from([1.0, 3.0]))
        return Queue(name, weight, guarantee, limit, notice_s, **fields)

    if draw(st.booleans()):
        return [queue(name, p, tenants=(name,)) for name, p in zip(TENANTS, part, strict=True)]
    inner = []
    for k in (0, 2):
        above = part[k] + part[k + 1]
        of = [p / above if above else 0.0 for p in part[k : k + 2]]
        leaves = tuple(queue(TENANTS[k + i], of[i] * 0.999, tenants=(TENANTS[k + i],)) for i in (0, 1))
        most = draw(st.sampled_from([1, 2, 99]))
        inner.append(queue(f"dept{k}", above, children=leaves, max_running=most))
    return inner


def check_now(d: Driver, longest_s: float) -> None:
    """Every invariant; guarantees in time; no slot idles while a request waits that all limits allow."""
    s, tree = d.state, d.state.tree
    check_all(s)
    assert (d.now_s - tree["short_since_s"] <= tree["notice_s"] + longest_s + 1.0).all()
    if (s.nodes["in_flight"] < s.nodes["slots"]).any():
        at_most = np.minimum(s.tree_limit[:, -1] * (1 + 1e-9), tree["max_running"])
        is_open = (tree["running"] == 0) | (tree["running"] + 1 <= at_most)
        for row in np.unique(s.leaf_of[s.work["tenant_idx"][s.requests["status"] == Status.HELD]]):
            above = [q for q in range(len(tree)) if q <= row < tree["end"][q]]
            assert not is_open[above].all()


@settings(max_examples=40, deadline=None)
@given(
    trees(),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=24),
    st.sampled_from(["fcfs", "hdrf", "drf", "vtc", "sjf"]),
)
def test_random_trees_keep_their_limits_and_guarantees_and_lose_nothing(queues, work, order) -> None:
    work = sorted(work, key=lambda one: one[1])
    tenants, arrival_s, units = (list(column) for column in zip(*work, strict=True))
    r = of_tenants(asked(FOUR, [at / 2 for at in arrival_s], np.array(units, float)), tenants, 4)
    options = with_queues(FOUR, r, queues)
    decider = Decider(Emptiest(), find(f"best-fit+{order}").order)
    d = Driver(FOUR, r, options, decider, mode="interpreted")
    while d.advance(max_steps=1) != DONE:
        check_now(d, max(units))
    assert (d.state.requests["status"] == Status.FINISHED).all()
    np.testing.assert_allclose(d.state.requests["finish_s"] - d.state.requests["start_s"], units)
    assert count(d, "finished") == len(r)
    assert d.state.preemptions["times"].sum() == count(d, "preempted") == d.state.tree["preempted"][0]
