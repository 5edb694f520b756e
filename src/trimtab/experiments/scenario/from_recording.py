"""Turns a recording of the gateway into a scenario: nodes, classes, options, signals and outages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.spec.scenario import Scenario
from trimtab.experiments.scenario.spec.serving import ServingSpec
from trimtab.traces.gateway_recording import Recording, open_recording, read_requests
from trimtab.validation.problems import checked

LEAST_SERVICE_S: Final = 1e-9  # a class that took no time yet
AFTERWARDS_S: Final = 1.0  # after the last end, when all nodes are up again: what is held then is served late
_STOPS: Final = ("down", "drained", "removed")
_NOT_SERVING: Final = ("down", "ejected", "draining")


def scenario_of(path: Path) -> Scenario:
    """The scenario of a recording, for runs with any policy.

    Nodes of one type that do not serve the same classes become different types. A drained node is down from
    the end of its last request on: a simulated node that is down loses its requests. Clients that left
    do so again, and deadlines cancel, as in the gateway. What others use of nodes is `background` that slows
    nothing: recorded service times are slowed already. Capacities, demands, round trips, links, prices and
    weights of tenants are the last that were recorded. Bodies of 1 MiB or more move over the links again.
    Not replayed: changes of a capacity, tokens in flight, requests of others, which prefixes a node had
    cached, costs of fair queueing between tenants.

    Raises:
        TraceError: the recording cannot be read.
        ScenarioError: it holds no classes or no nodes.
    """
    recording = open_recording(path)
    if not (recording.nodes and recording.classes):
        expected = "one of a minute at least, or of a gateway that has ended: estimates are written then"
        raise ScenarioError("the recording names no nodes or no classes", file=str(path), expected=expected)
    rows, _ = read_requests(recording)
    types = _types(recording)
    data = {
        "name": recording.files[0].name.split("-w")[0],
        "description": f"recorded from {recording.head['started_utc']} under {recording.head['policy']}",
        "workload": {
            "trace": {"file": path, "format": "gateway"},
            "tenant_weights": _tenant_weights(recording, rows),
        },
        "cluster": _cluster(recording, types),
        "classes": _classes(recording, types),
        "faults": [outage.spec() for outage in _outages(recording, rows)],
        "background": list(_background(recording, types)),
        "serving": _serving(recording.head["options"]),
    }
    return checked(lambda: Scenario.model_validate(data), Scenario, str(path), ScenarioError)


def _types(recording: Recording) -> dict[int, str]:
    """Node position → type: of nodes of equal type, price and resources that serve the same classes."""
    found: dict[tuple[Any, ...], str] = {}
    types: dict[int, str] = {}
    for node in recording.nodes:
        served = frozenset(c["name"] for c in recording.classes if _serves(c, node))
        same = sum(key[0] == node["type"] for key in found)
        name = node["type"] if same == 0 else f"{node['type']} ({same + 1})"
        j = int(node["idx"])
        resources = tuple(_resources(recording, j).items())
        types[j] = found.setdefault((node["type"], served, resources, _price(recording, j)), name)
    return types


def _serves(service: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    by = service.get("served_by")
    return node["type"] in service["fixed_s"] and (by is None or node["idx"] in by)


def _cluster(recording: Recording, types: Mapping[int, str]) -> dict[str, Any]:
    signals = recording.signals
    zones, zone_of, weight = (signals.get(name, []) for name in ("zones", "zone", "weight"))
    nic = signals.get("nic_gib_per_s", [])
    first = {types[j]: j for j in sorted(types, reverse=True)}
    data = {
        "types": {
            name: {
                "memory_gib": 1.0,
                "usd_per_hour": _price(recording, first[name]),
                "resources": _resources(recording, first[name]),
            }
            for name in dict.fromkeys(types.values())
        },
        "nodes": [
            {"name": n["name"], "type": types[n["idx"]], "slots": n["slots"], "queue_max": 0}
            | ({"zone": zone_of[n["idx"]], "weight": weight[n["idx"]]} if n["idx"] < len(zone_of) else {})
            | ({"nic_gib_per_s": nic[n["idx"]]} if n["idx"] < len(nic) else {})
            for n in recording.nodes
        ],
    }
    if zones:  # requests come from the first, the gateway's own
        pairs = zip(zones, signals["rtt_s"], strict=True)
        links = signals.get("zone_gib_per_s", [None] * len(zones))
        of_zone = zip(zones, links, strict=True)
        data["zones"] = {zone: {"ingress_gib_per_s": gib_per_s} for zone, gib_per_s in of_zone}
        data["rtt_s"] = {zone: dict(zip(zones, row, strict=True)) for zone, row in pairs}
    return data


def _price(recording: Recording, node_idx: int) -> float:
    prices = recording.signals.get("usd_per_hour", [])
    return float(prices[node_idx]) if node_idx < len(prices) else 0.0


def _resources(recording: Recording, node_idx: int) -> dict[str, float]:
    """Resource → what the node has, of those that it has."""
    capacity = recording.signals.get("capacity", [])
    row = capacity[node_idx] if node_idx < len(capacity) else []
    names = recording.signals.get("resources", [])
    return {name: float(has) for name, has in zip(names, row, strict=False) if has}


def _tenant_weights(recording: Recording, rows: pl.DataFrame) -> dict[str, float]:
    """Tenant → its share; only of tenants that asked for anything."""
    weights = recording.signals.get("tenant_weights", {})
    asked = set(rows["tenant"].drop_nulls()) if "tenant" in rows.columns else set()
    return {name: weight for name, weight in weights.items() if name in asked}


def _background(recording: Recording, types: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """The use of nodes by others, from each change of it to the next."""
    names = {int(node["idx"]): str(node["name"]) for node in recording.nodes}
    level: dict[tuple[int, str], tuple[float, float]] = {}  # (node, resource) → since when, how much

    def until(at_s: float | None, key: tuple[int, str]) -> Iterator[dict[str, Any]]:
        since_s, frac = level.get(key, (0.0, 0.0))
        if frac > 0.0 and (at_s is None or at_s > since_s):
            yield {
                "node": names[key[0]],
                "resource": key[1],
                "level_frac": frac,
                "at_s": since_s,
                "duration_s": None if at_s is None else at_s - since_s,
            }

    for at_s, j, resource, frac in recording.uses:
        if j in types and resource in _resources(recording, j):
            yield from until(at_s, (j, resource))
            level[j, resource] = at_s, frac
    for key in level:
        yield from until(None, key)


def _classes(recording: Recording, types: Mapping[int, str]) -> dict[str, Any]:
    return {
        c["name"]: {
            "unit": c["unit"],
            "holding_cost": recording.signals.get("holding_cost", {}).get(c["name"], 1.0),
            "demand": _demand(recording, c["name"]),
            **_service(c, recording.nodes, types),
        }
        for c in recording.classes
        if any(_serves(c, node) for node in recording.nodes)
    }


def _demand(recording: Recording, name: str) -> dict[str, float]:
    """Resource → what a request of the class takes, of those that it takes."""
    row = recording.signals.get("demand", {}).get(name, [])
    names = recording.signals.get("resources", [])
    return {resource: takes for resource, takes in zip(names, row, strict=False) if takes}


def _service(
    service: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], types: Mapping[int, str]
) -> dict[str, Any]:
    fixed_s, unit_s = {}, {}
    for node in nodes:
        if _serves(service, node):
            name, kind = types[node["idx"]], node["type"]
            unit_s[name] = max(0.0, service["unit_s"].get(kind, 0.0))
            fixed_s[name] = max(service["fixed_s"][kind], 0.0 if unit_s[name] > 0.0 else LEAST_SERVICE_S)
    return {"fixed_s": fixed_s, "unit_s": unit_s}


def _serving(options: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in options.items() if name in ServingSpec.model_fields}
    return {"cancel": "always", "resources": "reported", **known}


@dataclass(frozen=True, slots=True)
class _Outage:
    node: str
    start_s: float
    end_s: float

    def spec(self) -> dict[str, Any]:
        """The outage as a fault of the scenario."""
        return {
            "node": self.node,
            "at_s": self.start_s,
            "duration_s": max(self.end_s - self.start_s, LEAST_SERVICE_S),
        }


def _outages(recording: Recording, rows: pl.DataFrame) -> Iterator[_Outage]:
    """Periods in which each node got no requests."""
    last_s = float(rows.select(pl.max_horizontal(pl.col("finish_s").max(), 0.0)).item()) + AFTERWARDS_S
    for node in recording.nodes:
        down_s: float | None = None if _is_up_first(recording, node) else 0.0
        for at_s, what in _events(recording, node):
            if what in _STOPS and down_s is None:
                down_s = at_s if what == "down" else _last_end_s(rows, node["name"], at_s)
            elif what in ("up", "added") and down_s is not None:
                if at_s > down_s:
                    yield _Outage(node["name"], down_s, at_s)
                down_s = None
        if down_s is not None and down_s < last_s:
            yield _Outage(node["name"], down_s, last_s)


def _is_up_first(recording: Recording, node: Mapping[str, Any]) -> bool:
    first = [n for n in recording.head["nodes"] if n["idx"] == node["idx"]]
    return bool(first) and first[0]["health"] not in _NOT_SERVING


def _events(recording: Recording, node: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    for note in recording.notes:
        if note["record"] == "node" and note["node"]["idx"] == node["idx"]:
            yield max(0.0, float(note["at_s"]) - recording.start_s), note["what"]


def _last_end_s(rows: pl.DataFrame, name: str, at_s: float) -> float:
    """Time at which a node ends its last request, if it gets no new ones from `at_s` on."""
    begun = pl.col("finish_s") - pl.col("recorded_s") <= at_s
    ends = rows.filter((pl.col("node") == name) & begun)["finish_s"]
    latest = ends.max() if ends.len() else None
    return max(at_s, float(str(latest))) if latest is not None else at_s
