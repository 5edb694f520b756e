"""The nodes of a host as nodes of chains. Those have fixed places; some are kept for nodes that may come."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from trimtab.clusters.worker_pools import WorkerPools
from trimtab.errors import UsageError
from trimtab.live.program_host import Host, HostNode
from trimtab.live.stage_backend import StageNode

logger = logging.getLogger(__name__)

SPARE_NODES: Final = 8  # places for further nodes, of each kind


class NodePlaces:
    """Which node is at which place, and on which machine.

    Args:
        given: the nodes that a user describes; none = one for each node of the host.
        spares: places for further nodes, for each kind of the host's.

    Raises UsageError for a host without nodes, and for nodes on machines that it does not have.
    """

    def __init__(self, host: Host, given: Sequence[StageNode], spares: int) -> None:
        self._host, self._machines = host, {node.name: node for node in host.nodes()}
        self.nodes = list(given) or [pool_of(node) for node in self._machines.values()]
        if not self.nodes:
            raise UsageError("has no nodes", field="on", value=type(host).__name__, expected="one at least")
        for node in self.nodes:
            if self.machine(node) is None:
                raise UsageError(
                    "no such machine", field=f"nodes.{node.name}.machine", value=node.machine,
                    expected=f"one of {', '.join(self._machines)}",
                )  # fmt: skip
        kinds = {} if given else {_kind(node): node for node in self.nodes}
        places = [(node, k) for node in kinds.values() for k in range(spares)]
        self.vacant = set(range(len(self.nodes), len(self.nodes) + len(places)))
        self.nodes += [
            replace(node, name=f"{node.name}-place-{k}", machine="", type=node.type or node.name)
            for node, k in places
        ]
        self._is_given = bool(given)

    def machine(self, node: StageNode) -> HostNode | None:
        """Where the workers of a node run: all on this machine, if that is the host. None = it is gone."""
        if not self._host.driver_address:
            return next(iter(self._machines.values()))
        return self._machines.get(node.machine)

    def follow(self, pools: WorkerPools[Any], labels: Collection[str]) -> None:
        """Have nodes come and go. `labels`: that stages ask for."""

        def added(machine: HostNode) -> None:
            self._machines[machine.name] = machine
            for j in self._places_for(machine, labels):
                self.vacant.discard(j)
                if not self._is_given:
                    self.nodes[j] = replace(self.nodes[j], name=machine.name, machine=machine.name)
                pools.come(j)

        def changed(machine: HostNode) -> None:
            self._machines[machine.name] = machine

        def removed(machine: HostNode) -> None:
            self._machines.pop(machine.name, None)
            for j, node in enumerate(self.nodes):
                if node.machine == machine.name and j not in self.vacant:
                    self.vacant.add(j)
                    pools.go(j)

        def troubled(why: str) -> None:
            if why:
                logger.warning("which nodes there are is not known now: %s", why)

        self._host.follow(added, changed, removed, troubled)

    def _places_for(self, machine: HostNode, labels: Collection[str]) -> list[int]:
        own = [j for j in sorted(self.vacant) if self.nodes[j].machine == machine.name]
        if own or self._is_given:
            return own
        for j in sorted(self.vacant):
            if _has_room_of(machine, self.nodes[j], labels):
                return [j]
        logger.warning("node %s gets no work: it is unlike the nodes that were there at first", machine.name)
        return []


def pool_of(machine: HostNode) -> StageNode:
    """One pool of workers for all slots of a node."""
    told = machine.capacity, machine.labels, machine.type
    return StageNode(machine.name, machine.slots, *told, machine=machine.name)


def _kind(node: StageNode) -> Any:
    return node.type, node.slots, tuple(sorted(node.capacity.items()))


def _has_room_of(machine: HostNode, place: StageNode, labels: Collection[str]) -> bool:
    """Whether a machine can do what the loop expects of a place."""
    return (
        machine.slots >= place.slots
        and machine.type in ("", place.type)
        and all(machine.capacity.get(name, 0.0) >= amount for name, amount in place.capacity.items())
        and all(machine.labels.get(name) == place.labels.get(name) for name in labels)
    )
