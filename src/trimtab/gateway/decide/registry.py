"""The registry of nodes, models and request classes that the dispatcher decides with, and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final, TypedDict

from trimtab.domain.cluster import RESOURCES, Cluster
from trimtab.gateway.admission import stated_tokens
from trimtab.gateway.decide.cluster_builder import (
    PLACEHOLDER,
    SPARE_CLASSES,
    ClusterShape,
    cluster_of,
    member_of,
    shape_of,
)
from trimtab.gateway.decide.learning import ClassKey, LoadTimes, RequestClass, ServiceEstimates
from trimtab.gateway.decide.signals import NodeSignals
from trimtab.gateway.model import Endpoint, Exchange, Facts, Kind
from trimtab.gateway.nodes.fleet import Fleet

UNKNOWN: Final = "?"  # stands for models that no known node serves yet


class Registry:
    """Nodes as of the latest `refresh`; classes and estimates as they appear."""

    def __init__(self, fleet: Fleet, estimates: ServiceEstimates, signals: NodeSignals) -> None:
        self.estimates, self.signals, self.load_times = estimates, signals, LoadTimes()
        self.classes: list[RequestClass] = []  # in the order in which they appeared
        self._by_key: dict[ClassKey, RequestClass] = {}
        self._by_path: dict[tuple[str, str], RequestClass] = {}  # a string caches its hash, an enum does not
        self._columns: dict[tuple[ClassKey, str], list[int]] = {}
        self.rows = SPARE_CLASSES  # of the tables: classes that they have room for
        self._fleet, self._on_trial = fleet, fleet.on_trial
        self.refresh()

    def refresh(self) -> None:
        """Nodes, or the models that they serve, have changed: build `shape` again."""
        fleet, members = self._fleet, []
        for node in fleet.nodes:
            state = fleet.state(node)
            spec = state.spec
            most = max(spec.max_requests, node.max_requests, node.in_flight)
            capacity = self.signals.capacity_of(node, spec)
            members.append(member_of(node, spec, state.adapters, most, self.signals.declared.zone, capacity))
        self.shape: ClusterShape = shape_of(members or [PLACEHOLDER])
        self.zone_idx = {zone: i for i, zone in enumerate(self.signals.zones(self.shape))}
        self.names = tuple(member.name for member in self.shape.members)  # of nodes, by position
        self.forget_models()
        self._columns.clear()

    def adapter_of(self, model: str) -> str:
        """The adapter of this name; "" = the name of a model, or unknown."""
        return model if model in self.shape.bases else ""

    def forget_models(self) -> None:
        """Drop the cached sets of known and of ready models."""
        self._known: set[str] | None = None
        self._ready: set[str] | None = None
        self._class_of: dict[tuple[str, str], RequestClass] = {}  # by known model and path

    # --- models

    def known(self, model: str) -> bool:
        """Whether a node serves this model, ready or not; or has not listed its models yet."""
        if self._known is None:
            self._known = set(self.models())
        return model in self._known or self._any_unlisted()

    def _any_unlisted(self) -> bool:
        """Whether a node has not listed its models yet."""
        fleet = self._fleet
        return any(not node.models and not fleet.state(node).was_up for node in fleet.present())

    def ready(self, model: str) -> bool:
        """Whether a node that gets work serves this model."""
        if self._ready is None:
            members, nodes = self.shape.members, filter(self._fleet.gets_work, self._fleet.nodes)
            self._ready = {name for node in nodes for name in members[node.idx].serves}
        return model in self._ready

    def has_room(self, model: str) -> bool:
        """Whether a node of this model gets work and is not busy with the one request of its trial."""
        is_ready = self.ready(model) if self._ready is None else model in self._ready
        on_trial = self._on_trial
        if not on_trial or not is_ready:
            return is_ready
        members = self.shape.members
        return any(
            model in members[node.idx].serves and not (node.idx in on_trial and node.in_flight)
            for node in filter(self._fleet.gets_work, self._fleet.nodes)
        )

    def models(self) -> list[str]:
        """Models and adapters of all present nodes."""
        return sorted({name for n in self._fleet.present() for name in self.shape.members[n.idx].serves})

    def types_of(self, model: str) -> list[str]:
        """Types of the nodes that serve a model."""
        shape = self.shape
        return list(dict.fromkeys(kind.name for g, kind in enumerate(shape.types) if shape.serves(g, model)))

    def served_by(self, model: str) -> tuple[int, ...]:
        """Positions of the nodes that serve a model."""
        return tuple(j for j, g in enumerate(self.shape.type_idx) if self.shape.serves(g, model))

    # --- classes

    def columns(self, of: RequestClass, type_name: str) -> list[int]:
        """Columns of the tables: the types of this name whose nodes serve the model of the class."""
        found = self._columns.get((of.key, type_name))
        if found is None:
            types, model = enumerate(self.shape.types), of.key[0]
            found = [g for g, kind in types if kind.name == type_name and self.shape.serves(g, model)]
            self._columns[of.key, type_name] = found
        return found

    @property
    def class_keys(self) -> list[ClassKey]:
        """The classes by their rows."""
        return list(self._by_key)

    def class_of(self, exchange: Exchange) -> RequestClass | None:
        """The class of a request; None = it is the first of its class."""
        facts, endpoint = exchange.facts, exchange.endpoint
        if facts is None or endpoint is None:
            return self._by_path.get((self.model_of(exchange), _path(endpoint)))
        at = facts.model, endpoint.path
        found = self._class_of.get(at)
        if found is None:
            found = self._by_path.get((self.model_of(exchange), _path(endpoint)))
            if found is not None and self._known is not None and facts.model in self._known:
                self._class_of[at] = found
        return found

    def model_of(self, exchange: Exchange) -> str:
        """The model of the request's class, once a node serves it: clients cannot create classes."""
        facts = exchange.facts
        if facts is None or not facts.model:
            return ""
        if self._known is None:
            self._known = set(self.models())
        return facts.model if facts.model in self._known else UNKNOWN

    def add_class(self, exchange: Exchange) -> RequestClass:
        """The class of a request, known or new. `rows` doubles when there is no room for it."""
        model, endpoint = self.model_of(exchange), exchange.endpoint
        key = (model, endpoint.kind if endpoint is not None else Kind.RELAY)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = RequestClass(key, len(self.classes))
            self.classes.append(known)
        self._by_path[model, _path(endpoint)] = known
        if known.idx >= self.rows:
            self.rows *= 2
        return known

    def tokens(self, facts: Facts) -> float:
        """Tokens that a request is expected to use, for its tenant's limit."""
        if not facts.max_tokens:
            return facts.prompt_tokens
        chat = self._by_key.get((facts.model, Kind.CHAT))
        if chat is None:
            return stated_tokens(facts)
        return facts.prompt_tokens + chat.output.predict(facts.max_tokens) * facts.answers

    def cluster(self, holding_cost: Mapping[str, float]) -> Cluster:
        """The cluster that policies see, with the cost of waiting of models where it is not 1."""
        around = self.signals.surroundings(self.shape, self.class_keys, self.rows)
        shape, known = self.shape, self.load_times.known
        return cluster_of(shape, self.class_keys, self.rows, self.estimates, around, holding_cost, known)


