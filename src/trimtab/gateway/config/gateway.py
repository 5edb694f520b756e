"""The root of gateway.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field, ValidationError, model_validator

from trimtab.domain.needs import Need
from trimtab.domain.queue_tree import DEFAULT_QUEUE
from trimtab.gateway.config.chain_entries import Chains, ChainWorkersSpec
from trimtab.gateway.config.keys import AdminSpec, KeySpec
from trimtab.gateway.config.maintenance import (
    BatchesSpec,
    EjectionSpec,
    HealthSpec,
    PollingSpec,
    RecordSpec,
    StoreSpec,
    TelemetrySpec,
)
from trimtab.gateway.config.node_entries import DiscoverySpec, NodeEntry, RegistrationSpec
from trimtab.gateway.config.picker_entries import PickerSpec
from trimtab.gateway.config.policies import (
    Policies,
    PolicyChoice,
    Shadow,
    degraded,
    need_field_errors,
    needs_met_by,
    needs_of_policy,
    provided_by,
    unknown_demand_notes,
)
from trimtab.gateway.config.routes import (
    RelayPath,
    Resolved,
    RouteSpec,
    loop_field_errors,
    resolved,
    route_field_errors,
)
from trimtab.gateway.config.surroundings import (
    MaintenanceSpec,
    Models,
    Zones,
    demand_field_errors,
    maintenance_field_errors,
    zone_field_errors,
)
from trimtab.gateway.config.traffic import (
    CorsSpec,
    FairnessSpec,
    HedgeSpec,
    LimitsSpec,
    PrefixCacheSpec,
    QueueSpec,
    ResultCacheSpec,
    RetriesSpec,
    TimeoutsSpec,
)
from trimtab.gateway.config.types import FilePath, HostPort, LearnedFile, Listen, Model, host_port
from trimtab.validation.base import NonNegative, Spec
from trimtab.validation.names import FieldError, Path, known, nearest, raise_field_errors
from trimtab.validation.queue_section import Queues as TenantQueues
from trimtab.validation.queue_section import named_resources, unknown_tenants

CONFIG_TITLE = "trimtab gateway"

_SHARES: Final = {Need.VIRTUAL_COUNTERS, Need.SHARES_HELD}  # what orders read that share between tenants
_NAMES_ONCE: Final = {  # section → message for a duplicate name
    "nodes": "a name that no other node has",
    "keys": "each tenant once; several keys of it: sha256: [A, B]",
}


class GatewayConfig(Spec):
    """The gateway's whole configuration."""

    listen: Listen = Field("127.0.0.1:8080", description="host:port for clients")
    reuse_port: bool = Field(
        False, description="share the port for clients, or for the proxy, with other replicas on this machine"
    )
    picker: PickerSpec = Field(PickerSpec(), description="`trimtab epp`, in place of `listen`")
    admin: AdminSpec = Field(AdminSpec(), description="port for metrics, dashboard and admin API")
    keys: tuple[KeySpec, ...] = Field((), description="tenants", json_schema_extra={"writeOnly": True})
    keys_file: FilePath | None = Field(None, description="further tenants: a YAML file with such a list")
    insecure_no_auth: bool = Field(False, description="serve clients without keys")
    nodes: tuple[NodeEntry, ...] = Field((), description="backends")
    discovery: DiscoverySpec = Field(
        DiscoverySpec(), description="backends found by DNS, in Kubernetes or in a watched file"
    )
    registration: RegistrationSpec = Field(RegistrationSpec(), description="backends added by the admin API")
    maintenance: tuple[MaintenanceSpec, ...] = Field((), description="planned outages of nodes")
    models: Models = Field({}, description="models and adapters: memory and demand of resources")
    zone: str = Field("", description="the gateway's own zone")
    zones: Zones = Field({}, description="zones of nodes and clients: links and round trips")
    policy: Policies = Field(PolicyChoice(), description="a policy, or {default, models: {model: policy}}")
    shadow: Shadow | None = Field(None, description="a second policy that decides without effect, to compare")
    learned: LearnedFile | None = Field(
        None, description="estimates that sites learned together (`trimtab federate`), to begin with"
    )
    routes: Mapping[Model, RouteSpec] = Field({}, description="model name of requests → models")
    relay_paths: tuple[RelayPath, ...] = Field((), description="further paths that are forwarded to nodes")
    queues: TenantQueues | None = Field(
        None, description="name → queue: what tenants may hold together; null = they compete directly"
    )
    queue: QueueSpec = Field(QueueSpec(), description="the central queue")
    limits: LimitsSpec = Field(LimitsSpec(), description="limits of tenants, connections and bodies")
    cors: CorsSpec = Field(CorsSpec(), description="pages of other origins that may use the gateway")
    timeouts: TimeoutsSpec = Field(TimeoutsSpec(), description="timeouts of backends")
    retries: RetriesSpec = Field(RetriesSpec(), description="retries on other nodes")
    hedge: HedgeSpec = Field(HedgeSpec(), description="second attempts beside slow first ones")
    fairness: FairnessSpec = Field(FairnessSpec(), description="fair queueing between tenants, by tokens")
    prefix_cache: PrefixCacheSpec = Field(PrefixCacheSpec(), description="index of prompts seen by nodes")
    result_cache: ResultCacheSpec = Field(
        ResultCacheSpec(), description="answers of deterministic requests, for routes with `cache`"
    )
    health: HealthSpec = Field(HealthSpec(), description="active health checks")
    ejection: EjectionSpec = Field(
        EjectionSpec(), description="ejection of nodes that perform worse than the others"
    )
    polling: PollingSpec = Field(PollingSpec(), description="polling of nodes' metrics")
    record: RecordSpec | None = Field(None, description="recording of traffic as a trace; default: none")
    store: StoreSpec = Field(StoreSpec(), description="jobs, results and usage")
    batches: BatchesSpec = Field(BatchesSpec(), description="files of clients and batches of requests")
    chains: Chains = Field({}, description="chains that clients may run: POST /v1/chains/NAME")
    chain_workers: ChainWorkersSpec = Field(ChainWorkersSpec(), description="workers of their stages")
    telemetry: TelemetrySpec = Field(TelemetrySpec(), description="logs and spans")
    drain_s: NonNegative = Field(30.0, description="time for requests in flight to end after SIGTERM")
    shutdown_delay_s: NonNegative = Field(
        1.0,
        description="part of drain_s in which new requests are still served, until balancers see /ready",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> GatewayConfig:
        raise_field_errors(self._field_errors(), CONFIG_TITLE)
        return self

    @property
    def listen_address(self) -> HostPort:
        """The address for clients."""
        return host_port(self.listen)

    @property
    def admin_address(self) -> HostPort:
        """The address of the admin port."""
        return host_port(self.admin.listen)

    def routing(self) -> dict[str, Resolved]:
        """Every route, with aliases resolved."""
        return resolved(self.routes)

    def declared_models(self) -> tuple[str, ...] | None:
        """Models and adapters of all nodes; None = a node may serve models that this file does not list."""
        is_open = (
            self.discovery.is_on or self.registration.allowed_cidrs or not all(n.models for n in self.nodes)
        )
        if is_open or not self.nodes:
            return None
        return tuple(dict.fromkeys(m for node in self.nodes for m in (*node.models, *node.adapters)))

    def provided(self) -> frozenset[Need]:
        """The needs of policies that the gateway meets with this configuration."""
        loads = any(node.loading or (node.adapters and node.adapter_load_s > 0.0) for node in self.nodes)
        nodes = needs_met_by((*self.nodes, *self.discovery.templates), self.models, self.zone)
        if self.discovery.file is not None or self.registration.allowed_cidrs:
            nodes = dict.fromkeys(nodes, True)  # what later nodes declare is not known yet
        return provided_by(
            nodes=nodes,
            adapters_load=loads or self.declared_models() is None,
            prefix_index=self.prefix_cache.enabled,
            result_cache=any(route.cache for route in self.routes.values()),
            queues=self.queues is not None,
        )

    def policy_notes(self) -> list[str]:
        """What policies do without: unmet needs, demands that are not declared, settings of no effect."""
        provided, specs = self.provided(), [spec for _, spec in self._policies()]
        notes = [str(each) for spec in specs for each in degraded(spec, provided)]
        if Need.RESOURCES in provided:
            served = self.declared_models() or tuple(self.models)
            unknown = [name for name in served if not (name in self.models and self.models[name].demand)]
            notes += unknown_demand_notes(specs, unknown)
        return list(dict.fromkeys([*notes, *self.without_effect()]))

    def without_effect(self) -> list[str]:
        """Notes on permissions and weights of tenants that no policy's order reads."""
        keys, read = self.keys, [needs_of_policy(spec) for _, spec in self._deciding()]
        notes = []
        if any(key.may_set_priority for key in keys) and not any(Need.PRIORITIES in needs for needs in read):
            notes.append("keys.may_set_priority: no policy reads priorities; NAME+priority-ageing does")
        if len({key.weight for key in keys}) > 1 and not any(needs & _SHARES for needs in read):
            notes.append("keys.weight: no policy shares between tenants; fairness: {enabled: true} does")
        if self.queues is not None:
            notes += self._queue_notes([Need.QUEUES in needs for needs in read])
        return notes

    def _queue_notes(self, reads_queues: Sequence[bool]) -> Iterator[str]:
        """Notes on tenants of queues without a key here, and on weights that no order reads."""
        names = [key.name for key in self.keys]
        for path, name, _ in unknown_tenants(self.queues or {}, names) if self.keys_file is None else ():
            field = ".".join(str(part) for part in ("queues", *path))
            yield f"{field}: {name!r} has no key in this file: {nearest(name, names)}"
        if not all(reads_queues):
            yield "queues: limits and guarantees hold, but weights and orders are read by NAME+hdrf only"

    def _queue_field_errors(self) -> Iterator[FieldError]:
        """Errors in queues: a leaf for other tenants, resources that nodes declare, fairness beside them."""
        if self.queues is None:
            return
        if DEFAULT_QUEUE not in self.queues:
            expected = f"a queue {DEFAULT_QUEUE!r} too, for tenants that no queue names"
            yield FieldError(("queues",), list(self.queues), expected)
        settings = (*self.nodes, *self.discovery.templates)
        there = sorted({"slots", *(str(name) for node in settings for name in node.capacity.resources)})
        for name in named_resources(self.queues):
            yield from known(("queues",), name, there, "resource, declared in `capacity` of nodes")

    def with_order(self, spec: str) -> str:
        """A policy with the order that it serves with here."""
        return f"{spec.removesuffix('+vtc')}+vtc" if self.fairness.enabled else spec

    def _deciding(self) -> Iterator[tuple[Path, str]]:
        """The policies that decide, each with its place in the file."""
        yield ("policy", "default"), self.with_order(self.policy.default)
        for model, spec in self.policy.models.items():
            yield ("policy", "models", model), self.with_order(spec)
        for name, route in self.routes.items():
            if route.policy is not None:
                yield ("routes", name, "policy"), self.with_order(route.policy)

    def _policies(self) -> Iterator[tuple[Path, str]]:
        yield from self._deciding()
        if self.shadow is not None:
            yield ("shadow", "policy"), self.shadow.policy

    def zones_in_use(self) -> tuple[str, ...]:
        """Zones that the gateway, nodes and tenants name; the gateway's first."""
        settings = (*self.nodes, *self.discovery.templates)
        named = (self.zone, *(one.zone for one in settings), *(key.zone for key in self.keys))
        return tuple(dict.fromkeys(zone for zone in named if zone))

    def _field_errors(self) -> Iterator[FieldError]:
        yield from _repeated("nodes", [node.name for node in self.nodes])
        yield from _repeated("keys", [key.name for key in self.keys])
        yield from self._digest_field_errors()
        yield from self._listen_field_errors()
        models = self.declared_models()
        yield from route_field_errors(self.routes, models)
        yield from self._model_field_errors(models)
        orders = list(self._order_field_errors())
        yield from orders or need_field_errors(self._policies(), self.provided())
        yield from self._queue_field_errors()
        yield from zone_field_errors(self.zones, self.zones_in_use())
        yield from demand_field_errors(self.models, self.nodes)
        if not (self.discovery.is_on or self.registration.allowed_cidrs):
            yield from maintenance_field_errors(self.maintenance, [node.name for node in self.nodes])

    def _order_field_errors(self) -> Iterator[FieldError]:
        """Fairness is an order itself, so policies bring none beside it."""
        for path, spec in self._deciding() if self.fairness.enabled else ():
            given = spec.removesuffix("+vtc")
            if "+" in given:
                expected = "no order beside fairness, which is one (+vtc), or fairness.enabled: false"
                yield FieldError(path, given, expected)

    def _digest_field_errors(self) -> Iterator[FieldError]:
        owner: dict[str, int] = {}
        for k, key in enumerate(self.keys):
            for digest in key.sha256:
                if owner.setdefault(digest, k) != k:
                    other = self.keys[owner[digest]].name
                    yield FieldError(("keys", k, "sha256"), None, f"a key that {other!r} does not have")

    def _listen_field_errors(self) -> Iterator[FieldError]:
        host, port = self.listen_address
        if port and (host, port) == self.admin_address:
            yield FieldError(("admin", "listen"), self.admin.listen, "another port than `listen`")

    def _model_field_errors(self, models: Sequence[str] | None) -> Iterator[FieldError]:
        """Errors in the names of models with their own policy, timeouts or cost of waiting."""
        if models is None:
            return
        named = (
            (("policy", "models"), self.policy.models),
            (("timeouts", "models"), self.timeouts.models),
            (("fairness", "holding_cost"), self.fairness.holding_cost),
        )
        for path, names in named:
            for name in names:
                yield from known((*path, name), name, {*models, *self.routes}, "model")
        for name in self.models:
            yield from known(("models", name), name, models, "model")


def raw_field_errors(data: Mapping[Any, Any]) -> Iterator[FieldError]:
    """Duplicate names and alias loops, in a file with errors in other parts."""
    for section in _NAMES_ONCE:
        entries = data.get(section)
        if isinstance(entries, list):
            yield from _repeated(section, [e.get("name") if isinstance(e, dict) else None for e in entries])
    routes = data.get("routes")
    if isinstance(routes, dict):
        yield from loop_field_errors({name: spec for name in routes if (spec := _route_of(routes[name]))})


def _route_of(value: object) -> RouteSpec | None:
    try:
        return RouteSpec.model_validate(value)
    except ValidationError:
        return None  # already reported


def _repeated(section: str, names: Sequence[object]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for k, name in enumerate(names):
        if not isinstance(name, str):
            continue
        if name in seen:
            yield FieldError((section, k, "name"), name, _NAMES_ONCE[section])
        seen.add(name)
