"""`trimtab kube scheduler` against a real API server, as the user that deploy/kube/rbac.yaml describes."""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.error
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.control_plane import (
    ControlPlane,
    define,
    gpus_by_node,
    hollow_node,
    make_nodes,
    make_pods,
    nodes_by_pod,
    pod,
    pods_of,
    ready,
    reason_of,
    set_status,
)
from support.kubernetes.trimtab_process import Trimtab, events
from support.waiting import wait_until
from trimtab.traces.gateway_recording import open_recording, read_requests

pytestmark = pytest.mark.clusters


def nodes(plane: ControlPlane, count: int, gpus: int = 8, **more: Any) -> None:
    make_nodes(plane, [hollow_node(f"n{i}", gpus=gpus, **more) for i in range(count)])


def bound(plane: ControlPlane) -> dict[str, str]:
    return {name: node for name, node in nodes_by_pod(plane).items() if node}


def reasons(plane: ControlPlane) -> dict[str, str]:
    return {p["metadata"]["name"]: reason_of(p) for p in pods_of(plane) if not p["spec"].get("nodeName")}


def test_never_over_committed_with_a_restart_a_second_copy_and_a_dead_node(
    plane: ControlPlane, trimtab: Trimtab
) -> None:
    nodes(plane, 10)
    trimtab.scheduler("first")
    trimtab.scheduler("second", is_first=False)
    sizes = [1 + i % 4 for i in range(60)]  # 150 GPUs for 80
    make_pods(plane, [pod(f"a{i}", gpus=size) for i, size in enumerate(sizes[:20])])
    wait_until(lambda: len(bound(plane)) == 20)
    make_pods(plane, [pod(f"b{i}", gpus=size) for i, size in enumerate(sizes[20:30])])
    plane.stop("first", signal.SIGKILL)  # in the middle of bindings
    set_status(plane, "n3", {"status": {"conditions": [ready(False)]}})
    plane.call("DELETE", "/api/v1/nodes/n4")
    before = set(bound(plane))
    make_pods(plane, [pod(f"c{i}", gpus=size) for i, size in enumerate(sizes[30:])])
    wait_until(lambda: "scheduling pods" in trimtab.log("second"), timeout_s=90)
    wait_until(lambda: reasons(plane), lambda found: found and all(found.values()))
    taken = gpus_by_node(plane)
    assert all(count <= 8 for count in taken.values()), taken
    late = {node for name, node in bound(plane).items() if name not in before}
    assert late
    assert not late & {"n3", "n4"}
    left = sum(8 - count for node, count in taken.items() if node not in ("n3", "n4"))
    assert left < min(sizes[int(name[1:]) + {"a": 0, "b": 20, "c": 30}[name[0]]] for name in reasons(plane))
    assert all("Insufficient nvidia.com/gpu" in why for why in reasons(plane).values())


def test_another_copy_acts_once_the_first_has_ended(plane: ControlPlane, trimtab: Trimtab) -> None:
    nodes(plane, 1)
    trimtab.scheduler("first")
    trimtab.scheduler("second", is_first=False)
    plane.stop("first", signal.SIGTERM)  # it gives its Lease back: no need to wait for its end
    wait_until(lambda: "scheduling pods" in trimtab.log("second"), timeout_s=10)


def test_a_copy_that_slept_while_another_began_binds_nothing_and_ends(
    plane: ControlPlane, trimtab: Trimtab
) -> None:
    nodes(plane, 1)
    trimtab.scheduler("first")
    trimtab.scheduler("second", is_first=False)
    first = plane.processes["first"]
    first.send_signal(signal.SIGSTOP)
    wait_until(lambda: "scheduling pods" in trimtab.log("second"), timeout_s=60)
    make_pods(plane, [pod(f"p{i}", gpus=3) for i in range(4)])
    wait_until(lambda: len(bound(plane)) == 2)
    first.send_signal(signal.SIGCONT)
    assert first.wait(30) == 1
    assert "holds the Lease trimtab-scheduler now" in trimtab.log("first")
    assert len(bound(plane)) == 2


