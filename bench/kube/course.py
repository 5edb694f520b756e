"""Runs of one scheduler on a fresh control plane: how long it takes to create and bind pods."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from support.kubernetes.control_plane import ControlPlane, hollow_node, make_nodes, pod
from support.kubernetes.trimtab_process import Trimtab
from support.waiting import wait_until
from trimtab.clusters.kube.api import KubeApi

NODES, PODS = 100, 400
SHARE = "trimtab.io/gpu-milli"
CREATORS = 8  # pods that are created at a time
MANY = 1_000_000.0


@dataclass(frozen=True)
class Setting:
    """A scheduler: kube-scheduler with plugins, or trimtab with a policy."""

    policy: str = ""  # of trimtab; "" = kube-scheduler
    qps: float = 1000.0
    plugins: Mapping[str, Any] | None = None
    plugin_config: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def name(self) -> str:
        """Of its pods."""
        return "trimtab" if self.policy else "default-scheduler"


_MOST = {
    "score": {
        "disabled": [{"name": "NodeResourcesLeastAllocated"}, {"name": "NodeResourcesBalancedAllocation"}],
        "enabled": [{"name": "NodeResourcesMostAllocated", "weight": 1}],
    }
}
_GPUS = {
    "name": "NodeResourcesMostAllocated",
    "args": {"resources": [{"name": name, "weight": 1} for name in ("cpu", "memory", SHARE)]},
}
SPEEDS = {
    "kube-scheduler, 50 calls/s (its default)": Setting(qps=50.0),
    "kube-scheduler, 1,000 calls/s": Setting(),
    "trimtab, 50 calls/s (its default)": Setting("fragmentation-gradient", qps=50.0),
    "trimtab, 1,000 calls/s": Setting("fragmentation-gradient"),
}
PROFILES = {
    "kube-scheduler, default": Setting(),
    "kube-scheduler, MostAllocated": Setting(plugins=_MOST, plugin_config=(_GPUS,)),
    "trimtab, fragmentation-gradient": Setting("fragmentation-gradient"),
    "trimtab, best-fit": Setting("best-fit"),
    "trimtab, dominant-resource": Setting("dominant-resource"),
}


def start(plane: ControlPlane, setting: Setting) -> Trimtab | None:
    """Start a scheduler; for trimtab the process."""
    if not setting.policy:
        plane.start_scheduler(qps=setting.qps, plugins=setting.plugins, plugin_config=setting.plugin_config)
        return None
    trimtab = Trimtab(plane)
    limits = ("--qps", str(setting.qps), "--burst", str(2.0 * setting.qps))
    command = ("scheduler", "--policy", setting.policy, *limits)
    trimtab.start("trimtab", *command, user="admin", until="scheduling pods")
    return trimtab


def speed(plane: ControlPlane, setting: Setting) -> dict[str, float]:
    """Seconds until all pods are created and bound; of trimtab also those of a binding."""
    make_nodes(plane, [hollow_node(f"n{i}") for i in range(NODES)])
    trimtab = start(plane, setting)
    pods = [pod(f"p{i}", scheduler=setting.name) for i in range(PODS)]
    figures = asyncio.run(_timed(plane, pods))
    if trimtab is not None:
        plane.stop("trimtab", signal.SIGTERM)
        wait_until(lambda: "a binding took" in trimtab.log("trimtab"), timeout_s=10)
        middle, last = re.findall(r"([\d.]+) ms", trimtab.log("trimtab"))[-2:]
        figures |= {"bind_p50_ms": float(middle), "bind_p95_ms": float(last)}
    return figures


async def _timed(plane: ControlPlane, pods: list[dict[str, Any]]) -> dict[str, float]:
    async with await KubeApi.connect(str(plane.kubeconfig()), qps=MANY, burst=MANY) as api:
        begun_s = time.perf_counter()
        await created(api, pods, CREATORS)
        made_s = time.perf_counter() - begun_s
        path = "/api/v1/namespaces/default/pods"
        while (await api.list(path, fieldSelector="spec.nodeName="))[0]:
            await asyncio.sleep(0.02)
        return {"created_s": round(made_s, 3), "bound_s": round(time.perf_counter() - begun_s, 3)}


async def created(api: KubeApi, pods: list[dict[str, Any]], at_once: int) -> None:
    """Create pods, in order."""
    turns = asyncio.Semaphore(at_once)

    async def create(one: dict[str, Any]) -> None:
        async with turns:
            await api.post("/api/v1/namespaces/default/pods", one)

    await asyncio.gather(*(create(one) for one in pods))
