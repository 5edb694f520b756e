"""Notifications about nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trimtab.gateway.model import Node


class FleetListener:
    """A part that follows the nodes overrides the methods that it needs. Calls must not raise or wait."""

    def on_added(self, node: Node) -> None:
        """The fleet has a new node, at the end; or a removed one is back at its old index."""

    def on_removed(self, node: Node) -> None:
        """The node is gone. Its index stays taken."""

    def on_switch(self, node: Node) -> None:
        """The node gets work from now on, or gets none: see `Fleet.gets_work`."""

    def on_tenant_released(self, node: Node, tenant: str) -> None:
        """The node is no longer withheld from this tenant: see `nodes.tenant_holds`."""

    def on_models(self, node: Node) -> None:
        """`node.models` or its adapters have changed."""

    def on_adapters(self, node: Node) -> None:
        """The node holds other adapters or models: `NodeState.held`."""

    def on_capacity(self, node: Node) -> None:
        """`node.max_requests` has changed, or the part of it that slow start allows."""

    def on_report(self, node: Node, source: str, values: Mapping[str, float]) -> None:
        """`node.reported` has other values, these from this source; none = its reports are too old."""

    def on_round_trip(self, node: Node, seconds: float) -> None:
        """A health check of the node took this long."""


class RemovalHook(FleetListener):
    """Calls `removed(node)` when a node is gone."""

    def __init__(self, removed: Callable[[Node], None]) -> None:
        self._removed = removed

    def on_removed(self, node: Node) -> None:
        """A FleetListener method."""
        self._removed(node)
