"""What the admin port can do to the gateway of one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trimtab.domain.errors import ConfigError, UsageError
from trimtab.runtime.gateway.admin.control import Json, Status
from trimtab.runtime.gateway.config import GatewayConfig
from trimtab.runtime.gateway.gateway import Gateway
from trimtab.runtime.gateway.observe import exposition, status
from trimtab.runtime.gateway.observe.status import NodeFigures
from trimtab.version import __version__

Reload = Callable[[], GatewayConfig]


class LocalControl:
    """Implements `admin.control.Control`. `reload` reads the configuration again; None = there is no file."""

    def __init__(self, gateway: Gateway, reload: Reload | None) -> None:
        self._gateway, self._reload = gateway, reload
        self._began_s = time.time()

    async def nodes(self) -> list[NodeFigures]:
        """All nodes."""
        gateway = self._gateway
        return status.node_figures(gateway.metrics.book(), gateway.fleet.present(), gateway.loop.time())

    async def add_node(self, spec: Json) -> NodeFigures:
        """Take in a node."""
        name = await self._gateway.register(spec)
        return next(figures for figures in await self.nodes() if figures["name"] == name)

    async def drain(self, name: str) -> bool:
        """Give it nothing new."""
        return self._on_node(name, self._gateway.fleet.drain)

    async def remove(self, name: str) -> bool:
        """Drain it, then forget it."""
        return self._on_node(name, self._gateway.fleet.remove)

    def _on_node(self, name: str, change: Callable[[str], Any]) -> bool:
        try:
            change(name)
        except ConfigError:
            return False
        return True

    async def reload(self) -> Json:
        """Read the configuration again."""
        if self._reload is None:
            raise UsageError("there is no configuration file to read again", field="reload")
        return await self._gateway.reload(self._reload())

    async def replay(self) -> Json:
        """Replay the recording under the live and the shadow policy."""
        replays = self._gateway.comparison.replays
        told = None if replays is None else await replays.run()
        if told is None:
            raise UsageError(
                "there is nothing to replay",
                field="shadow",
                expected="a shadow policy without experiment, and `record`",
            )
        return told

    async def receipt(self, request_id: str) -> Json | None:
        """The decision receipt of a request."""
        return self._gateway.receipts.find(request_id)

    async def metrics(self) -> bytes:
        """The text of `/metrics`."""
        return exposition.exposition(self._gateway.metrics.book())

    async def status(self) -> Status:
        """Everything that the dashboard shows."""
        gateway = self._gateway
        book, decider = gateway.metrics.book(), gateway.decider
        pool = decider.pools[decider.rules.default.spec]
        told: Status = {
            "version": __version__,
            "started_at": self._began_s,
            "listen": gateway.config.listen,
            "ready": gateway.is_ready,
            "draining": gateway.plane.context.draining,
            "nodes": status.node_figures(book, gateway.fleet.present(), gateway.loop.time()),
            "queue": self._queue(),
            "policy": {
                "name": pool.choice.spec,
                "decisions": decider.decisions,
                "failures": sum(p.policy_failures for p in decider.pools.values()),
                "decision_us": None,
            },
            "shadow": gateway.comparison.told(),
            "jobs": dict(gateway.job_counts),
            "notes": [*gateway.problems, *gateway.fleet.problems.values()],
        }
        told.update(status.observed(book))  # type: ignore[typeddict-item]
        return told

    def _queue(self) -> Json:
        decider = self._gateway.decider
        entries = [entry for pool in decider.pools.values() for entry in pool.entries.values()]
        waiting = [entry.exchange for entry in entries if entry.node_idx < 0]
        by_class: dict[str, int] = {}
        for exchange in waiting:
            model = exchange.facts.model if exchange.facts is not None else ""
            by_class[model] = by_class.get(model, 0) + 1
        now_s = self._gateway.loop.time()
        return {
            "length": len(waiting),
            "most": decider.rules.held_max,
            "oldest_s": max((now_s - x.arrived_s for x in waiting), default=0.0),
            "by_class": by_class,
        }
