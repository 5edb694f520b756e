"""Who only wants to know when a node is gone."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.gateway.model import Node


class Departures:
    """A listener that calls `gone(node)` and leaves the rest out."""

    def __init__(self, gone: Callable[[Node], None]) -> None:
        self._gone = gone

    def on_added(self, node: Node) -> None:
        """Nothing."""

    def on_removed(self, node: Node) -> None:
        """A listener's call."""
        self._gone(node)

    def on_switch(self, node: Node) -> None:
        """Nothing."""

    def on_models(self, node: Node) -> None:
        """Nothing."""

    def on_adapters(self, node: Node) -> None:
        """Nothing."""

    def on_capacity(self, node: Node) -> None:
        """Nothing."""
