"""Registry of nodes, models and request classes that the dispatcher decides with, and what is known of them.

Its arrays are those of View: tables of service and load times, resources, distances, links.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import RESOURCES, Cluster, Floats
from trimtab.gateway.api.units import PROMPT_TOKEN_FRAC
from trimtab.gateway.decide.cluster_shape import PLACEHOLDER, SPARE_CLASSES, ClusterShape, Member, shape_of
from trimtab.gateway.decide.learning import (
    FIRST_LOAD_S,
    ClassKey,
    LoadTimes,
    RequestClass,
    ServiceEstimates,
    class_name,
)
from trimtab.gateway.decide.signals import NodeSignals
from trimtab.gateway.model import Endpoint, Exchange, Facts, Kind, Node
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.tenancy.admission import stated_tokens

UNKNOWN: Final = "?"  # stands for models that no known node serves yet


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
        self._away_s: list[float] = []  # [nodes]
        self.refresh()

    def refresh(self) -> None:
        """Nodes, or the models that they serve, have changed: build `shape` again."""
        self.shape: ClusterShape = shape_of([*map(self._member_of, self._fleet.nodes)] or [PLACEHOLDER])
        declared, zones = self.signals.declared, (member.zone for member in self.shape.members)
        names = dict.fromkeys((declared.zone, *declared.zones, *declared.zone_gib_per_s, *zones))
        self.zone_idx = {zone: i for i, zone in enumerate(names)}  # the gateway's own first
        self.names = tuple(member.name for member in self.shape.members)  # of nodes, by position
        self.forget_models()
        self._columns.clear()

    def _member_of(self, node: Node) -> Member:
        state = self._fleet.state(node)
        spec, bases = state.spec, {a: base for a, base in state.adapters.items() if a not in node.models}
        return Member(
            node.name,
            node.type_name or node.name,
            frozenset((*node.models, *bases)),
            max(1, spec.max_requests, node.max_requests, node.in_flight),
            spec.weight,
            bases,
            spec.adapter_load_s,
            loads_models=spec.hooks is not None and spec.hooks.models is not None,
            zone=spec.zone or self.signals.declared.zone,
            nic_gib_per_s=spec.nic_gib_per_s,
            usd_per_hour=spec.usd_per_hour,
            capacity=self.signals.capacity_of(node, spec),
        )

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
        return self.lists(model) or self._any_unlisted()

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

    def lists(self, model: str) -> bool:
        """Whether a node has listed this model: a client cannot make up its name."""
        if self._known is None:
            self._known = set(self.models())
        return model in self._known

    def model_of(self, exchange: Exchange) -> str:
        """The model of the request's class, once a node serves it: clients cannot create classes."""
        facts = exchange.facts
        if facts is None or not facts.model:
            return ""
        return facts.model if self.lists(facts.model) else UNKNOWN

    def add_class(self, exchange: Exchange) -> RequestClass:
        """The class of a request, known or new. `rows` doubles when there is no room for it."""
        model, endpoint = self.model_of(exchange), exchange.endpoint
        key = (model, endpoint.kind if endpoint is not None else Kind.RELAY)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = self.estimates.new_class(key, len(self.classes))
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
        output = chat.output.predict(facts.prompt_tokens, facts.max_tokens)
        return facts.prompt_tokens + output * facts.answers

    # --- what policies see

    def cluster(self, holding_cost: Mapping[str, float]) -> Cluster:
        """The cluster that policies see, with the cost of waiting of models where it is not 1."""
        shape, keys, rows, declared = self.shape, self.class_keys, self.rows, self.signals.declared
        members, zones, of = shape.members, tuple(self.zone_idx), shape.modelled
        n, g = len(members), len(shape.types)
        fixed_s, unit_s = np.full((rows, g), np.inf), np.zeros((rows, g))
        for known in self.classes:
            self.write_estimates(fixed_s, unit_s, known)
        slots = np.array([m.slots for m in members], np.int64)
        is_adapter = np.array([name in shape.bases for name in shape.items], np.uint8)
        spare = rows - len(keys)
        return Cluster(
            type_names=tuple(kind.name for kind in shape.types),
            node_names=self.names,
            type_idx=np.array(shape.type_idx, np.int64),
            slots=slots,
            queue_max=np.zeros(n, np.int64),
            zone_idx=np.array([self.zone_idx[m.zone] for m in members], np.int64),
            weight=np.array([m.weight for m in members], np.float64) * slots,
            nic_gib_per_s=np.array([self.nic_gib_per_s(j) for j in range(n)]),
            memory_gib=np.array([kind.memory_gib for kind in shape.types]),
            accelerators=np.ones(g),
            usd_per_hour=np.array([kind.usd_per_hour for kind in shape.types]),
            class_names=(*map(class_name, keys), *(f"spare{k}" for k in range(spare))),
            fixed_s=fixed_s,
            unit_s=unit_s,
            item_names=shape.items,
            item_gib=np.array([declared.model_gib.get(name, 0.0) for name in shape.items]),
            item_is_adapter=is_adapter,
            load_s=self._load_s(is_adapter),
            zone_names=zones,
            rtt_s=self.rtt_s(),
            zone_gib_per_s=np.array([declared.zone_gib_per_s.get(zone, np.inf) for zone in zones]),
            resource_names=tuple(RESOURCES[k] for k in of),
            capacity=shape.capacity[:, of],
            demand=self.demand(),
            holding_cost=np.array([holding_cost.get(model, 1.0) for model, _ in keys] + [1.0] * spare),
            prompt_token_units=np.full(rows, PROMPT_TOKEN_FRAC),
        )

    def write_estimates(self, fixed_s: Floats, unit_s: Floats, of: RequestClass) -> None:
        """Set the row of a class in both tables [classes, types], where a type serves its model."""
        for g, kind in enumerate(self.shape.types):
            if self.shape.serves(g, of.key[0]):
                fixed_s[of.idx, g], unit_s[of.idx, g] = self.estimates.of(of.key, kind.name)

    def _load_s(self, is_adapter: NDArray[np.uint8]) -> Floats:
        """Seconds to load each item on nodes of each type, [items, types]; learned, else first guesses."""
        shape, learned = self.shape, self.load_times.known
        adapter_s, model_s = np.zeros(len(shape.types)), np.zeros(len(shape.types))
        at = list(shape.type_idx)  # nodes of a type that differ count as the slowest of them
        np.maximum.at(adapter_s, at, [m.adapter_load_s for m in shape.members])
        np.maximum.at(model_s, at, [FIRST_LOAD_S if m.loads_models else 0.0 for m in shape.members])
        load_s: Floats = np.where(is_adapter[:, None] == 1, adapter_s, model_s)
        for m, item in enumerate(shape.items):
            for g, kind in enumerate(shape.types):
                load_s[m, g] = learned.get((item, kind.name), load_s[m, g])
        return load_s

    def all_demand(self) -> Floats:
        """The demand of one request of each class, [rows, resources]: declared, else learned.

        Learned demand fits every node: an error of the regression must not exclude a node.
        """
        demand, learned = self.signals.fit.demand(self.rows), self.estimates.learned
        for known in self.classes:
            c, model = known.idx, known.key[0]
            elsewhere = learned.demand_of(class_name(known.key)) if learned is not None else None
            if elsewhere is not None:
                demand[c] = np.where(demand[c] > 0.0, demand[c], elsewhere)
            demand[c] = np.minimum(demand[c], self.shape.least_capacity(model))
            for name, amount in self.signals.declared.demand.get(model, {}).items():
                demand[c, RESOURCES.index(name)] = amount
        return demand

    def demand(self) -> Floats:
        """`all_demand` of the resources that are modelled, [rows, modelled resources]."""
        chosen: Floats = self.all_demand()[:, self.shape.modelled]
        return chosen

    def used(self) -> Floats:
        """The use of each node [nodes, modelled resources]: by others, and by requests from here."""
        used, n, demand, counts = self.used_by_others(), len(self.names), self.demand(), self.signals.counts
        for j in counts.nodes():
            for c, requests in counts.now(j).items():
                if j < n and c < self.rows:
                    used[j] += requests * demand[c]
        return used

    def used_by_others(self) -> Floats:
        """The use by others of each node, [nodes, modelled resources]."""
        of, n = self.shape.modelled, len(self.names)
        others = np.full((n, len(RESOURCES)), np.nan)
        for j, amounts in self.signals.others.items():
            if j < n:
                others[j] = amounts
        return _filled(others[:, of], self.shape.capacity[:, of])

    def reported_s(self) -> Floats:
        """When each node reported its use of resources, the oldest of its sources; inf = none does."""
        sources = (self.signals.read_s.get(j, {}) for j in range(len(self.names)))
        return np.array([min(read_s.values(), default=np.inf) for read_s in sources])

    def rtt_s(self) -> Floats:
        """Round trips between zones, [zones, zones]; those from here to nodes are `away_s` from now on."""
        of_nodes = [m.zone for m in self.shape.members]
        found = self.signals.round_trips.between(tuple(self.zone_idx), of_nodes, self.signals.declared)
        self._away_s = [float(found[0, self.zone_idx[zone]]) for zone in of_nodes]
        return found

    def away_s(self, node_idx: int) -> float:
        """Round trip to a node's zone, as policies see it."""
        return self._away_s[node_idx] if node_idx < len(self._away_s) else 0.0

    def nic_gib_per_s(self, node_idx: int) -> float:
        """Bandwidth of the link to a node; inf = unknown."""
        declared = self.shape.members[node_idx].nic_gib_per_s
        return declared or self.signals.links.of_node(node_idx) or float("inf")

    # --- for displays

    def signal_figures(self) -> dict[str, SignalFigures]:
        """Resources, distance and price of each node, by name."""
        signals, shape, fleet = self.signals, self.shape, self._fleet
        now_s = fleet.loop.time()
        names = [RESOURCES[k] for k in shape.modelled]
        capacity = shape.capacity[:, shape.modelled]
        used = self.used()
        found: dict[str, SignalFigures] = {}
        for node in fleet.present():
            j = node.idx
            if j >= len(shape.members):
                continue
            member, gib_per_s = shape.members[j], self.nic_gib_per_s(j)
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

    def demand_figures(self) -> Mapping[str, Mapping[str, float]]:
        """The demand of one request of each class: class → resource → amount, declared or learned."""
        demand, of = self.demand(), self.shape.modelled
        return {
            class_name(known.key): {
                RESOURCES[k]: float(amount) for k, amount in zip(of, demand[known.idx], strict=True) if amount
            }
            for known in self.classes
        }


def _filled(others: Floats, capacity: Floats) -> Floats:
    """Fill what no fresh report says with the mean share of the nodes with one; 0 where there is none."""
    share = np.divide(others, capacity, out=np.zeros(others.shape), where=capacity > 0.0)
    is_known = ~np.isnan(share)
    total = np.where(is_known, share, 0.0).sum(axis=0)
    mean = np.divide(total, is_known.sum(axis=0), out=np.zeros(len(total)), where=is_known.any(axis=0))
    return np.where(is_known, others, mean * capacity)


def _path(endpoint: Endpoint | None) -> str:
    return "" if endpoint is None else endpoint.path
