"""Priority reservation: by hand, against a plain scan of random states, and by its effect."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.dispatch_by_hand import Desk
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.load_aware.priority_reservation import PriorityReservation

FAST, SLOW = 1, 0  # node types of speed 2 and 1, by turns


def two_speeds(n: int = 4, slots: int = 4, queue_max: int = 8) -> Cluster:
    return cluster(n, types=2, slots=slots, speeds=[1.0, 2.0], queue_max=queue_max)


def desk(priority: int, c: Cluster, **parameters: float) -> Desk:
    made = Desk(c, PriorityReservation(**parameters))  # type: ignore[arg-type]
    made.work["priority"], made.work["units"], made.work["estimate_s"] = priority, 2.0, 1.0
    return made


def busy(d: Desk, j: int, count: int, each_s: float = 1.0) -> None:
    """Node j has so many requests in flight, of `each_s` seconds each, all just begun."""
    slots, left_s = int(d.nodes["slots"][j]), count * each_s
    room = int(d.cluster.queue_max[j]) + slots - count
    d.set(j, in_flight=count, running=min(count, slots), room=room, outstanding_s=left_s, backlog_s=left_s)


def test_priority_work_takes_a_reserved_slot_and_other_work_a_slower_node() -> None:
    """Of 8 fast slots 2 are reserved. 2 s on a slow node is less than 3 × 1 s, the penalty."""
    c = two_speeds()
    for priority, first in ((1, 3), (0, 0)):
        d = desk(priority, c)
        busy(d, 1, 4)
        busy(d, 3, 2)
        assert d.decide()[0] == first
    d = desk(0, c)
    busy(d, 1, 4)
    busy(d, 3, 1)  # three are free: more than the reserve
    assert d.decide()[0] == 3


def test_other_work_takes_a_reserved_slot_rather_than_wait_very_long() -> None:
    """8 requests of 3 s on 4 slots: 6 s of wait and 2 of service, more than 3 × 1 s."""
    d = desk(0, two_speeds(2))
    busy(d, FAST, 3)
    busy(d, SLOW, 8, each_s=3.0)
    assert d.decide()[0] == FAST
    busy(d, SLOW, 4, each_s=0.4)  # 0.4 s of wait
    assert d.decide()[0] == SLOW


def test_other_work_waits_for_a_full_slower_node() -> None:
    """No room at the slow node, which is free in 0.4 s: held, not sent to the reserved slot."""
    d = desk(0, two_speeds(2, queue_max=0))
    busy(d, FAST, 3)
    busy(d, SLOW, 4, each_s=0.4)
    assert d.answer() == 0
    d.set(SLOW, up=0)
    assert d.decide() == [FAST]


def plainly(d: Desk, priority: int, p: PriorityReservation) -> list[int]:
    """The ranking by the rule as the docstring says it; nodes that have just begun all their work."""
    c, nodes = d.cluster, d.nodes
    service_s = c.unit_s[0, c.type_idx] * float(d.work["units"][0])
    full = nodes["in_flight"] >= nodes["slots"]
    wait_s = np.where(full, nodes["backlog_s"] / nodes["slots"], 0.0)
    completion_s, up = wait_s + service_s, nodes["up"] == 1
    fast = service_s <= p.fast_ratio * float(d.work["estimate_s"][0])
    free = np.maximum(nodes["slots"] - nodes["in_flight"], 0)[fast & up].sum()
    reserved = free <= int(p.reserve_frac * nodes["slots"][fast & up].sum())
    if priority < p.min_priority and reserved and (up & ~fast).any():
        completion_s = np.where(fast, p.penalty * completion_s, completion_s)
    else:
        fast = np.ones(len(nodes), np.bool_)
    able = up & (nodes["room"] > 0)
    best = np.where(up & ~fast & ~able, completion_s, np.inf).min()
    ranking = [j for j in np.argsort(completion_s, kind="stable").tolist() if able[j]][:8]
    return [] if ranking and best < completion_s[ranking[0]] else ranking


@pytest.mark.parametrize("priority", [0, 1])
def test_random_states_are_decided_as_by_a_plain_scan(priority: int) -> None:
    rng, c = np.random.default_rng(3), two_speeds(6, slots=3, queue_max=2)
    p, held, reserved = PriorityReservation(), 0, 0
    for _ in range(400):
        d = desk(priority, c)
        for j in range(6):
            busy(d, j, int(rng.integers(0, 6)), each_s=float(rng.uniform(0.05, 3.0)))
            d.set(j, up=int(rng.random() < 0.9))
        expected = plainly(d, priority, p)
        assert d.decide() == expected
        held += not expected
        reserved += expected != plainly(d, 1, p)
    assert (reserved > 50) == (priority == 0)
    assert (held > 2) == (priority == 0)


def test_between_equal_nodes_it_is_least_expected_completion() -> None:
    c = cluster(4, slots=2)
    r = requests(c, 400, load=0.9, priorities=2)
    a, b = (
        run(c, r, Options(), *find(name)).requests
        for name in (PriorityReservation(), "least-expected-completion")
    )
    np.testing.assert_array_equal(a["node_idx"], b["node_idx"])


@pytest.mark.parametrize("seed", range(3))
def test_priority_work_is_sooner_and_other_work_later(seed: int) -> None:
    c = two_speeds(8, slots=2, queue_max=100)
    r = requests(c, 1500, load=0.85, seed=seed, priorities=2)
    mean_s = {}
    for name in ("priority-reservation", "least-expected-completion"):
        rows = run(c, r, Options(), *find(name)).requests
        took_s = rows["finish_s"] - r.work["arrival_s"]
        mean_s[name] = [took_s[r.work["priority"] == p].mean() for p in (0, 1)]
    (other, priority), (other_before, priority_before) = mean_s.values()
    assert priority < 0.97 * priority_before
    assert other > other_before


@pytest.mark.parametrize("wrong", ["fast_ratio=0.5", "reserve_frac=1.0", "penalty=0.9"])
def test_parameters_out_of_range_are_named(wrong: str) -> None:
    with pytest.raises(UsageError, match=rf"priority-reservation\.{wrong.partition('=')[0]}"):
        find(f"priority-reservation({wrong})")
