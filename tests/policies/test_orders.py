"""Orders: their keys, and what they do to a queue."""

from __future__ import annotations

import numpy as np
import pytest

from support.builders import cluster, requests, run
from support.dispatch_by_hand import Desk
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.orders.edf import Edf
from trimtab.policies.orders.fcfs import Fcfs
from trimtab.policies.orders.priority_ageing import PriorityAgeing
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


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf", "priority-ageing"])
def test_one_server_serves_by_key(order: str) -> None:
    work = overloaded()
    w = work.work
    keys = {
        "fcfs": w["arrival_s"],
        "sjf": w["units"],
        "edf": w["deadline_s"],
        "priority-ageing": w["arrival_s"] - 30.0 * w["priority"],
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


@pytest.mark.parametrize("weight", ["-1.0", "1e999"])
def test_weight_out_of_range_is_named(weight: str) -> None:
    with pytest.raises(UsageError, match=r"priority-ageing\.weight_s"):
        find(f"random+priority-ageing(weight_s={weight})")
