"""`GET /v1/models`: the models of all nodes, with adapters and aliases, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from trimtab.gateway.config.routes import Resolved
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.model import Refusal
from trimtab.gateway.nodes.fleet import Fleet

JSON = (("content-type", "application/json"),)


def model_rows(fleet: Fleet, routes: Mapping[str, Resolved], created: int) -> dict[str, dict[str, Any]]:
    """Name → row. An adapter has its model as `parent`, an alias its target as `root`."""
    rows: dict[str, dict[str, Any]] = {}
    for node in fleet.present():
        for name in node.models:
            rows.setdefault(name, _row(name, created))
        for name, base in fleet.state(node).adapters.items():
            rows.setdefault(name, {**_row(name, created), "root": base or name, "parent": base or None})
    for route in routes.values():
        if route.models and route.name not in rows:
            rows[route.name] = {**_row(route.name, created), "root": route.models[0]}
    return dict(sorted(rows.items()))


def _row(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "trimtab"}


def answer(rows: Mapping[str, dict[str, Any]], name: str = "") -> LocalAnswer | Refusal:
    """The whole list, or one model."""
    if not name:
        return LocalAnswer(200, JSON, orjson.dumps({"object": "list", "data": list(rows.values())}))
    if name not in rows:
        return Refusal(404, "model_not_found", f"The model `{name[:200]}` does not exist.", param="model")
    return LocalAnswer(200, JSON, orjson.dumps(rows[name]))
