"""Nodes of a cluster system as nodes of a host, and what a program takes of one."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.clusters.placement.ledger import CPU, GIB, MEMORY, PlacementNode
from trimtab.live.program_host import HostNode, Program


def host_node(
    node: PlacementNode,
    address: str,
    labels: Mapping[str, str],
    held: Mapping[str, int],
    asked: Mapping[str, int],
    gpu: str,
) -> HostNode:
    """What others do not hold of a node.

    Args:
        node: of the system.
        address: where other nodes reach it.
        labels: of it.
        held: resource → amount that others hold.
        asked: resource → amount of a slot; empty = one GPU, or one CPU where a node has no GPU.
        gpu: the resource that its GPUs are; "" = it has none.
    """
    free = {name: max(0, amount - held.get(name, 0)) for name, amount in node.allocatable.items()}
    if asked := {name: amount for name, amount in asked.items() if amount}:
        slots = min(free.get(name, 0) // amount for name, amount in asked.items())
        free = {name: amount * slots for name, amount in asked.items()}
    else:
        slots = free.get(gpu, 0) if gpu else free.get(CPU, 0) // 1000
    capacity = {
        "cpu": free.get(CPU, 0) / 1000,
        "gpu": float(free.get(gpu, 0)),
        "memory_gib": free.get(MEMORY, 0) / GIB,
    }
    return HostNode(node.name, slots, capacity, labels, address, node.type_name, node.zone, node.usd_per_hour)


def taken_by(program: Program, node: HostNode, gpu: str) -> dict[str, int]:
    """Resource → amount that a program takes: what it reserves, and of CPU and memory that share of the node.

    Raises ConnectionError for a part of a GPU.
    """
    reserved = {name: amount for name, amount in program.reserves.items() if amount}
    shares = (amount / node.capacity[name] for name, amount in reserved.items() if node.capacity.get(name))
    share = min(1.0, max(shares, default=0.0))
    takes = {name: share * node.capacity.get(name, 0.0) for name in ("cpu", "memory_gib")} | reserved
    gpus = takes.get("gpu", 0.0)
    if gpus != int(gpus) or (gpus and not gpu):
        raise ConnectionError(
            f"{gpus:g} GPUs of {node.name} are no whole ones that it has: give the node fewer slots"
        )
    asked = {CPU: int(takes["cpu"] * 1000), MEMORY: int(takes["memory_gib"] * GIB)}
    asked |= {gpu: int(gpus)} if gpus else {}
    return {name: amount for name, amount in asked.items() if amount}
