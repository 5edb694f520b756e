"""Backends of the gateway that are pods of a real API server: ready, not ready, deleted, on other ports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.envoy import program
from support.gateway.node_world import fleet_of
from support.kubernetes.control_plane import (
    POOLS,
    ControlPlane,
    inference_pools,
    make_inference_pool,
    make_serving_pod,
    set_ready,
)
from support.picking import NamedBackend, picking
from support.waiting import until
from trimtab.gateway.app.config_mapping import pods_source
from trimtab.gateway.config.node_entries import KubernetesEntry
from trimtab.gateway.nodes.discovery import FollowedNodes
from trimtab.gateway.nodes.fleet import Fleet

pytestmark = pytest.mark.clusters
PODS, ENDPOINTS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/endpoints"


@contextlib.asynccontextmanager
async def followed(plane: ControlPlane, user: str = "gateway", **entry: Any) -> AsyncIterator[Fleet]:
    fleet = fleet_of(0)
    made = KubernetesEntry(name="chat", kubeconfig=str(plane.kubeconfig(user)), **entry)
    source = FollowedNodes(fleet, "kubernetes:chat", pods_source(made), made.template())
    source.start()
    yield fleet
    await source.close()


def urls(fleet: Fleet) -> dict[str, str]:
    """Nodes that stay."""
    present = [node for node in fleet.present() if fleet.state(node).remove_by_s == float("inf")]
    return {node.name: fleet.state(node).spec.url for node in present}


async def test_pods_by_label_follow_readiness_and_deletion(plane: ControlPlane) -> None:
    make_serving_pod(plane, "a", "10.1.0.1")
    make_serving_pod(plane, "b", "10.1.0.2", is_ready=False)
    async with followed(plane, selector="app=chat", port="http") as fleet:
        await until(lambda: urls(fleet) == {"chat-a": "http://10.1.0.1:8000"})
        set_ready(plane, "b", True)
        await until(lambda: urls(fleet).keys() == {"chat-a", "chat-b"})
        set_ready(plane, "a", False)
        await until(lambda: urls(fleet).keys() == {"chat-b"})
        set_ready(plane, "a", True)
        await until(lambda: urls(fleet).keys() == {"chat-a", "chat-b"})
        plane.call("DELETE", f"{PODS}/b", {"gracePeriodSeconds": 0})
        await until(lambda: urls(fleet).keys() == {"chat-a"})
        plane.stop("kube-apiserver")
        await until(lambda: any("stay as they are" in told for told in fleet.problems.values()))
        assert urls(fleet).keys() == {"chat-a"}
        plane.start_api_server()
        await until(lambda: not fleet.problems)


async def test_endpoints_of_a_service(plane: ControlPlane) -> None:
    def subset(*ips: str) -> dict[str, Any]:
        ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}]
        return {"addresses": [{"ip": ip} for ip in ips], "ports": ports}

    body = {"metadata": {"name": "chat"}, "subsets": [subset("10.1.0.1", "10.1.0.2")]}
    plane.call("POST", ENDPOINTS, body)
    try:
        async with followed(plane, service="chat", port="http") as fleet:
            both = {f"chat-10.1.0.{k}": f"http://10.1.0.{k}:8000" for k in (1, 2)}
            await until(lambda: urls(fleet) == both)
            assert fleet.state(fleet.present()[0]).spec.server_name == "chat.default.svc"
            plane.call("PUT", f"{ENDPOINTS}/chat", {**body, "subsets": [subset("10.1.0.2", "10.1.0.3")]})
            await until(lambda: urls(fleet).keys() == {"chat-10.1.0.2", "chat-10.1.0.3"})
    finally:
        plane.call("DELETE", f"{ENDPOINTS}/chat")


async def test_pods_of_an_inference_pool(plane: ControlPlane) -> None:
    make_serving_pod(plane, "a", "10.1.0.1")
    async with followed(plane, pool="chat") as fleet:
        await until(lambda: any("install its CRD" in told for told in fleet.problems.values()))
        with inference_pools(plane):
            await until(lambda: any("no InferencePool chat" in told for told in fleet.problems.values()))
            make_inference_pool(plane, 8000)
            await until(lambda: urls(fleet) == {"chat-a": "http://10.1.0.1:8000"})
            assert not fleet.problems
            ports = {"spec": {"targetPorts": [{"number": 8000}, {"number": 8001}]}}
            plane.call("PATCH", f"{POOLS}/chat", ports, kind="application/merge-patch+json")
            two = {f"chat-a-{port}": f"http://10.1.0.1:{port}" for port in (8000, 8001)}
            await until(lambda: urls(fleet) == two)


async def test_the_picker_serves_a_pool_behind_envoy(plane: ControlPlane, tmp_path: Path) -> None:
    program()
    make_serving_pod(plane, "a", "127.0.0.1")  # one pod, a port for each of its ranks
    with inference_pools(plane):
        async with NamedBackend("rank-0") as first, NamedBackend("rank-1") as second:
            make_inference_pool(plane, first.port, second.port)
            how: dict[str, Any] = {
                "policy": "round-robin",
                "arguments": ("--pool", "chat"),
                "environ": {"KUBECONFIG": str(plane.kubeconfig("gateway"))},
            }
            async with picking(tmp_path, first, second, **how) as made:
                await until(lambda: first.is_asked and second.is_asked, "both ranks are known")
                answers = [await made.chat() for _ in range(20)]
                assert {(one.status, one.backend) for one in answers} == {(200, "rank-0"), (200, "rank-1")}
                assert {one.node for one in answers} == {f"chat-a-{one.port}" for one in (first, second)}
                set_ready(plane, "a", False)

                async def is_refused() -> bool:
                    return (await made.chat()).status == 503

                await until(is_refused, "the pod gets no more work")


async def test_without_rights_it_says_which(plane: ControlPlane) -> None:
    async with followed(plane, "nobody", selector="app=chat") as fleet:
        await until(lambda: any('cannot list resource "pods"' in told for told in fleet.problems.values()))


def test_an_entry_names_one_thing() -> None:
    with pytest.raises(ValueError, match="exactly one of selector, service and pool"):
        KubernetesEntry(name="chat", selector="app=chat", pool="chat")
    with pytest.raises(ValueError, match="no port beside pool"):
        KubernetesEntry(name="chat", pool="chat", port=8000)
