"""Quantities, nodes and pods of Kubernetes, the room that they leave, and which nodes may take which pods."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kube_objects import a_node, a_pod, api_pod, ledger_of
from trimtab.clusters.kube.feasibility import Feasibility
from trimtab.clusters.kube.objects import KUBERNETES, RESOURCES, SHARE, PodLedger, node_of, pod_of
from trimtab.clusters.placement.policy_choice import PolicyChoice
from trimtab.clusters.placement.stranded import Stranded
from trimtab.errors import UsageError
from trimtab.policies import catalogue
from trimtab.validation.quantities import whole

SHARES = {"gpus": 0, "more": {SHARE: "2000"}}


@pytest.mark.parametrize(
    ("text", "per", "expected"),
    [
        ("8", 1, 8),
        ("500m", 1000, 500),
        ("1.5", 1000, 1500),
        ("4Gi", 1, 4 << 30),
        ("1e3", 1, 1000),
        ("100n", 1000, 1),
        ("2k", 1, 2000),
        (".5Ki", 1, 512),
    ],
)
def test_quantities_are_whole_numbers_rounded_up(text: str, per: int, expected: int) -> None:
    assert whole(text, "cpu", per=per) == expected


@pytest.mark.parametrize("text", ["", "many", "1e", "-1", "4 Gi", "1e99", "9E18", "1Zi"])
def test_what_is_no_quantity_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"status\.allocatable"):
        whole(text, "status.allocatable[cpu]")


def test_a_node_with_an_unreadable_quantity_takes_no_pods_and_says_why() -> None:
    node = node_of({"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "eight"}}})
    ledger = ledger_of(node)
    told = Feasibility(ledger).summary(a_pod("p"))
    assert "status.allocatable[nvidia.com/gpu]: is no quantity (got 'eight')" in told


def test_a_pod_needs_what_its_containers_need_together_or_the_largest_before_them() -> None:
    given = api_pod("p")
    first = {"name": "first", "resources": {"requests": {"cpu": "3"}}}
    beside = {"name": "beside", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}
    given["spec"] |= {"initContainers": [beside, first], "overhead": {"memory": "1Gi"}}
    needs = pod_of(given).needs
    assert (needs["cpu"], needs["memory"], needs["pods"]) == (3500, 2 << 30, 1)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "device claims (gpu) are for kube-scheduler"),
        (
            {"volumes": [{"name": "d", "persistentVolumeClaim": {}}]},
            "volume claims (d) are for kube-scheduler",
        ),
    ],
)
def test_what_it_does_not_decide_about_is_refused_by_name(spec: dict[str, Any], told: str) -> None:
    assert told in a_pod("p", **spec).refusal


def test_a_share_is_a_part_of_one_gpu_or_whole_ones() -> None:
    assert (
        "1500 is neither a part of one GPU nor whole GPUs" in a_pod("p", gpus=0, more={SHARE: "1500"}).refusal
    )
    assert a_pod("p", gpus=0, more={SHARE: "3000"}).refusal == ""


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from([100, 300, 500, 1000, 2000])), max_size=40))
def test_what_is_taken_is_given_back_and_no_device_gives_more_than_it_has(
    moves: list[tuple[int, int]],
) -> None:
    """Pods come and go at random; the ledger equals one that is counted anew from those that are left."""
    nodes = [a_node("a", **SHARES), a_node("b", gpus=4)]
    ledger = ledger_of(*nodes)
    for i, milli in moves:
        uid, on_shares = f"uid-p{i}", i % 2 == 0
        if ledger.release(uid) is not None:
            continue
        one = a_pod(f"p{i}", gpus=0, more={SHARE: str(milli)}) if on_shares else a_pod(f"p{i}", gpus=1)
        able = ledger.room(one.needs) & ledger.device_room(one)
        for j in np.flatnonzero(able)[:1]:
            name = ledger.nodes[j].name
            ledger.hold(one, name, ledger.choose_devices(one, name))
    assert (ledger.free >= 0).all()
    assert all(0 <= left <= 1000 for left in ledger.devices_left("a"))
    anew = ledger_of(*nodes)
    for holding in ledger.held.values():
        anew.hold(holding.workload, holding.node_name, holding.devices)
    for name in ("cpu", "memory", SHARE, "nvidia.com/gpu", "pods"):
        assert ledger.left(name).tolist() == anew.left(name).tolist()
    assert ledger.devices_left("a") == anew.devices_left("a")


def test_pods_of_a_node_that_comes_back_are_counted_again() -> None:
    ledger = ledger_of(a_node("a", gpus=2))
    ledger.hold(a_pod("p"), "a")
    ledger.drop_node("a")
    assert len(ledger.nodes) == 0
    ledger.set_node(a_node("a", gpus=2))
    assert ledger.left("nvidia.com/gpu").tolist() == [1]


def test_taints_and_selectors() -> None:
    taint = {"taints": [{"key": "own", "value": "me", "effect": "NoExecute"}]}
    ledger = ledger_of(
        a_node("a", spec=taint), a_node("b", labels={"gen": "7"}), a_node("c", spec={"unschedulable": True})
    )
    feasible = Feasibility(ledger)

    def able(**spec: Any) -> list[bool]:
        return feasible.mask(a_pod("p", **spec)).tolist()

    assert able() == [False, True, False]
    for toleration in (
        {"operator": "Exists"},
        {"key": "own", "value": "me"},
        {"key": "own", "operator": "Exists"},
    ):
        assert able(tolerations=[toleration])[0]
    assert not able(tolerations=[{"key": "own", "value": "me", "effect": "NoSchedule"}])[0]
    assert able(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])[2]
    expressions = {"Gt": [True, "6"], "Lt": [False, "6"], "In": [True, "7"], "NotIn": [False, "7"]}
    for operator, (expected, value) in expressions.items():
        term = {"matchExpressions": [{"key": "gen", "operator": operator, "values": [value]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        assert able(affinity={"nodeAffinity": required})[1] is expected, operator


def test_a_spread_is_kept_by_brute_force() -> None:
    zone = "zone"
    nodes = [a_node(f"n{i}", labels={zone: f"z{i % 3}"}) for i in range(6)]
    ledger = ledger_of(*nodes)
    feasible = Feasibility(ledger)
    spread = {"maxSkew": 2, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule"}
    spread["labelSelector"] = {"matchLabels": {"app": "x"}}
    counts: Counter[str] = Counter({f"z{i}": 0 for i in range(3)})
    for i in range(9):
        one = a_pod(f"p{i}", labels={"app": "x"}, topologySpreadConstraints=[spread])
        able = feasible.mask(one)
        least = min(counts.values())
        assert able.tolist() == [counts[n.labels[zone]] + 1 - least <= 2 for n in nodes]
        name = nodes[int(np.flatnonzero(able)[0])].name
        ledger.hold(one, name)
        counts[ledger.nodes[ledger.index[name]].labels[zone]] += 1
    assert max(counts.values()) - min(counts.values()) <= 2


@pytest.mark.parametrize(
    "policy", ["best-fit", "fragmentation-gradient", "least-connections", "power-of-d+edf"]
)
def test_a_policy_ranks_nodes_that_may_take_a_pod_only(policy: str) -> None:
    ledger = ledger_of(*(a_node(f"n{i}", gpus=4) for i in range(5)))
    choice = PolicyChoice(catalogue.find(policy), ledger, KUBERNETES, mode="interpreted")
    able = np.array([False, True, False, True, False])
    for i in range(8):
        ranked = choice.rank(a_pod(f"p{i}"), able)
        assert ranked
        assert set(ranked) <= {1, 3}
        name = ledger.nodes[ranked[0]].name
        ledger.hold(a_pod(f"p{i}"), name, is_assumed=True)
        choice.placed(a_pod(f"p{i}"), name)
    assert ledger.left("nvidia.com/gpu").tolist() == [4, 0, 4, 0, 4]


def test_best_fit_fills_the_fullest_and_most_free_the_emptiest() -> None:
    for policy, expected in (("best-fit", "b"), ("most-free", "a")):
        ledger = ledger_of(a_node("a"), a_node("b"))
        choice = PolicyChoice(catalogue.find(policy), ledger, KUBERNETES, mode="interpreted")
        ledger.hold(a_pod("there", gpus=3), "b")
        choice.placed(a_pod("there", gpus=3), "b")
        ranked = choice.rank(a_pod("p"), np.ones(2, np.bool_))
        assert ledger.nodes[ranked[0]].name == expected


def test_an_image_that_a_node_has_is_near_for_a_policy_of_locality() -> None:
    given = {"metadata": {"name": "b"}, "status": {
        "images": [{"names": ["none"], "sizeBytes": 4 << 30}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
    }}  # fmt: skip
    ledger = ledger_of(a_node("a"), node_of(given))
    choice = PolicyChoice(catalogue.find("least-expected-completion"), ledger, KUBERNETES, mode="interpreted")
    assert ledger.nodes[choice.rank(a_pod("p"), np.ones(2, np.bool_))[0]].name == "b"


def test_a_policy_that_simulates_is_refused() -> None:
    with pytest.raises(UsageError, match="Kubernetes scheduler never provides it"):
        PolicyChoice(catalogue.find("what-if"), PodLedger(RESOURCES), KUBERNETES)


def test_what_is_stranded_is_counted_by_hand() -> None:
    """One kind asks for 700 of one device: 300 + 1000 are free, of which 300 are of no use to it."""
    ledger = ledger_of(a_node("a", **SHARES))
    stranded = Stranded(ledger)
    one = a_pod("p", gpus=0, more={SHARE: "700"})
    stranded.note(one)
    assert stranded.total() == 0.0
    assert stranded.growth(one, 0) == 300.0
    ledger.hold(one, "a", (0,))
    assert stranded.total() == 300.0
    assert ledger.devices_left("a") == (300, 1000)