def _path(endpoint: Endpoint | None) -> str:
    return "" if endpoint is None else endpoint.path


class ResourceFigures(TypedDict):
    """One resource of a node."""

    capacity: float
    used: float  # by requests from here, and by others


class SignalFigures(TypedDict):
    """Figures of a node besides its queue that policies read."""

    zone: str
    round_trip_s: float | None  # measured by health checks
    nic_gib_per_s: float | None  # of the link to it, declared or measured
    transfers: int  # large bodies that are being sent to it
    usd_per_hour: float
    foreign_requests: int  # that others sent to it, as it reports
    report_age_s: dict[str, float]  # by source: backend, machine, gpu
    resources: dict[str, ResourceFigures]
    resident: list[str]  # adapters, and models where calls load these, that it is known to hold
    loading: list[str]


def signal_figures(registry: Registry, fleet: Fleet) -> dict[str, SignalFigures]:
    """Of each node, by name."""
    signals, shape, now_s = registry.signals, registry.shape, fleet.loop.time()
    names = [RESOURCES[k] for k in shape.modelled]
    capacity = shape.capacity[:, shape.modelled]
    used = signals.used(shape, registry.class_keys, registry.rows)
    found: dict[str, SignalFigures] = {}
    for node in fleet.present():
        j = node.idx
        if j >= len(shape.members):
            continue
        member, gib_per_s = shape.members[j], signals.nic_gib_per_s(shape, j)
        found[node.name] = {
            "zone": member.zone,
            "round_trip_s": signals.round_trips.of_node(j),
            "nic_gib_per_s": gib_per_s if isfinite(gib_per_s) else None,
            "transfers": signals.links.active[j],
            "usd_per_hour": member.usd_per_hour,
            "foreign_requests": signals.foreign.get(j, 0),
            "report_age_s": {source: now_s - read_s for source, read_s in node.reported_s.items()},
            "resources": {
                name: {"capacity": float(capacity[j, k]), "used": float(used[j, k])}
                for k, name in enumerate(names)
            },
            "resident": sorted(fleet.state(node).held()),
            "loading": node.loader.loading(node) if node.loader is not None else [],
        }
    return found


def demand_figures(registry: Registry) -> Mapping[str, Mapping[str, float]]:
    """The demand of one request of each class: class → resource → amount, declared or learned."""
    shape, keys = registry.shape, registry.class_keys
    demand = registry.signals.demand(shape, keys, registry.rows)
    return {
        f"{model}/{kind.value}": {
            RESOURCES[k]: float(amount) for k, amount in zip(shape.modelled, demand[c], strict=True) if amount
        }
        for c, (model, kind) in enumerate(keys)
    }
