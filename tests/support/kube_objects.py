"""Nodes and pods as an API server sends them, for tests without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.kubernetes.control_plane import hollow_node, pod
from trimtab.clusters.kube.objects import RESOURCES, Node, Pod, PodLedger, node_of, pod_of


def api_pod(name: str, **given: Any) -> dict[str, Any]:
    """A pod as the server sends it."""
    made = pod(name, **given)
    named = {"uid": f"uid-{name}", "namespace": "default", "creationTimestamp": "2026-01-02T03:04:05Z"}
    return made | {"metadata": made["metadata"] | named}


def a_pod(name: str, **given: Any) -> Pod:
    return pod_of(api_pod(name, **given))


def a_node(name: str, *, spec: Mapping[str, Any] | None = None, **given: Any) -> Node:
    node, status = hollow_node(name, **given)
    return node_of(node | status | {"spec": dict(spec or {})})


def ledger_of(*nodes: Node) -> PodLedger:
    ledger = PodLedger(RESOURCES)
    ledger.reset_nodes(nodes)
    return ledger
