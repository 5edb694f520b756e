"""Bindings of the extender, against a server in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest

from support.kube_objects import a_node, api_pod
from support.kubernetes.server_in_memory import ServerInMemory
from trimtab.clusters.kube.api import KubeApi
from trimtab.clusters.kube.extender import Extender
from trimtab.clusters.kube.objects import SHARE
from trimtab.errors import ApiRefused
from trimtab.policies import catalogue

NODE = "n"


def call(name: str) -> dict[str, Any]:
    """As kube-scheduler asks for a binding."""
    return {"PodNamespace": "default", "PodName": name, "PodUID": f"uid-{name}", "Node": NODE}


async def test_a_pod_that_the_mirror_has_not_heard_of_gets_its_gpu_and_never_more_than_there_is() -> None:
    server = ServerInMemory()
    extender = Extender(cast(KubeApi, server), catalogue.find("best-fit"))
    extender.ledger.reset_nodes([a_node(NODE, gpus=0, more={SHARE: "2000"})])
    for name, milli in (("a", 600), ("b", 700), ("large", 500)):
        await server.make(api_pod(name, gpus=0, more={SHARE: str(milli)}))
    await extender.bind(call("a"))
    await extender.bind(call("b"))
    assert {server.devices_of("a"), server.devices_of("b")} == {"0", "1"}
    with pytest.raises(ApiRefused, match=f"no GPU of {NODE} has 500 of {SHARE} left"):
        await extender.bind(call("large"))
    assert server.bound == ["a", "b"]
