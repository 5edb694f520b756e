"""Routes in gateway.yaml: aliases, weighted canaries, fallback models; and relayed paths."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trimtab.gateway.config.types import Model, PolicySpec, UrlPath
from trimtab.validation.base import NonNegative, Spec
from trimtab.validation.names import FieldError, Path, known

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]


class Target(Spec):
    """A model that gets a share of a route's requests."""

    model: Model = Field(description="a model, or another route")
    weight: NonNegative = Field(1.0, description="share of requests, relative to the other targets")


def _as_targets(value: object) -> object:
    if isinstance(value, str):
        return ({"model": value},)
    if isinstance(value, list):
        return [{"model": entry} if isinstance(entry, str) else entry for entry in value]
    return value


Targets = Annotated[
    tuple[Target, ...],
    BeforeValidator(_as_targets, json_schema_input_type=str | tuple[Target | str, ...]),
]


class RouteSpec(Spec):
    """The route of requests for one name."""

    targets: Targets = Field(
        (), description="a model, or a weighted list of models; empty = the model of this name"
    )
    fallback: Model | None = Field(None, description="model to use while no node of the target is ready")
    policy: PolicySpec | None = Field(None, description="policy for requests of this route")
    adapters: tuple[Model, ...] = Field((), description="adapters of this model that clients may request")
    cache: bool = Field(
        False, description="answer equal deterministic requests of one tenant from the result cache"
    )

    @model_validator(mode="after")
    def _some_weight(self) -> RouteSpec:
        models = [target.model for target in self.targets]
        if self.targets and not any(target.weight for target in self.targets):
            raise ValueError("at least one weight above 0 under `targets`")
        if len(set(models)) < len(models):
            raise ValueError("every model once under `targets`")
        return self


@dataclass(frozen=True, slots=True)
class Resolved:
    """A route with all aliases resolved."""

    name: str
    models: tuple[str, ...]
    fracs: tuple[float, ...]  # shares of the models, summing to 1
    fallbacks: tuple[tuple[str, ...], ...]  # per model: its fallbacks; the first ready one is used
    policy: str | None
    adapters: tuple[str, ...]


def resolved(routes: Mapping[str, RouteSpec]) -> dict[str, Resolved]:
    """Every route with aliases resolved to models, and the share of each model."""
    return {name: _resolve(name, route, routes) for name, route in routes.items()}


def _resolve(name: str, route: RouteSpec, routes: Mapping[str, RouteSpec]) -> Resolved:
    shares: dict[str, float] = {}
    passed: dict[str, list[str]] = {}
    for way, frac in _ways(name, 1.0, routes):
        shares[way[-1]] = shares.get(way[-1], 0.0) + frac
        passed.setdefault(way[-1], []).extend(way)
    fallbacks = tuple(_fallbacks(model, passed[model], routes) for model in shares)
    return Resolved(name, tuple(shares), tuple(shares.values()), fallbacks, route.policy, route.adapters)


def _fallbacks(model: str, way: list[str], routes: Mapping[str, RouteSpec]) -> tuple[str, ...]:
    """Fallbacks of the routes on the way to a model, the requested route's first; then their fallbacks."""
    found: dict[str, None] = {}
    names = dict.fromkeys(way)
    while names:
        further: dict[str, None] = {}
        for name in names:
            fallback = routes[name].fallback if name in routes else None
            if fallback is not None:
                there = next(_ways(fallback, 1.0, routes))[0]
                if there[-1] != model and there[-1] not in found:
                    found[there[-1]] = None
                    further |= dict.fromkeys(there)
        names = further
    return tuple(found)


def _ways(name: str, frac: float, routes: Mapping[str, RouteSpec]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The ways from a name to its models, each with its fraction. Targets of weight 0 are left out."""
    targets = routes[name].targets if name in routes else ()
    if not targets:
        yield (name,), frac
        return
    total = sum(target.weight for target in targets)
    for target in targets:
        share = frac * target.weight / total
        if target.model == name:  # in its own list a name means the model
            yield (name,), share
        elif share > 0:
            yield from (((name, *way), part) for way, part in _ways(target.model, share, routes))


def route_field_errors(
    routes: Mapping[str, RouteSpec], models: Collection[str] | None
) -> Iterator[FieldError]:
    """Alias loops, and names that no node serves if the models of all nodes are known."""
    names = None if models is None else {*models, *routes}
    yield from loop_field_errors(routes)
    for name, route in routes.items():
        if route.fallback == name:
            yield FieldError(("routes", name, "fallback"), name, "another model")
        yield from _name_field_errors(name, route, names, models)


def loop_field_errors(routes: Mapping[str, RouteSpec]) -> Iterator[FieldError]:
    """Alias loops."""
    for name in routes:
        if loop := _loop(name, routes):
            yield FieldError(("routes", name, "targets"), " → ".join(loop), "no loop of aliases")


def _name_field_errors(
    name: str, route: RouteSpec, names: Collection[str] | None, models: Collection[str] | None
) -> Iterator[FieldError]:
    if names is None or models is None:
        return
    path: Path = ("routes", name)
    for k, target in enumerate(route.targets):
        there = models if target.model == name else names  # in its own list a name means the model
        yield from known((*path, "targets", k, "model"), target.model, there, "model")
    if not route.targets:
        yield from known(path, name, models, "model")
    if route.fallback is not None:
        yield from known((*path, "fallback"), route.fallback, names, "model")


def _loop(start: str, routes: Mapping[str, RouteSpec]) -> list[str]:
    """The path from a name back to itself through other routes, if there is one."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop()
        for target in routes[way[-1]].targets:
            if target.model == start and len(way) > 1:
                return [*way, start]
            if target.model in routes and target.model not in seen:
                seen.add(target.model)
                ways.append([*way, target.model])
    return []


def _some(methods: tuple[Method, ...]) -> tuple[Method, ...]:
    if not methods:
        raise ValueError("at least one method")
    return methods


Methods = Annotated[tuple[Method, ...], AfterValidator(_some)]


class RelayPath(Spec):
    """A path that the gateway forwards to a node without reading the body."""

    path: UrlPath = Field(description="such as /v1/score")
    methods: Methods = Field(("POST",), description="methods that clients may use")
