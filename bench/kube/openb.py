"""Pods of openb on a generated cluster of 100 nodes: what a scheduler leaves unplaced and stranded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.kube.course import MANY, NODES, SHARE, Setting, created, start
from support.kubernetes.control_plane import ControlPlane, hollow_node, make_nodes, pod, reason_of
from trimtab.clusters.kube.api import KubeApi
from trimtab.clusters.kube.objects import RESOURCES, Pod, PodLedger, node_of, pod_of
from trimtab.clusters.placement.stranded import Stranded

MODEL = "nvidia.com/gpu.product"
WHOLE = 1000
STEADY = 4  # looks at an unchanged cluster after which a run has ended
LOOK_S = 2.0


@dataclass(frozen=True)
class Sample:
    """Nodes and pods, in the order in which they come."""

    nodes: list[tuple[dict[str, Any], dict[str, Any]]]
    pods: list[dict[str, Any]]

    @classmethod
    def drawn(cls, folder: Path, seed: int) -> Sample:
        """Nodes with GPUs, and pods until they ask for all of these GPUs."""
        pick = np.random.default_rng(seed)
        table = pl.read_csv(folder / "openb_node_list_all_node.csv.gz").filter(pl.col("gpu") > 0)
        rows = table[pick.choice(len(table), NODES, replace=False)]
        nodes = [
            hollow_node(
                f"n{i:03d}",
                gpus=0,
                cores=row["cpu_milli"] // WHOLE,
                memory_gib=row["memory_mib"] // 1024,
                labels={MODEL: row["model"]},
                more={SHARE: str(WHOLE * row["gpu"]), "pods": "500"},
            )
            for i, row in enumerate(rows.iter_rows(named=True))
        ]
        asked = pl.read_csv(folder / "openb_pod_list_default.csv.gz", infer_schema_length=None)
        asked = asked[pick.permutation(len(asked))]
        milli = (asked["num_gpu"] * asked["gpu_milli"]).cum_sum()
        asked = asked.filter(milli <= WHOLE * int(rows["gpu"].sum()))
        return cls(nodes, [_pod(f"p{i:05d}", row) for i, row in enumerate(asked.iter_rows(named=True))])


def _pod(name: str, row: dict[str, Any]) -> dict[str, Any]:
    milli = row["num_gpu"] * row["gpu_milli"]
    needs = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}
    needs |= {SHARE: str(milli)} if milli else {}
    models = str(row["gpu_spec"] or "").split("|") if row.get("gpu_spec") else []
    terms = [{"matchExpressions": [{"key": MODEL, "operator": "In", "values": models}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    more = {"affinity": {"nodeAffinity": required}} if models else {}
    return pod(name, gpus=0, more=needs, **more)


def outcome(plane: ControlPlane, setting: Setting, sample: Sample) -> dict[str, float]:
    """What became of the pods under a scheduler."""
    make_nodes(plane, sample.nodes)
    start(plane, setting)
    pods = [each | {"spec": each["spec"] | {"schedulerName": setting.name}} for each in sample.pods]
    return figures(sample, asyncio.run(_ended(plane, pods)))


async def _ended(plane: ControlPlane, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pods once the scheduler has bound each or said why not, and nothing changes any more."""
    async with await KubeApi.connect(str(plane.kubeconfig()), qps=MANY, burst=MANY) as api:
        await created(api, pods, 1)  # in order
        seen, steady = -1, 0
        while steady < STEADY:
            await asyncio.sleep(LOOK_S)
            found, _ = await api.list("/api/v1/namespaces/default/pods")
            waiting = [each for each in found if not each["spec"].get("nodeName")]
            is_same = len(waiting) == seen and all(map(reason_of, waiting))
            seen, steady = len(waiting), steady + 1 if is_same else 0
        return found


def figures(sample: Sample, found: list[dict[str, Any]]) -> dict[str, float]:
    """Pods without a node or without a device, GPUs in use, and free capacity that is of no use.

    kube-scheduler chooses no device: each share gets, in order of creation, the fullest one that has room.
    """
    ledger = PodLedger(RESOURCES)
    ledger.reset_nodes([node_of(node | status) for node, status in sample.nodes])
    stranded, unplaced, no_device = Stranded(ledger), 0, 0
    for each in sorted((pod_of(one) for one in found), key=lambda one: one.name):
        stranded.note(each)
        if not each.node_name:
            unplaced += bool(each.share_milli)
        elif _fits(ledger, each):
            ledger.hold(each, each.node_name, each.devices or ledger.choose_devices(each, each.node_name))
        else:
            no_device += 1
    total = WHOLE * sum(node.n_devices for node in ledger.nodes)
    free = sum(sum(ledger.devices_left(node.name)) for node in ledger.nodes)
    return {
        "pods": len(found),
        "gpu_pods": sum(bool(pod_of(one).share_milli) for one in found),
        "unplaced": unplaced + no_device,
        "no_device": no_device,
        "used_percent": round(100.0 * (total - free) / total, 2),
        "stranded_percent": round(100.0 * stranded.total() / total, 2),
        "free_percent": round(100.0 * free / total, 2),
    }


def _fits(ledger: PodLedger, pod: Pod) -> bool:
    return not pod.share_milli or bool(ledger.device_room(pod)[ledger.index[pod.node_name]])
