"""The cost index against its formula, worked out by hand."""

from __future__ import annotations

import numpy as np

from support.builders import cluster
from support.dispatch_by_hand import Desk
from trimtab.domain.view import empty_plan
from trimtab.policies import find

UNRELATED = cluster(3, types=3, speeds=[1, 2, 4], models=1, load_s=8.0)  # loads take 8, 4, 2 s


def at_work(spec: str, busy_s: list[float], units: float = 4.0) -> Desk:
    """Nodes with so many seconds of work each; none holds the model that is asked for but node 0."""
    desk = Desk(UNRELATED, find(spec)[0])
    desk.work["units"], desk.work["model_idx"], desk.work["estimate_s"] = units, 0, units / 4
    desk.state.resident[:, 0] = [1, 0, 0]
    for j, seconds in enumerate(busy_s):
        if seconds:
            desk.set(j, in_flight=1, running=1, backlog_s=seconds)
    return desk


def test_with_a_free_slot_the_price_of_time_is_nothing() -> None:
    assert at_work("cost-index(w_work=9.0,w_wait=0.0)", [0, 0, 0]).decide() == [2, 0, 1]  # 3, 4, 6


def test_waits_weigh_more_than_service() -> None:
    desk = at_work("cost-index(w_work=0.0,w_wait=0.0)", [0, 0, 0.5])
    assert desk.decide() == [2, 0, 1]  # 3.5, 4, 6
    desk = at_work("cost-index(w_work=0.0,w_wait=2.0)", [0, 0, 0.6])
    assert desk.decide() == [0, 2, 1]  # 4, 3.6 + 1.2 = 4.8, 6


def test_the_more_work_waits_the_dearer_is_node_time() -> None:
    waits = [3.0, 2.0, 2.0]  # q = 2 / 1
    own = [4.0, 6.0, 3.0]
    desk = at_work("cost-index(w_work=1.0,w_wait=0.0)", waits)
    scores = [w + o + 2.0 * o for w, o in zip(waits, own, strict=True)]  # 15, 20, 11
    assert desk.decide() == sorted(range(3), key=scores.__getitem__)
    desk = at_work("cost-index(w_work=0.0,w_excess=1.0,w_wait=0.0)", waits)
    excess = [3.0, 1.0, 0.0]
    scores = [w + o + 2.0 * e for w, o, e in zip(waits, own, excess, strict=True)]  # 13, 10, 5
    assert desk.decide() == sorted(range(3), key=scores.__getitem__) == [2, 1, 0]


def test_price_sends_work_to_cheap_nodes() -> None:
    desk = at_work("cost-index(w_wait=0.0,w_price=1000.0)", [0, 0, 0])
    usd = [4.0 * 1 / 3.6, 6.0 * 2 / 3.6, 3.0 * 3 / 3.6]  # thousandths of a dollar
    scores = [o + u for o, u in zip([4.0, 6.0, 3.0], usd, strict=True)]  # 5.1, 9.3, 5.5
    assert desk.decide() == sorted(range(3), key=scores.__getitem__) == [0, 2, 1]


def test_a_plan_replaces_the_weights() -> None:
    desk = at_work("cost-index", [0, 0, 0])
    assert desk.decide() == [2, 0, 1]
    desk.follow(empty_plan()._replace(params=np.array([0.0, 0.0, 0.0, 1000.0])))
    assert desk.decide() == [0, 2, 1]
