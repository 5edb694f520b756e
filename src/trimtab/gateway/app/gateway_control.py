"""Implements the admin port's operations on the gateway."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from trimtab.errors import ConfigError, UsageError
from trimtab.gateway.admin.control import Json, Status
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.app.node_changes import NodeChanges
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.job_api.job_service import JobService
from trimtab.gateway.observe import exposition, status
from trimtab.gateway.observe.status import NodeFigures
from trimtab.gateway.tenancy.run_time_keys import RunTimeKeys
from trimtab.version import __version__

Reload = Callable[[], GatewayConfig]


class GatewayControl:
    """Implements `admin.control.Control`. `reload` reads the configuration again; None = there is no file."""

    def __init__(
        self,
        gateway: GatewayCore,
        reload: Reload | None,
        service: JobService,
        changes: NodeChanges,
        keys: RunTimeKeys,
    ) -> None:
        self._gateway, self._reload, self._service, self._changes = gateway, reload, service, changes
        self._keys = keys
        self._began_s = time.time()

    async def nodes(self) -> list[NodeFigures]:
        """All nodes."""
        gateway = self._gateway
        signals, private = gateway.dispatcher.registry.signal_figures(), gateway.private.figures()
        store, now_s = gateway.metrics.store(), gateway.loop.time()
        withheld = {
            node: {name: reason for name, reason in tenants.items() if name not in private}
            for node, tenants in gateway.fleet.tenant_holds.reasons().items()
        }
        return status.node_figures(store, gateway.fleet.present(), now_s, signals, withheld)

    async def add_node(self, spec: Json) -> NodeFigures:
        """Add a node."""
        name = await self._changes.add(spec)
        return next(figures for figures in await self.nodes() if figures["name"] == name)

    async def drain(self, name: str) -> bool:
        """Give the node no new work."""
        return await self._on_node(name, self._changes.drain)

    async def undrain(self, name: str) -> bool:
        """Give the node work again."""
        return await self._on_node(name, self._changes.undrain)

    async def remove(self, name: str) -> bool:
        """Drain the node, then remove it."""
        return await self._on_node(name, self._changes.remove)

    def keys(self) -> list[Json]:
        """The keys that were made at run time."""
        return self._keys.all()

    async def make_key(self, spec: Json) -> Json:
        """Make a key."""
        return await self._keys.make(spec)

    async def revoke_key(self, name: str) -> bool:
        """Make a key invalid."""
        return await self._keys.revoke(name)

    def node_changes(self) -> list[Json]:
        """Changes of nodes by operators that no later change has undone."""
        return [change.shown() for change in self._changes.all()]

    async def _on_node(self, name: str, change: Callable[[str], Awaitable[None]]) -> bool:
        try:
            await change(name)
        except ConfigError:
            return False
        return True

    async def reload(self) -> Json:
        """Read the configuration again."""
        if self._reload is None:
            raise UsageError("there is no configuration file to read again", field="reload")
        config = self._reload()
        async with self._service.changing_chains(config) as are_new:
            done = await self._gateway.reload(config)
        if are_new:  # perhaps only their files are
            done["changed"] = sorted({*done["changed"], "chains"})
        return done | {"kept": self.node_changes()}

    async def receipt(self, request_id: str) -> Json | None:
        """The decision receipt of a request."""
        return self._gateway.decision_records.find(request_id)

    async def usage(self, tenant: str | None) -> list[Json]:
        """Usage by tenant and model; of private tenants their figures with noise, of all models."""
        private = self._gateway.private.figures()
        rows = await self._service.usage.totals(tenant)
        since = time.strftime("%Y-%m-%d", time.gmtime(self._began_s))
        return [row for row in rows if row["tenant"] not in private] + [
            {
                "tenant": name,
                "model": "*",
                "requests": figures.requests,
                "prompt_tokens": figures.prompt_tokens,
                "completion_tokens": figures.output_tokens,
                "service_s": figures.service_s,
                "since": since,
            }
            for name, figures in private.items()
            if tenant in (None, name)
        ]

    async def metrics(self) -> bytes:
        """The text of `/metrics`."""
        await self._service.count()
        chains = self._service.chains
        own = exposition.exposition(self._gateway.metrics.store())
        return own if chains is None else own + chains.exposition()

    async def status(self) -> Status:
        """The data of the dashboard."""
        gateway, dispatcher = self._gateway, self._gateway.dispatcher
        default = dispatcher.pools[dispatcher.rules.default.spec]
        await self._service.count()
        payload: Status = {
            "version": __version__,
            "started_at": self._began_s,
            "listen": gateway.config.listen,
            "ready": not gateway.unready_reason,
            "draining": gateway.plane.draining,
            "nodes": await self.nodes(),
            "queue": _queue(gateway),
            "tenant_queues": [] if gateway.private else dispatcher.queue_figures(),  # of private tenants too
            "policy": {
                "name": dispatcher.rules.default.spec,
                "decisions": None if gateway.private else dispatcher.decisions,  # of private tenants too
                "failures": sum(pool.policy_failures for pool in dispatcher.pools.values()),
                "decision_us": dispatcher.log.decision_s * 1e6 or None,
                "candidates": default.active_candidate.summary(dispatcher.now_s()),
            },
            "shadow": _shadow(gateway),
            "demand": dispatcher.registry.demand_figures(),
            "loads": dispatcher.registry.load_times.figures(),
            "jobs": dict(gateway.job_counts),
            "chains": {} if self._service.chains is None else self._service.chains.status(),
            "notes": [
                *gateway.problems,
                *(f"{who}: {what}" for who, what in gateway.fleet.problems.items()),
                *gateway.config.policy_notes(),
                *(f"node {change.name}: {change.note()}" for change in self._changes.all()),
            ],
        }
        payload.update(status.observed(gateway.metrics.store()))  # type: ignore[typeddict-item]
        return payload


def _queue(gateway: GatewayCore) -> Json:
    """The requests that wait for a node."""
    dispatcher = gateway.dispatcher
    waiting = dispatcher.waiting()
    now_s = gateway.loop.time()
    return {
        "length": len(waiting),
        "most": dispatcher.rules.held_max,
        "oldest_s": max((now_s - exchange.arrived_s for exchange in waiting), default=0.0),
        "by_class": dispatcher.waiting_by_model(),
    }


def _shadow(gateway: GatewayCore) -> Json | None:
    """The comparison of the shadow policy with the live one; None = no shadow policy.

    `disagreement_frac` is counted. `predicted_…` are predictions for single requests, from the estimates.
    """
    shadow = gateway.config.shadow
    if shadow is None:
        return None
    figures = gateway.dispatcher.log.shadow.figures()
    return {
        "name": shadow.policy,
        "decisions": figures.decisions,
        "disagreement_frac": figures.disagreement_frac if figures.decisions else None,
        "predicted_difference_s": figures.predicted_difference_s if figures.predicted else None,
        "predicted_difference_frac": figures.predicted_difference_frac,
    }
