"""The classes of requests, a model and a kind each: position in the tables, expected output, node types."""

from __future__ import annotations

from trimtab.gateway.api.units import OutputEstimate
from trimtab.gateway.decide.estimates import ClassKey
from trimtab.gateway.decide.shape import Shape
from trimtab.gateway.model import Endpoint, Facts, Kind


class RequestClass:
    """One class. `idx` is its row in every pool's tables."""

    __slots__ = ("_types", "idx", "key", "kind", "output")

    def __init__(self, key: ClassKey, idx: int) -> None:
        self.key, self.kind, self.idx = key, key[1], idx
        self.output = OutputEstimate()
        self._types: dict[str, list[int]] = {}

    def types(self, shape: Shape, name: str) -> list[int]:
        """Columns of the tables: the types of this name whose nodes serve the model."""
        found = self._types.get(name)
        if found is None:
            model = self.key[0]
            found = [g for g, (n, _) in enumerate(shape.types) if n == name and shape.serves(g, model)]
            self._types[name] = found
        return found

    def forget_types(self) -> None:
        """The cluster has another shape."""
        self._types.clear()


class Classes:
    """All classes that were seen, in the order in which they showed up."""

    def __init__(self) -> None:
        self.by_key: dict[ClassKey, RequestClass] = {}
        self.rows: list[RequestClass] = []
        self._by_path: dict[tuple[str, str], RequestClass] = {}  # strings keep their hash, enums do not

    def find(self, model: str, endpoint: Endpoint | None) -> RequestClass | None:
        """The class of a request; None = it is the first of its class."""
        return self._by_path.get((model, endpoint.path if endpoint is not None else ""))

    def add(self, model: str, endpoint: Endpoint | None) -> RequestClass:
        """The class of a request that `find` did not know. It may be that of another path."""
        key = (model, endpoint.kind if endpoint is not None else Kind.RELAY)
        known = self.by_key.get(key)
        if known is None:
            known = self.by_key[key] = RequestClass(key, len(self.rows))
            self.rows.append(known)
        self._by_path[model, endpoint.path if endpoint is not None else ""] = known
        return known

    def output_of(self, facts: Facts) -> OutputEstimate | None:
        """What chat requests for a model put out, if any was seen."""
        found = self.by_key.get((facts.model, Kind.CHAT))
        return None if found is None else found.output
