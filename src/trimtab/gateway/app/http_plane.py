"""The HTTP data plane, mounted on the gateway's core."""

from __future__ import annotations

from typing import cast

from trimtab.gateway.app import config_mapping
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.http.data_plane import SHUTDOWN_DELAY_S, DataPlane, make_context
from trimtab.gateway.http.grouped_requests import GroupedRequests
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.request import IncomingExchange
from trimtab.gateway.model import Kind, Refusal
from trimtab.gateway.nodes.fleet import RemovalHook

_OF_CORE = (Kind.HEALTH, Kind.READY, Kind.PREFLIGHT, Kind.MODELS)


class HttpPlane(DataPlane):
    """Clients speak HTTP with the gateway, and the gateway with the nodes."""

    def __init__(self, core: GatewayCore) -> None:
        context = make_context(
            core.loop,
            config_mapping.settings_of(core.config),
            core.admission,
            core.dispatcher,
            core.observers,
            self._local,
            core.fleet.stall_detector,
        )
        super().__init__(context)
        self._core = core
        context.links = core.dispatcher.signals.links
        self._use(core.config)
        core.fleet.listeners.append(RemovalHook(context.pools.remove))

    def obey(self, config: GatewayConfig) -> None:
        """Apply another configuration."""
        self.context.obey(config_mapping.settings_of(config))
        self._use(config)

    def _use(self, config: GatewayConfig) -> None:
        """Use the result cache and splitting and batching where the configuration says so.

        Answers of before are forgotten: routes may mean other models now.
        """
        results, groupings = self._core.results, self._core.dispatcher.groupings
        results.obey(config_mapping.result_cache_options(config))
        self.context.results = results if results.options.routes else None
        split = frozenset(name for name, model in config.models.items() if model.split)
        batch = frozenset(name for name, model in config.models.items() if model.batch)
        grouped = GroupedRequests(split, groupings.part_sizes, batch, groupings.batching)
        self.context.grouping = grouped if split or batch else None

    async def drain(self, timeout_s: float, delay_s: float = SHUTDOWN_DELAY_S) -> int:
        """Serve for another `delay_s`, then wait for open requests. Returns the number that did not end."""
        if self._core.config.reuse_port:
            await self.stop_accepting()
        return await super().drain(timeout_s, delay_s)

    async def _local(self, exchange: IncomingExchange, body: bytes) -> LocalAnswer | Refusal:
        """Answer a request that no node serves."""
        assert exchange.endpoint is not None
        jobs = self._core.jobs
        if jobs is None or exchange.endpoint.kind in _OF_CORE:
            return self._core.answer(exchange)
        return await jobs.answer(cast(ProxiedExchange, exchange), body)
