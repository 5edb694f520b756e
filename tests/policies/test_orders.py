"""Orders: their keys, and what they do to a queue."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.by_hand import asked
from support.dispatch_by_hand import Desk
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.orders.edf import Edf
from trimtab.policies.orders.fcfs import Fcfs
from trimtab.policies.orders.priority_ageing import PriorityAgeing
from trimtab.policies.orders.priority_deadline import PriorityDeadline
from trimtab.policies.orders.sjf import Sjf


def test_keys() -> None:
    desk = Desk(cluster(1), find("random")[0])
    for field, value in {"arrival_s": 7.0, "estimate_s": 3.0, "deadline_s": np.inf, "priority": 2}.items():
        desk.work[field] = value
    assert desk.key(Fcfs()) == 7.0
    assert desk.key(Sjf()) == 3.0
    assert desk.key(Edf()) == np.inf
    assert desk.key(PriorityAgeing(weight_s=2.5)) == 2.0


def overloaded(n: int = 400, *, priorities: int = 3) -> Requests:
    return requests(cluster(1), n, load=2.0, seed=4, priorities=priorities, deadline_s=20.0)


def served(work: Requests, spec: str) -> np.ndarray:
    """Serials in the order in which one server began them."""
    policy, order = find(spec)
    return np.argsort(run(cluster(1), work, Options(), policy, order).requests["start_s"])


def by_brute_force(work: Requests, keys: np.ndarray) -> list[int]:
    """One server that always takes the waiting request of the least key."""
    arrival, size = work.work["arrival_s"], work.truth["units"]
    waiting, done, now_s = list(range(len(work))), [], 0.0
    while waiting:
        there = [r for r in waiting if arrival[r] <= now_s] or [waiting[0]]
        r = min(there, key=lambda i: (keys[i], i))
        now_s = max(now_s, arrival[r]) + size[r]
        waiting.remove(r)
        done.append(r)
    return done


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf", "priority-ageing", "priority-deadline"])
def test_one_server_serves_by_key(order: str) -> None:
    work = overloaded()
    w = work.work
    keys = {
        "fcfs": w["arrival_s"],
        "sjf": w["units"],
        "edf": w["deadline_s"],
        "priority-ageing": w["arrival_s"] - 30.0 * w["priority"],
        "priority-deadline": np.minimum(w["deadline_s"], w["arrival_s"] + 60.0) - 60.0 * w["priority"],
    }
    assert list(served(work, f"round-robin+{order}")) == by_brute_force(work, keys[order])


def test_with_ageing_nobody_starves_and_with_strict_priority_somebody_does() -> None:
    """Twice the load that the server can take, for ever: rank must not decide alone."""
    work, weight_s = overloaded(800), 5.0
    arrival, rank = work.work["arrival_s"], work.work["priority"]

    def most_overtaken(spec: str) -> float:
        """How much later than a request something arrived that was served before it, at most."""
        latest = np.maximum.accumulate(arrival[served(work, spec)])
        return float((latest - arrival[served(work, spec)]).max())

    assert most_overtaken(f"round-robin+priority-ageing(weight_s={weight_s})") <= weight_s * (
        rank.max() - rank.min()
    )
    assert most_overtaken("round-robin+priority-ageing(weight_s=1e6)") > 100.0


def test_least_laxity_is_the_least_at_the_time_of_each_choice() -> None:
    """The key is final, the laxity is not: whoever starts has the least laxity of those that wait then."""
    work = overloaded()
    w, size = work.work, work.truth["units"]
    start_s = run(cluster(1), work, Options(), *find("round-robin+least-laxity")).requests["start_s"]
    choices = 0
    for r in np.argsort(start_s):
        now_s = start_s[r]
        waiting = (w["arrival_s"] < now_s) & (start_s >= now_s)
        laxity_s = np.where(waiting, w["deadline_s"] - now_s - size, np.inf)
        if waiting.sum() > 1:
            assert r == np.argmin(laxity_s)
            choices += 1
    assert choices > 300


def test_laxity_begins_a_long_request_in_time_and_edf_does_not() -> None:
    """At 1 s wait: 10 s of work due at 12, 1 s due at 9. By deadline the long one ends at 12, by laxity too;

    with 1.5 s more of the short one by deadline it ends at 12.5, too late, by laxity both end in time.
    """
    work = asked(cluster(1), [0.0, 0.1, 0.2], [1.0, 10.0, 1.5], deadline_s=[1.0, 12.0, 13.0])
    work.work["deadline_s"][2] = 11.9
    finish_s = {
        order: run(cluster(1), work, Options(), *find(f"round-robin+{order}")).requests["finish_s"]
        for order in ("edf", "least-laxity")
    }
    assert finish_s["edf"].tolist() == [1.0, 12.5, 2.5]
    assert finish_s["least-laxity"].tolist() == [1.0, 11.0, 12.5]


def test_classes_come_before_deadlines_and_deadlines_count_within_a_class() -> None:
    desk, order = Desk(cluster(1), find("random")[0]), PriorityDeadline(level_s=60.0)

    def key(arrival_s: float, priority: int, deadline_s: float) -> float:
        desk.work["arrival_s"], desk.work["priority"], desk.work["deadline_s"] = (
            arrival_s,
            priority,
            deadline_s,
        )
        return desk.key(order)

    assert key(5.0, 1, np.inf) == key(5.0, 1, 65.0) == 5.0
    assert key(5.0, 1, np.inf) <= key(5.0, 0, 5.0)  # together: class first, whatever the deadlines
    assert key(20.0, 1, 30.0) < key(5.0, 1, 31.0)  # one class: the earlier deadline, whenever it arrived
    assert key(100.0, 1, 110.0) > key(5.0, 0, 40.0)  # a long wait outweighs the class
    assert key(5.0 + 2 * 60.0, 1, 5.0 + 2 * 60.0) >= key(5.0, 0, np.inf)  # after two levels for certain


def test_with_deadlines_nobody_is_overtaken_by_later_arrivals_than_said() -> None:
    work, level_s = overloaded(800), 5.0
    arrival, rank = work.work["arrival_s"], work.work["priority"]
    work.work["deadline_s"] = arrival + np.random.default_rng(1).uniform(0.0, level_s, len(work))
    order = served(work, f"round-robin+priority-deadline(level_s={level_s})")
    latest = np.maximum.accumulate(arrival[order])
    late_s = latest - arrival[order]
    assert 2 * level_s < late_s.max() <= level_s * (rank.max() - rank.min() + 1)


@pytest.mark.parametrize("level", ["0.0", "-1.0", "1e999"])
def test_level_out_of_range_is_named(level: str) -> None:
    with pytest.raises(UsageError, match=r"priority-deadline\.level_s"):
        find(f"random+priority-deadline(level_s={level})")


@pytest.mark.parametrize("weight", ["-1.0", "1e999"])
def test_weight_out_of_range_is_named(weight: str) -> None:
    with pytest.raises(UsageError, match=r"priority-ageing\.weight_s"):
        find(f"random+priority-ageing(weight_s={weight})")
