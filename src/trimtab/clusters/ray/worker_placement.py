"""Where the workers of pools go: machines, what a worker reserves there, and whether all fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.clusters.ray.connection import Machine
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageNode

LEAST_CPU: Final = 0.1  # of a worker whose pool has no CPU: Ray places those without any anywhere
HERE: Final = ("", "local")  # names of the machine that the host is connected to
_GIB: Final = 1 << 30
_RAY_NAMES: Final = {"cpu": "CPU", "gpu": "GPU", "memory_gib": "memory"}


def pools_of(machines: Sequence[Machine]) -> list[StageNode]:
    """A pool for each machine that has CPUs, with a worker for each of them."""
    pools = []
    for machine in machines:
        slots, gpus = int(machine.resources.get("CPU", 0.0)), machine.resources.get("GPU", 0.0)
        if slots:
            labels = dict(machine.labels)
            if "ray.io/accelerator-type" in labels:
                labels["accelerator"] = labels["ray.io/accelerator-type"]
            capacity = {"cpu": float(slots), "gpu": gpus}
            pools.append(StageNode(machine.name, slots, capacity, labels, machine=machine.name))
    return pools


def machine_of(name: str, machines: Sequence[Machine], here: str) -> Machine | None:
    """The machine of this name, or whose id begins so; None = there is none."""
    if name in HERE:
        return next((m for m in machines if m.id == here), None)
    exact = next((m for m in machines if m.name == name), None)
    return exact or next((m for m in machines if m.id.startswith(name)), None)


def share_of(node: StageNode) -> dict[str, float]:
    """The reservation of one worker of a pool, in trimtab's names: the pool's capacity in equal parts."""
    share = {name: amount / node.slots for name, amount in node.capacity.items() if amount > 0.0}
    if "cpu" not in node.capacity:
        share["cpu"] = 1.0
    share["cpu"] = math.floor(1e4 * max(share.get("cpu", 0.0), LEAST_CPU)) / 1e4  # Ray counts no finer
    if "gpu" in share:
        share["gpu"] = (
            math.floor(1e4 * share["gpu"]) / 1e4 if share["gpu"] < 1.0 else math.floor(share["gpu"])
        )
    return share


def actor_options(node: StageNode, machine: Machine) -> dict[str, Any]:
    """The options of Ray that reserve a worker's share on its machine."""
    share = share_of(node)
    return {
        "num_cpus": share["cpu"],
        "num_gpus": share.get("gpu", 0.0),
        **({"memory": int(share["memory_gib"] * _GIB)} if "memory_gib" in share else {}),
        "resources": {
            name: amount
            for name, amount in share.items()
            if name not in _RAY_NAMES and name in machine.resources
        },
    }


def check_room(nodes: Sequence[StageNode], machines: Sequence[Machine], here: str) -> None:
    """Check that all pools together fit the cluster. Raises UsageError with all that is missing."""
    missing = [
        f"{node.name}: there is no machine {node.machine}"
        for node in nodes
        if machine_of(node.machine, machines, here) is None
    ]
    missing += too_little(nodes, machines, here, {machine.id: machine.resources for machine in machines})
    if missing:
        known = ", ".join(f"{m.name} with {m.resources.get('CPU', 0.0):g} cpu" for m in machines)
        raise UsageError(
            "pools do not fit the cluster", field="nodes", value="; ".join(missing), expected=known
        )


def too_little(
    nodes: Sequence[StageNode],
    machines: Sequence[Machine],
    here: str,
    amounts: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """The shortages of machines for all pools together, by these amounts for each Ray node."""
    found = []
    for machine in machines:
        there = [node for node in nodes if machine_of(node.machine, machines, here) is machine]
        for name in sorted({name for node in there for name in share_of(node)}):
            wanted = sum(node.slots * share_of(node).get(name, 0.0) for node in there)
            has = _amount(amounts.get(machine.id, {}), name, machine)
            if wanted > has + 1e-3:
                found.append(f"{machine.name}: has {has:g} {name}, the pools there want {wanted:g}")
    return found


def _amount(amounts: Mapping[str, float], name: str, machine: Machine) -> float:
    """How much of a resource there is; of what Ray does not count on the machine, enough."""
    ray_name = _RAY_NAMES.get(name, name)
    if name not in _RAY_NAMES and name not in machine.resources:
        return math.inf
    amount = amounts.get(ray_name, 0.0)
    return amount / _GIB if name == "memory_gib" else amount
