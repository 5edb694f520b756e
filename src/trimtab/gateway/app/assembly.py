"""Assembles the gateway from a configuration: all but the way in which requests of clients come."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Protocol

from trimtab.errors import ConfigError
from trimtab.gateway.api.cors import Cors
from trimtab.gateway.api.endpoints import Endpoints, path_id
from trimtab.gateway.app import config_mapping
from trimtab.gateway.app.readiness import HEALTHY, compile_elsewhere, model_rows, models_answer, readiness
from trimtab.gateway.app.recorder_setup import new_recorder
from trimtab.gateway.config import GatewayConfig, node_specs
from trimtab.gateway.decide.dispatcher import PolicyDispatcher
from trimtab.gateway.decide.learning import ServiceEstimates
from trimtab.gateway.http.cached_answers import ResultCache, ResultCacheOptions
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.job_api.job_service import JobService
from trimtab.gateway.model import Kind, LoadEvent, Observer, Refusal, Tenant
from trimtab.gateway.nodes.address import AllowedNetworks, parse_base
from trimtab.gateway.nodes.discovery import DnsNodes, FileSource, FollowedNodes, Registrar, reconcile
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.health_manager import HealthManager
from trimtab.gateway.nodes.item_loader import ItemLoader
from trimtab.gateway.nodes.node_resources import resource_use
from trimtab.gateway.nodes.planned_outages import Maintenance
from trimtab.gateway.observe.decision_records import DecisionRecords
from trimtab.gateway.observe.logs import RequestLog, Which
from trimtab.gateway.observe.metrics import Metrics, Sources
from trimtab.gateway.observe.private_counts import PrivateTenants, PublicOnly
from trimtab.gateway.observe.usage_observer import UsageObserver
from trimtab.gateway.record.recorder import NodeEvents
from trimtab.gateway.tenancy.admission import Admission, ClientExchange
from trimtab.gateway.tenancy.tenants import Tenants

logger = logging.getLogger(__name__)

TICK_S = 0.25
_FIXED = (
    "listen",
    "admin.listen",
    "admin.allowed_hosts",
    "reuse_port",
    "limits.shared",
    "store",
    "batches",
    "record",
    "telemetry",
    "discovery",
    "health",
    "ejection",
    "polling",
    "prefix_cache",
    "learned",
)


class Plane(Protocol):
    """Brings requests of clients to the core, and the decisions back."""

    @property
    def draining(self) -> bool:
        """Whether the process is about to end."""

    async def serve(self, listening: socket.socket) -> None:
        """Take requests from now on."""

    def obey(self, config: GatewayConfig) -> None:
        """Apply another configuration."""

    async def drain(self, timeout_s: float, delay_s: float) -> int:
        """Serve for another `delay_s`, then wait for open requests. Returns the number that did not end."""

    async def close(self) -> None:
        """End every request at once."""


class GatewayCore:
    """A running gateway: its parts, its start and end, its reloads.

    `plane` is mounted on it: it makes the plane that clients reach it by.
    """

    def __init__(
        self,
        config: GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        plane: Callable[[GatewayCore], Plane],
        *,
        environ: Mapping[str, str] = os.environ,
        jobs: JobService | None = None,
    ) -> None:
        self.config, self.loop = config, loop
        self.jobs = jobs  # None: jobs are not kept
        self._begun_with = config  # the values of keys that a reload cannot change
        self.environ = environ
        self._created = int(time.time())
        self.tenants = Tenants(config, environ)
        self.fleet = Fleet(loop, config_mapping.fleet_options(config), environ)
        self.health_manager = HealthManager(self.fleet, config_mapping.health_manager_options(config))
        self.problems = reconcile(self.fleet, "config", [node.spec() for node in config.nodes])
        rules = config_mapping.rules_of(config)
        estimates = ServiceEstimates(learned := config_mapping.learned_of(config))
        self.private = PrivateTenants(config.keys)
        if self.private:
            estimates.public = ServiceEstimates(learned)
        tenants = len(self.tenants)
        self.dispatcher = PolicyDispatcher(loop, self.fleet, rules, estimates=estimates, tenants=tenants)
        self.loader = ItemLoader(self.fleet, self._loaded, config.polling.period_s)
        self.dispatcher.placements.follow(self.loader)
        self.results = ResultCache(ResultCacheOptions())
        self.maintenance = Maintenance(self.fleet, rules.declared.windows, self.dispatcher.write_outages)
        self.metrics = Metrics(loop.time, self._sources())
        self.decision_records = DecisionRecords(loop.time)
        self.recorder = new_recorder(
            config_mapping.record_settings(config), self.fleet, self.dispatcher, self._shadow, self.tenants
        )
        self._spans = self._new_spans()
        self.admission = self._new_admission()
        self.on_reloaded: list[Callable[[GatewayConfig], None]] = []
        self.observers = self._observers()
        self.dispatcher.log.listeners.append(self.metrics)
        self.plane = plane(self)
        self._sources_of_nodes: list[FollowedNodes | FileSource] = []
        self._registrar = self._new_registrar()
        self._ticking: asyncio.Task[None] | None = None

    # --- start and end

    async def open(self, listening: socket.socket | None) -> None:
        """Start health checks and serve. Raises UsageError if a recording cannot be written."""
        if self.recorder is not None:
            await self.recorder.open()
            self.fleet.listeners.append(NodeEvents(self.fleet, self.recorder))
            self.dispatcher.log.listeners.append(self.recorder)
        await self.dispatcher.open()
        self.health_manager.start()
        self.loader.start()
        self.maintenance.look()
        self.maintenance.start()
        self._start_discovery()
        self._know_models()
        self._log_policy_notes()
        self._ticking = self.loop.create_task(self._tick())
        if listening is not None:
            await self.plane.serve(listening)

    async def close(self) -> None:
        """Close all parts."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        for source in self._sources_of_nodes:
            await source.close()
        await self.plane.close()
        await self.health_manager.close()
        await self.loader.close()
        await self.maintenance.close()
        self.dispatcher.close()
        self.fleet.close()
        if self.recorder is not None:
            await self.recorder.close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    @property
    def unready_reason(self) -> str:
        """Why no request can be served now; "" = a node that has answered a check gets work."""
        if self.plane.draining:
            return "this gateway is about to end"
        fleet = self.fleet
        answered = [node for node in fleet.nodes if fleet.state(node).was_up]
        if any(fleet.gets_work(node) for node in answered):
            return ""
        return "no node gets work" if answered else "no node has passed a check yet"

    async def reload(self, config: GatewayConfig) -> dict[str, Any]:
        """Apply another configuration without dropping requests. On UsageError nothing has changed.

        Returns the changes that were made and the keys that need a restart.
        """
        rules = await asyncio.to_thread(config_mapping.rules_of, config)  # it may import a user's file
        known = {
            spec for spec in config_mapping.policies_of(self.config) if ":" not in spec
        }  # no file: unchanged
        fresh = [spec for spec in config_mapping.policies_of(config) if spec not in known]
        if fresh:
            await compile_elsewhere(fresh)
        before, restart = self.config, _needs_restart(self._begun_with, config)
        config.admin.digests(self.environ)  # raises before anything has changed
        self._refuse_first_privacy(config)
        self.tenants.update(config, self.environ)
        self.private.declare(config.keys)
        self.config = config
        problems = reconcile(self.fleet, "config", [node.spec() for node in config.nodes])
        self._registrar = self._new_registrar()
        self.dispatcher.make_room_for_tenants(len(self.tenants))
        self.dispatcher.use(rules)
        self.maintenance.windows = rules.declared.windows
        self.maintenance.look()
        await self.dispatcher.open()
        self._refresh_admission()
        self.plane.obey(config)
        self._know_models()
        self._log_policy_notes()
        if self.jobs is not None:
            self.jobs.declare(config)
        for tell in self.on_reloaded:
            tell(config)
        changed = sorted(
            name for name in type(config).model_fields if getattr(before, name) != getattr(config, name)
        )
        return {"changed": changed, "needs_restart": restart, "problems": problems}

    def _refuse_first_privacy(self, config: GatewayConfig) -> None:
        """Without private tenants at the start nothing is kept from observers."""
        first = next((k for k, key in enumerate(config.keys) if key.privacy is not None), None)
        if first is not None and not self.private:
            expected = "privacy of at least one tenant at the start of the gateway: start it again"
            raise ConfigError("cannot begin by a reload", field=f"keys[{first}].privacy", expected=expected)

    # --- parts

    def _observers(self) -> tuple[Observer, ...]:
        which = Which.ALL if self.config.telemetry.log_requests else Which.FAILED
        leaving: list[Observer] = [self.metrics, self.decision_records, RequestLog(which)]
        if self.recorder is not None:
            leaving.append(self.recorder)
        if self._spans is not None:
            leaving.append(self._spans)
        parts: list[Observer] = [self.health_manager.observer, *leaving]
        if self.private:
            parts[1:] = [self.private, *map(PublicOnly, leaving)]
        if self.jobs is not None:
            parts.append(UsageObserver(self.jobs.usage))
        return tuple(parts)

    @property
    def job_counts(self) -> dict[str, int]:
        """Jobs by state."""
        return {} if self.jobs is None else self.jobs.counts

    def _shadow(self) -> str:
        return "" if self.config.shadow is None else self.config.shadow.policy

    def _new_spans(self) -> Any:
        """The span exporter, if a collector is configured. Raises MissingExtra."""
        endpoint = self.config.telemetry.otlp_endpoint
        if endpoint is None:
            return None
        from trimtab.gateway.observe.otel import otlp_spans

        return otlp_spans(self.loop.time, str(endpoint))

    def _sources(self) -> Sources:
        return Sources(
            nodes=self.fleet.present,
            queue_by_model=self.dispatcher.waiting_by_model,
            resources=lambda: resource_use(
                (node, self.fleet.state(node).spec.resources) for node in self.fleet.present()
            ),
            queue_length=lambda: sum(pool.live.n_held for pool in self.dispatcher.pools.values()),
            jobs=lambda: self.job_counts,
            recorder_dropped=lambda: 0 if self.recorder is None else self.recorder.dropped,
            results=lambda: self.results,
            plans=self._plans,
            signals=self.dispatcher.registry.signal_figures,
            demand=self.dispatcher.registry.demand_figures,
            loads=self.dispatcher.registry.load_times.figures,
            private=self.private.figures,
            tenant_queues=lambda: [] if self.private else self.dispatcher.queue_figures(),
            shadow=lambda: self.dispatcher.log.shadow.counts,
        )

    def _plans(self) -> dict[tuple[str, str], int]:
        logs = zip(("live", "shadow"), self.dispatcher.planning(), strict=True)
        return {(role, outcome): n for role, log in logs for outcome, n in asdict(log).items()}

    def _loaded(self, event: LoadEvent) -> None:
        """A call that loads or unloads has ended: learn from it, count and record it."""
        self.dispatcher.placements.learn(event)
        self.metrics.loaded(event)
        if self.recorder is not None:
            self.recorder.loaded(event)

    def _new_admission(self) -> Admission:
        admission = Admission(
            endpoints=Endpoints(),
            by_digest=self.tenants.by_digest,
            tenant_named=self.tenant_named,
            known=self.dispatcher.registry.known,
            ready=self.dispatcher.registry.ready,
            tokens=self.dispatcher.registry.tokens,
            count_usage=True,
            jobs=self.jobs is not None,
            now_s=self.loop.time,
        )
        self.admission = admission
        self._refresh_admission()
        return admission

    def _refresh_admission(self) -> None:
        relayed = [(entry.path, entry.methods) for entry in self.config.relay_paths]
        self.admission.endpoints = Endpoints(relayed)
        self.admission.routes = self.config.routing()
        cors = self.config.cors
        self.admission.cors = Cors(cors.allowed_origins, cors.max_age_s) if cors.allowed_origins else None

    def tenant_named(self, name: str) -> Tenant | None:
        """The tenant of this name. A new tenant is created, with a virtual counter in every policy."""
        tenant = self.tenants.named(name)
        if tenant is not None:
            self.dispatcher.make_room_for_tenants(tenant.idx + 1)
        return tenant

    def _know_models(self) -> None:
        self.metrics.know_models([*self.dispatcher.registry.models(), *self.config.routing()])

    def _new_registrar(self) -> Registrar:
        config = self.config
        allowed = {
            name for node in config.nodes for name in (node.api_key_env, str(node.ca_file or "")) if name
        }
        return Registrar(
            self.fleet, AllowedNetworks([str(net) for net in config.registration.allowed_cidrs]), allowed
        )

    def _log_policy_notes(self) -> None:
        for note in self.config.policy_notes():
            logger.warning("%s", note)

    def _start_discovery(self) -> None:
        found = self.config.discovery
        for entry in found.dns:
            template = entry.template()
            names = DnsNodes(entry.name, parse_base(template.url).port, entry.period_s)
            self._sources_of_nodes.append(FollowedNodes(self.fleet, f"dns:{entry.name}", names, template))
        for pods in found.kubernetes:
            ready, name = config_mapping.pods_source(pods), f"kubernetes:{pods.name}"
            self._sources_of_nodes.append(FollowedNodes(self.fleet, name, ready, pods.template()))
        if found.file is not None:
            path = found.file
            parse = lambda data: node_specs(data, str(path))  # noqa: E731
            self._sources_of_nodes.append(FileSource(self.fleet, path, parse, found.period_s))
        for source in self._sources_of_nodes:
            source.start()

    def reconcile_nodes(self) -> None:
        """Make the nodes of every source what the source says, but for what operators changed."""
        self.problems = reconcile(self.fleet, "config", [node.spec() for node in self.config.nodes])
        for source in self._sources_of_nodes:
            if isinstance(source, FileSource):
                source.again()

    async def register(self, payload: Mapping[str, Any]) -> str:
        """Add a node from its description; returns the node's name. Raises UsageError."""
        self._registrar.vet(payload)
        specs = node_specs([dict(payload)], "the request")
        return (await self._registrar.add(specs[0])).name

    async def _tick(self) -> None:
        n_models = -1
        while True:
            await asyncio.sleep(TICK_S)
            self.private.tick()
            self.metrics.tick()
            names = self.dispatcher.registry.models()
            if len(names) != n_models:
                n_models = len(names)
                self._know_models()

    # --- requests that the gateway answers itself

    def answer(self, exchange: ClientExchange) -> LocalAnswer | Refusal:
        """The answer to a request that is about the gateway itself."""
        endpoint = exchange.endpoint
        assert endpoint is not None
        if endpoint.kind is Kind.HEALTH:
            return HEALTHY
        if endpoint.kind is Kind.READY:
            return readiness(self.unready_reason)
        if endpoint.kind is Kind.PREFLIGHT and self.admission.cors is not None:
            origin = exchange.request.headers.get(b"origin", b"")
            return LocalAnswer(204, self.admission.cors.preflight(origin))
        if endpoint.kind is Kind.MODELS:
            rows = model_rows(self.fleet, self.config.routing(), self._created)
            if exchange.tenant is not None and (rules := exchange.tenant.rules) is not None:
                rows = {name: row for name, row in rows.items() if rules.allows(name)}
            return models_answer(rows, path_id(endpoint, exchange.path))
        return Refusal(503, "no_jobs", "Jobs are not kept by this gateway.")


def _needs_restart(begun_with: GatewayConfig, wanted: GatewayConfig) -> list[str]:
    """Changed keys that take effect only after a restart."""
    chains = () if begun_with.chain_workers.may_become(wanted.chain_workers) else ("chains", "chain_workers")
    return [name for name in (*_FIXED, *chains) if attrgetter(name)(begun_with) != attrgetter(name)(wanted)]
