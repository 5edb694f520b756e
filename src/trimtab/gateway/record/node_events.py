"""Passes changes of nodes to the recorder."""

from __future__ import annotations

from trimtab.gateway.model import Health, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.fleet_listener import FleetListener
from trimtab.gateway.record.recorder import Recorder
from trimtab.traces.gateway_format import NodeEvent


class NodeEvents(FleetListener):
    """Records added, removed and changed nodes. Changed models are not recorded: the next head has them."""

    def __init__(self, fleet: Fleet, recorder: Recorder) -> None:
        self._fleet, self._recorder = fleet, recorder

    def on_added(self, node: Node) -> None:
        """A FleetListener method."""
        self._recorder.node_event(node, "added")

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._recorder.node_event(node, "removed")

    def on_switch(self, node: Node) -> None:
        """Record that the node gets work from now on, or none. A draining node finishes its requests."""
        if self._fleet.gets_work(node):
            what: NodeEvent = "up"
        else:
            what = "drained" if node.health is Health.DRAINING else "down"
        self._recorder.node_event(node, what)

    def on_capacity(self, node: Node) -> None:
        """A FleetListener method."""
        self._recorder.node_event(node, "capacity")
