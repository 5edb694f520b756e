"""What happens to the nodes, told to the recorder."""

from __future__ import annotations

from trimtab.gateway.model import Health, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.fleet_listener import FleetListener
from trimtab.gateway.record.recorder import Recorder
from trimtab.traces.gateway_format import NodeEvent


class NodeEvents(FleetListener):
    """A listener of the fleet. What only changes models is no event: the next head names the classes."""

    def __init__(self, fleet: Fleet, recorder: Recorder) -> None:
        self._fleet, self._recorder = fleet, recorder

    def on_added(self, node: Node) -> None:
        """A node more."""
        self._recorder.node_event(node, "added")

    def on_removed(self, node: Node) -> None:
        """It is gone."""
        self._recorder.node_event(node, "removed")

    def on_switch(self, node: Node) -> None:
        """It gets work from now on, or gets none; one that drains ends what it has."""
        if self._fleet.gets_work(node):
            what: NodeEvent = "up"
        else:
            what = "drained" if node.health is Health.DRAINING else "down"
        self._recorder.node_event(node, what)

    def on_capacity(self, node: Node) -> None:
        """It takes more requests at a time, or fewer."""
        self._recorder.node_event(node, "capacity")
