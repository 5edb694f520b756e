"""The registry of nodes, models and request classes that the dispatcher decides with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.domain.cluster import Cluster
from trimtab.gateway.admission import stated_tokens
from trimtab.gateway.decide.cluster_builder import (
    PLACEHOLDER,
    SPARE_CLASSES,
    ClusterShape,
    cluster_of,
    member_of,
    shape_of,
)
from trimtab.gateway.decide.estimates import ClassKey, RequestClass, ServiceEstimates
from trimtab.gateway.decide.load_times import LoadTimes
from trimtab.gateway.decide.node_signals import NodeSignals
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
    def class_rows(self) -> dict[ClassKey, int]:
        """Class → its row in every pool's tables."""
        return {known.key: known.idx for known in self.classes}

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

    def add_class(self, model: str, endpoint: Endpoint | None) -> RequestClass:
        """The class of these requests, known or new. `rows` doubles when there is no room for it."""
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
