"""What the deciding side knows of the nodes and of the requests: shape, models, classes, estimates."""

from __future__ import annotations

from typing import Final

from trimtab.domain.cluster import Cluster
from trimtab.gateway.decide.classes import Classes, RequestClass
from trimtab.gateway.decide.estimates import ClassKey, Estimates
from trimtab.gateway.decide.shape import (
    NOBODY,
    SPARE_CLASSES,
    Shape,
    cluster_of,
    member_of,
    shape_of,
)
from trimtab.gateway.front import stated_tokens
from trimtab.gateway.model import Endpoint, Exchange, Facts
from trimtab.gateway.nodes.fleet import Fleet

UNKNOWN: Final = "?"  # stands for models that no node is known to serve yet


class Knowledge:
    """Nodes as they were when `look_again` was called last; classes and estimates as they come."""

    def __init__(self, fleet: Fleet, estimates: Estimates) -> None:
        self.estimates, self.classes = estimates, Classes()
        self.rows = SPARE_CLASSES  # of the tables: classes that they have room for
        self._fleet, self._on_trial = fleet, fleet.on_trial
        self.look_again()

    def look_again(self) -> None:
        """Nodes or what they serve have changed: `shape` is made anew."""
        fleet, members = self._fleet, []
        for node in fleet.nodes:
            state = fleet.state(node)
            most = max(state.spec.max_requests, node.max_requests, node.in_flight)
            spec = state.spec
            members.append(member_of(node, state.adapters, spec.weight, most, spec.adapter_load_s))
        self.shape: Shape = shape_of(members or [NOBODY])
        self.names = tuple(member.name for member in self.shape.members)  # of nodes, by position
        self.forget_models()
        for known in self.classes.rows:
            known.forget_types()

    def adapter_of(self, model: str) -> str:
        """The adapter that clients mean by this name; "" = it is a model's, or nobody's."""
        return model if model in self.shape.bases else ""

    def forget_models(self) -> None:
        """Which models are served, and which are ready, is to be found out again."""
        self._known: set[str] | None = None
        self._ready: set[str] | None = None
        self._class_of: dict[tuple[str, str], RequestClass] = {}  # by known model and path

    # --- models

    def known(self, model: str) -> bool:
        """Whether a node serves this model, ready or not; or may, as long as it was not asked yet."""
        if self._known is None:
            self._known = set(self.models())
        return model in self._known or self._any_unasked()

    def _any_unasked(self) -> bool:
        """Whether some node has not said yet what it serves."""
        fleet = self._fleet
        return any(not node.models and not fleet.state(node).was_up for node in fleet.present())

    def ready(self, model: str) -> bool:
        """Whether a node that gets work serves this model."""
        if self._ready is None:
            members, nodes = self.shape.members, filter(self._fleet.gets_work, self._fleet.nodes)
            self._ready = {name for node in nodes for name in members[node.idx].serves}
        return model in self._ready

    def has_room(self, model: str) -> bool:
        """Whether a node of this model gets work that is not busy with the one request of its trial."""
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
        """Models and adapters of all nodes that are here."""
        return sorted({name for n in self._fleet.present() for name in self.shape.members[n.idx].serves})

    def types_of(self, model: str) -> list[str]:
        """Types of the nodes that serve a model."""
        shape = self.shape
        return list(dict.fromkeys(name for g, (name, _) in enumerate(shape.types) if shape.serves(g, model)))

    def served_by(self, model: str) -> tuple[int, ...]:
        """Positions of the nodes that serve a model."""
        return tuple(j for j, g in enumerate(self.shape.type_idx) if self.shape.serves(g, model))

    # --- classes

    @property
    def class_rows(self) -> dict[ClassKey, int]:
        """Class → its row in every pool's tables."""
        return {known.key: known.idx for known in self.classes.rows}

    def class_of(self, exchange: Exchange) -> RequestClass | None:
        """The class of a request; None = it is the first of its class."""
        facts, endpoint = exchange.facts, exchange.endpoint
        if facts is None or endpoint is None:
            return self.classes.find(self.model_of(exchange), endpoint)
        at = facts.model, endpoint.path
        found = self._class_of.get(at)
        if found is None:
            found = self.classes.find(self.model_of(exchange), endpoint)
            if found is not None and self._known is not None and facts.model in self._known:
                self._class_of[at] = found
        return found

    def model_of(self, exchange: Exchange) -> str:
        """Whose class a request is of: its model's, once a node serves it. Clients cannot invent classes."""
        facts = exchange.facts
        if facts is None or not facts.model:
            return ""
        if self._known is None:
            self._known = set(self.models())
        return facts.model if facts.model in self._known else UNKNOWN

    def add_class(self, model: str, endpoint: Endpoint | None) -> RequestClass:
        """The class of these requests, known or new. `rows` doubles when there is no room for it."""
        known = self.classes.add(model, endpoint)
        if known.idx >= self.rows:
            self.rows *= 2
        return known

    def tokens(self, facts: Facts) -> float:
        """Tokens that a request is expected to use, for its tenant's limit."""
        if not facts.max_tokens:
            return facts.prompt_tokens
        output = self.classes.output_of(facts)
        if output is None:
            return stated_tokens(facts)
        return facts.prompt_tokens + output.predict(facts.max_tokens) * facts.answers

    def cluster(self) -> Cluster:
        """What policies see of all this."""
        return cluster_of(self.shape, list(self.classes.by_key), self.rows, self.estimates)