def test_gangs_are_bound_as_a_whole_or_not_at_all(plane: ControlPlane, trimtab: Trimtab) -> None:
    nodes(plane, 4)
    trimtab.scheduler()
    gangs = {f"g{k}": 3 for k in range(6)}  # of 12 GPUs each; two fit

    def of_gang(name: str, count: int, least: int, gpus: int = 4) -> list[dict[str, Any]]:
        annotations = {"trimtab.io/gang": name, "trimtab.io/gang-min": str(least)}
        return [pod(f"{name}-{i}", gpus=gpus, annotations=annotations) for i in range(count)]

    interleaved = [of_gang(name, count, 3)[i] for i in range(3) for name, count in gangs.items()]
    make_pods(plane, interleaved)
    make_pods(plane, of_gang("short", 2, 3, gpus=1))
    wait_until(lambda: reasons(plane), lambda found: len(found) == 14 and all(found.values()))
    whole = Counter(name.rpartition("-")[0] for name in bound(plane))
    assert set(whole.values()) == {3}
    assert len(whole) == 2
    wait_until(lambda: reasons(plane)["short-0"] == "gang short has 2 of at least 3 pods")
    waiting = next(name for name in reasons(plane) if name.startswith("g"))
    told = "of at least 3 pods fit; the next: 0/4 nodes are available"
    wait_until(lambda: told in reasons(plane)[waiting])
    assert max(gpus_by_node(plane).values()) <= 8


def test_gangs_of_a_pod_group(plane: ControlPlane, trimtab: Trimtab) -> None:
    group = "scheduling.x-k8s.io"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    folder = f"/apis/{group}/v1alpha1/namespaces/default/podgroups"
    define(plane, {"metadata": {"name": f"podgroups.{group}"}, "spec": spec}, folder)
    try:
        made = {"apiVersion": f"{group}/v1alpha1", "kind": "PodGroup", "metadata": {"name": "whole"}}
        plane.call("POST", folder, made | {"spec": {"minMember": 2}})
        nodes(plane, 1)
        trimtab.scheduler()
        labels = {f"{group}/pod-group": "whole"}
        make_pods(plane, [pod("one", labels=labels), pod("lost", labels={f"{group}/pod-group": "none"})])
        wait_until(lambda: reasons(plane), lambda found: len(found) == 2 and all(found.values()))
        assert reasons(plane)["one"] == "gang whole has 1 of at least 2 pods"
        assert reasons(plane)["lost"].startswith("PodGroup none is not there")
        make_pods(plane, [pod("two", labels=labels)])
        wait_until(lambda: set(bound(plane)) == {"one", "two"})
    finally:
        plane.call("DELETE", f"{crds}/podgroups.{group}")


