"""Selection by trees against a scan over all nodes, after any history of changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.dispatch_by_hand import Desk
from trimtab.policies import find
from trimtab.policies.shared.waits import OVERDUE_FRAC

MIXED = [1, 2, 3, 1, 2]
CLUSTERS = {
    "one node": cluster(1),
    "equal nodes": cluster(9, slots=2),
    "types and slots": cluster(
        13, types=3, slots=[MIXED[j % 5] for j in range(13)], classes=2, unserved=[(1, 0)]
    ),
}
# Sums of tenths differ in the last bit by their order: scores that collide only once they are rounded.
SECONDS = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7]), max_size=4).map(sum)
CHANGE = st.fixed_dictionaries(
    {"j": st.integers(0, 12), "outstanding_s": SECONDS, "in_flight": st.integers(0, 3)},
    optional={
        "up": st.integers(0, 1),
        "room": st.integers(-1, 2),
        "backlog_s": SECONDS,
        "anchor_s": SECONDS,
    },
)


def able(desk: Desk) -> list[int]:
    nodes, c = desk.nodes, desk.work["class_idx"][0]
    served = np.isfinite(desk.cluster.fixed_s[c, nodes["type_idx"]])
    return [j for j in range(len(nodes)) if nodes["up"][j] and nodes["room"][j] > 0 and served[j]]


def own_s(desk: Desk, j: int) -> float:
    c, g = desk.work["class_idx"][0], desk.nodes["type_idx"][j]
    return float(desk.cluster.fixed_s[c, g] + desk.cluster.unit_s[c, g] * desk.work["units"][0])


def wait_in_full(desk: Desk, j: int) -> float:
    return (desk.nodes["outstanding_s"][j] + own_s(desk, j)) / desk.nodes["slots"][j]


def work_left(desk: Desk, j: int) -> float:
    """Per slot. Nodes without a free slot are never done early: a share of overdue work remains."""
    node = desk.nodes[j]
    left_s = node["anchor_s"] + node["backlog_s"] / node["slots"] - desk.state.contexts["now_s"][0]
    if left_s > 0.0 or node["in_flight"] < node["slots"]:
        return max(0.0, float(left_s))
    return OVERDUE_FRAC * float(node["outstanding_s"]) / float(node["slots"])


def wait_left(desk: Desk, j: int) -> float:
    return work_left(desk, j) + own_s(desk, j) / float(desk.nodes["slots"][j])


def connections(desk: Desk, j: int) -> float:
    return float(desk.nodes["in_flight"][j])


SCORES = {
    "least-expected-wait": wait_left,
    "least-expected-wait(aged=False)": wait_in_full,
    "lwl": work_left,
    "least-connections": connections,
}


@pytest.mark.parametrize("shape", CLUSTERS)
@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tree_decides_as_a_scan_does(name: str, shape: str, data: st.DataObject) -> None:
    desk, policy, now_s = Desk(CLUSTERS[shape], find(name)[0]), find(name)[0], 0.0
    for step, changes in enumerate(data.draw(st.lists(st.lists(CHANGE, max_size=4), min_size=1, max_size=8))):
        for change in changes:
            j = change["j"] % desk.cluster.n_nodes
            desk.set(j, **{field: value for field, value in change.items() if field != "j"})
        desk.work["class_idx"][0] = step % len(desk.cluster.class_names)
        desk.work["units"][0] = 0.1 * (1 + step)
        desk.at(now_s := now_s + data.draw(SECONDS))
        if data.draw(st.booleans()):
            desk.adopt(policy)  # in the middle of a run, with nodes as they are
        scores = sorted((SCORES[name](desk, j), j) for j in able(desk))
        got = desk.decide()
        assert got[:1] == [j for _, j in scores[:1]]
        assert [(SCORES[name](desk, j), j) for j in got] == sorted((SCORES[name](desk, j), j) for j in got)
        assert len(set(got)) == len(got)
        assert set(got) <= {j for _, j in scores}


def test_every_group_offers_its_head() -> None:
    desk = Desk(cluster(6, types=2), find("least-connections")[0])
    for j, in_flight in enumerate([3, 1, 2, 5, 2, 4]):
        desk.set(j, in_flight=in_flight)
    assert desk.decide() == [1, 2]


def test_more_groups_than_candidates_keep_the_best() -> None:
    desk = Desk(cluster(12, types=12, speeds=[1.0] * 12), find("least-connections")[0])
    for j in range(12):
        desk.set(j, in_flight=12 - j)
    assert desk.decide() == [11, 10, 9, 8, 7, 6, 5, 4]
