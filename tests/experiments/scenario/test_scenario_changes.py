"""What if, as short texts: each gives the scenario that its keys would give; bursts keep every request."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.scenario_changes import WhatIf, with_what_if
from trimtab.experiments.serving.serving_kind import SERVING

TINY = load_scenario("tiny")


def test_failures_and_slow_downs_are_the_keys_of_a_scenario() -> None:
    texts = WhatIf(fail=["node[3]@600+300", "fast@10+5.5"], slow=["slow-4@1e2+2x0.25", "all@0+1x0.5"])
    faults = [fault.model_dump(exclude_defaults=True) for fault in with_what_if(TINY, texts).faults]
    assert faults == [
        {"node": "slow-2", "at_s": 600.0, "duration_s": 300.0},  # fast-1, fast-2, slow-1, slow-2
        {"type": "fast", "at_s": 10.0, "duration_s": 5.5},
        {"node": "slow-4", "at_s": 100.0, "duration_s": 2.0, "factor": 0.25},
        {"at_s": 0.0, "duration_s": 1.0, "factor": 0.5},
    ]


def test_a_node_or_group_is_struck_by_its_name() -> None:
    nodes = [
        {"type": "fast", "name": "gpu-01"},
        {"type": "fast", "name": "rack", "count": 2},
        {"type": "slow"},
    ]
    cluster = type(TINY.cluster).model_validate({"types": TINY.cluster.types, "nodes": nodes})
    assert [node.name for node in cluster.each_node()] == ["gpu-01", "rack-1", "rack-2", "slow-1"]
    named = TINY.model_copy(update={"cluster": cluster})
    faults = with_what_if(named, WhatIf(fail=["gpu-01@600+300", "rack@10+5"])).faults
    assert [fault.node for fault in faults] == ["gpu-01", "rack-1", "rack-2"]
    with pytest.raises(ScenarioError, match=r"--fail: .*got 'gpu-01'.* such as gpu-01@600\+300"):
        with_what_if(named, WhatIf(fail=["gpu-01"]))


def test_two_nodes_of_one_name_are_refused() -> None:
    nodes = [{"type": "fast", "count": 2}, {"type": "slow", "name": "fast-2"}]
    with pytest.raises(ValueError, match="two nodes called fast-2, one of them of the nodes called fast-1"):
        type(TINY.cluster).model_validate({"types": TINY.cluster.types, "nodes": nodes})


def test_nodes_are_added_taken_away_and_set() -> None:
    def counts(*nodes: str) -> list[tuple[str, int]]:
        changed = with_what_if(TINY, WhatIf(nodes=nodes))
        return [(group.type, group.count) for group in changed.cluster.nodes]

    assert counts("fast=+2") == [("fast", 4), ("slow", 4)]
    assert counts("slow=-3", "fast=1") == [("fast", 1), ("slow", 1)]
    assert counts("slow=0") == [("fast", 2)]
    assert counts("slow=0", "slow=+5") == [("fast", 2), ("slow", 5)]


def test_more_nodes_leave_the_arrivals_as_they_were() -> None:
    before, after = (build(each, 0) for each in (TINY, with_what_if(TINY, WhatIf(nodes=["slow=+4"]))))
    assert after.requests.work["arrival_s"] == pytest.approx(before.requests.work["arrival_s"])
    # slots × speed: 2 × 2 + 4 × 2 = 12 before, 20 after; both classes fit every node
    assert before.offered_load / after.offered_load == pytest.approx(20 / 12)


def test_a_burst_moves_arrivals_as_worked_out_by_hand() -> None:
    plain = build(TINY, 0).requests.work["arrival_s"]
    middle_s = float(plain[150])
    changed = with_what_if(TINY, WhatIf(burst=[f"3x@{middle_s}+10"]))
    moved = build(changed, 0).requests
    expected = [
        t if t <= middle_s else middle_s + (t - middle_s) / 3 if t < middle_s + 30 else t - 20 for t in plain
    ]
    assert moved.work["arrival_s"] == pytest.approx(expected)
    assert np.all(np.diff(moved.work["arrival_s"]) >= 0)
    assert moved.truth["units"].tolist() == build(TINY, 0).requests.truth["units"].tolist()


@pytest.mark.parametrize("own", [None, 0.6])
@pytest.mark.parametrize("load", [0.3, 0.9])
def test_at_another_load_bursts_and_faults_meet_the_same_requests(own: float | None, load: float) -> None:
    """At a load k times the scenario's own everything takes a k-th of the time, from the first arrival on."""
    scenario = TINY.model_copy(update={"workload": TINY.workload.model_copy(update={"load": own})})
    first_s, middle_s = (float(build(scenario, 0).requests.work["arrival_s"][k]) for k in (0, 150))
    changed = with_what_if(scenario, WhatIf(burst=[f"3x@{middle_s}+10"], fail=["fast@20+30"]))
    plain, other = build(changed, 0), build(changed, 0, load)
    k = load / (own or build(scenario, 0).offered_load)
    arrival_s, faults = other.requests.work["arrival_s"], other.options.faults
    np.testing.assert_allclose(
        arrival_s - first_s, (plain.requests.work["arrival_s"] - first_s) / k, atol=2 * first_s, rtol=1e-9
    )
    assert faults is not None
    assert faults["start_s"] == pytest.approx(20 / k)
    assert faults["end_s"] == pytest.approx(50 / k)


def test_curves_over_load_say_what_becomes_of_set_times() -> None:
    timed = with_what_if(TINY, WhatIf(burst=["3x@5+1"], fail=["fast@20+30"]))
    (note,) = SERVING.notes(timed, [], is_swept=True)
    assert note.startswith("in the curves over load, bursts and faults at set times keep their place")
    assert SERVING.notes(TINY, [], is_swept=True) == []


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("fail", "node[6]@1+1", "node[0] to node[5]"),
        ("fail", "fats@1+1", "perhaps 'fast'"),
        ("fail", "fast@1", "node[3]@600+300"),
        ("slow", "fast@1+1", "node[3]@600+300x0.5"),
        ("slow", "fast@1+1x2", "between 0 and 1"),
        ("burst", "0.5x@1+1", "greater than 1"),
        ("burst", "3@1+1", "3x@1200+120"),
        ("nodes", "fats=1", "perhaps 'fast'"),
        ("nodes", "fast=-3", "at most 2"),
        ("nodes", "fast", "a100=+2"),
    ],
)
def test_texts_that_cannot_be_used_are_refused_with_what_can(option: str, text: str, expected: str) -> None:
    with pytest.raises(ScenarioError, match=r".") as caught:
        with_what_if(TINY, WhatIf(**{option: [text]}))
    assert expected in str(caught.value)


def test_no_node_may_be_left() -> None:
    with pytest.raises(ScenarioError, match="no node is left"):
        with_what_if(TINY, WhatIf(nodes=["fast=0", "slow=0"]))