def test_what_pods_demand_of_nodes_is_kept(plane: ControlPlane, trimtab: Trimtab) -> None:
    make_nodes(
        plane,
        [
            hollow_node("tainted"),
            hollow_node("cordoned"),
            hollow_node("west", labels={"topology.kubernetes.io/zone": "west", "fast": "yes"}),
            hollow_node("east", labels={"topology.kubernetes.io/zone": "east"}),
        ],
    )
    taint = {"spec": {"taints": [{"key": "own", "value": "me", "effect": "NoSchedule"}]}}
    for name, patch in (("tainted", taint), ("cordoned", {"spec": {"unschedulable": True}})):
        plane.call("PATCH", f"/api/v1/nodes/{name}", patch, kind="application/strategic-merge-patch+json")
    trimtab.scheduler()
    zone = "topology.kubernetes.io/zone"
    spread = {"maxSkew": 1, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule"}
    spread["labelSelector"] = {"matchLabels": {"app": "spread"}}
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "apart"}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    expressions = [
        {"key": zone, "operator": "NotIn", "values": ["west"]},
        {"key": zone, "operator": "Exists"},
    ]
    fields = {required: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    make_pods(
        plane,
        [
            pod("tolerant", tolerations=[{"key": "own", "operator": "Exists"}], nodeSelector={
                "kubernetes.io/hostname": "tainted"
            }),
            pod("selected", nodeSelector={"fast": "yes"}),
            pod("affine", affinity={"nodeAffinity": fields}),
            pod("nowhere", nodeSelector={"kubernetes.io/hostname": "tainted"}),
            pod("claims", volumes=[claim]),
            pod("odd", annotations={"trimtab.io/gang-min": "many"}),
            *(pod(f"s{i}", labels={"app": "spread"}, topologySpreadConstraints=[spread]) for i in range(4)),
            *(pod(f"a{i}", labels={"app": "apart"}, affinity={"podAntiAffinity": {required: [apart]}})
              for i in range(3)),
        ],
    )  # fmt: skip
    wait_until(lambda: reasons(plane), lambda found: len(found) == 4 and all(found.values()))
    where = nodes_by_pod(plane)
    assert (where["tolerant"], where["selected"], where["affine"]) == ("tainted", "west", "east")
    assert Counter(where[f"s{i}"] for i in range(4)) == {"west": 2, "east": 2}
    assert sorted(where[f"a{i}"] for i in range(3)) == ["", "east", "west"]
    told = reasons(plane)
    assert told["nowhere"] == (
        "0/4 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had taint {own: me}, that the pod didn't tolerate, 1 node(s) were unschedulable."
    )
    assert "volume claims (data) are for kube-scheduler" in told["claims"]
    assert "trimtab.io/gang-min: 'many' is no count" in told["odd"]
    wait_until(
        lambda: {name for name, _ in events(plane, "FailedScheduling")} >= {"nowhere", "claims", "odd"}
    )
    wait_until(
        lambda: ("selected", "Successfully assigned default/selected to west") in events(plane, "Scheduled")
    )


def make_priorities(plane: ControlPlane) -> None:
    for name, value in (("low", 1), ("high", 100)):
        with contextlib.suppress(urllib.error.HTTPError):  # another test made it
            made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            plane.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", made | {"value": value})


def test_a_gang_preempts_only_where_no_budget_keeps_a_victim(plane: ControlPlane, trimtab: Trimtab) -> None:
    make_priorities(plane)
    nodes(plane, 2, gpus=1)
    trimtab.scheduler("scheduler", "--preempt")
    make_pods(plane, [pod(f"low{i}", labels={"no": str(i)}, priorityClassName="low") for i in range(2)])
    wait_until(lambda: len(bound(plane)) == 2)
    pods, budgets = (
        "/api/v1/namespaces/default/pods",
        "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets",
    )
    running = {"status": {"phase": "Running", "conditions": [ready(True)]}}
    for name in bound(plane):  # a budget keeps no pod that has not begun
        plane.call("PATCH", f"{pods}/{name}/status", running, kind="application/strategic-merge-patch+json")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"no": "1"}}}
    plane.call("POST", budgets, {"metadata": {"name": "keeps"}, "spec": spec})
    told = {"trimtab.io/gang": "g", "trimtab.io/gang-min": "2"}
    make_pods(plane, [pod(f"g{i}", annotations=told, priorityClassName="high") for i in range(2)])
    wait_until(lambda: events(plane, "FailedPreemption"))
    assert all(why.startswith("default/low1: ") for _, why in events(plane, "FailedPreemption"))
    assert not any("deletionTimestamp" in each["metadata"] for each in pods_of(plane))
    assert bound(plane).keys() == {"low0", "low1"}
    plane.call("DELETE", f"{budgets}/keeps")
    plane.call(
        "PATCH",
        "/api/v1/nodes/n0",
        {"metadata": {"labels": {"new": "yes"}}},
        kind="application/merge-patch+json",
    )
    wait_until(lambda: {name for name, _ in events(plane, "Preempted")} == {"low0", "low1"})
    assert bound(plane).keys() == {"low0", "low1"}
    for name in ("low0", "low1"):  # no kubelet: whoever would end them is missing
        plane.call("DELETE", f"{pods}/{name}", {"gracePeriodSeconds": 0})
    wait_until(lambda: bound(plane).keys() == {"g0", "g1"})


def test_the_more_urgent_pod_comes_first_and_preempts_only_where_asked(
    plane: ControlPlane, trimtab: Trimtab
) -> None:
    make_priorities(plane)
    nodes(plane, 1)
    trimtab.scheduler("plain")
    make_pods(plane, [pod(f"low{i}", gpus=4, priorityClassName="low") for i in range(2)])
    wait_until(lambda: len(bound(plane)) == 2)
    make_pods(plane, [pod("later", gpus=4, priorityClassName="low")])
    make_pods(plane, [pod("urgent", gpus=4, priorityClassName="high")])
    wait_until(lambda: reasons(plane), lambda found: len(found) == 2 and all(found.values()))
    plane.call("DELETE", "/api/v1/namespaces/default/pods/low0", {"gracePeriodSeconds": 0})
    wait_until(lambda: bound(plane).keys() == {"urgent", "low1"})
    plane.stop("plain", signal.SIGTERM)
    make_pods(plane, [pod("urgent2", gpus=4, priorityClassName="high")])
    trimtab.scheduler("preempting", "--preempt")
    wait_until(lambda: [name for name, _ in events(plane, "Preempted")])
    assert [name for name, _ in events(plane, "Preempted")] == ["low1"]
    for name in ("low1",):  # no kubelet: whoever would end it is missing
        with contextlib.suppress(urllib.error.HTTPError):
            plane.call("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})
    wait_until(lambda: bound(plane).keys() == {"urgent", "urgent2"})


def test_shares_of_gpus_are_of_one_device_each_and_are_recorded(
    plane: ControlPlane, trimtab: Trimtab, tmp_path: Path
) -> None:
    share = "trimtab.io/gpu-milli"
    make_nodes(plane, [hollow_node("n0", gpus=0, more={share: "2000"})])
    trimtab.scheduler("scheduler", "--record", str(tmp_path / "trace"))
    sizes = [600, 700, 400, 300]  # on two GPUs: 600 + 400, 700 + 300
    make_pods(plane, [pod(f"p{i}", gpus=0, more={share: str(size)}) for i, size in enumerate(sizes[:2])])
    wait_until(lambda: len(bound(plane)) == 2)
    make_pods(plane, [pod("large", gpus=0, more={share: "500"})])  # 700 are left, 400 on one GPU
    wait_until(lambda: reasons(plane).get("large"))
    assert reasons(plane)["large"] == f"0/1 nodes are available: 1 Insufficient {share} on one device."
    make_pods(plane, [pod(f"p{i}", gpus=0, more={share: str(sizes[i])}) for i in (2, 3)])
    wait_until(lambda: len(bound(plane)) == 4)
    devices = {
        p["metadata"]["name"]: p["metadata"].get("annotations", {}).get("trimtab.io/devices")
        for p in pods_of(plane)
    }
    assert devices["p0"] == devices["p2"] != devices["p1"] == devices["p3"]
    plane.stop("scheduler", signal.SIGTERM)
    table, _ = read_requests(open_recording(tmp_path / "trace"))
    assert sorted(table["outcome"]) == ["refused", *["unknown"] * 4]  # one waits, four run


def test_an_api_server_that_is_gone_for_a_while_is_waited_for(plane: ControlPlane, trimtab: Trimtab) -> None:
    nodes(plane, 10)
    trimtab.scheduler()
    make_pods(plane, [pod(f"a{i}") for i in range(40)])
    plane.stop("kube-apiserver")  # in the middle of bindings
    time.sleep(20.0)  # longer than a Lease lasts
    plane.start_api_server()
    make_pods(plane, [pod(f"b{i}") for i in range(20)])
    wait_until(lambda: len(bound(plane)) == 60, timeout_s=90)
    assert max(gpus_by_node(plane).values()) <= 8
    told = Counter(name for name, _ in events(plane, "Scheduled"))
    assert set(told.values()) <= {1}
    assert not trimtab.has_ended("scheduler")


def test_a_node_that_is_deleted_is_told_on_its_pods(plane: ControlPlane, trimtab: Trimtab) -> None:
    nodes(plane, 2)
    trimtab.scheduler()
    make_pods(plane, [pod(f"p{i}", gpus=8) for i in range(2)])
    wait_until(lambda: len(bound(plane)) == 2)
    plane.call("DELETE", "/api/v1/nodes/n1")
    on_it = next(name for name, node in bound(plane).items() if node == "n1")
    told = [(on_it, "node n1 was deleted; the pod is bound to it")]
    wait_until(lambda: events(plane, "NodeGone"), lambda found: found == told)
    make_pods(plane, [pod("later", gpus=1)])
    wait_until(lambda: reasons(plane).get("later"))
    assert reasons(plane)["later"] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_a_pod_that_another_scheduler_bound_is_left_to_it(plane: ControlPlane, trimtab: Trimtab) -> None:
    nodes(plane, 2, gpus=2)
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    for i in range(2):  # one scheduler's accounting has to see what another one binds
        make_pods(plane, [pod(f"theirs{i}", scheduler="other")])
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": f"theirs{i}"}, "target": target}
        plane.call("POST", f"/api/v1/namespaces/default/pods/theirs{i}/binding", body)
    trimtab.scheduler()
    make_pods(plane, [pod(f"ours{i}") for i in range(3)])
    wait_until(lambda: reasons(plane), lambda found: len(found) == 1 and all(found.values()))
    assert gpus_by_node(plane) == {"n0": 2, "n1": 2}
