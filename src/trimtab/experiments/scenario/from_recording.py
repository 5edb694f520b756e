"""Turns a recording of the gateway into a scenario: nodes, classes, options and outages."""

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
    do so again, and deadlines cancel, as in the gateway. Not replayed: changes of a capacity, tokens in
    flight, which prefixes a node had cached, fair queueing between tenants.

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
        "workload": {"trace": {"file": path, "format": "gateway"}},
        "cluster": _cluster(recording, types),
        "classes": _classes(recording, types),
        "faults": [outage.spec() for outage in _outages(recording, rows)],
        "serving": _serving(recording.head["options"]),
    }
    return checked(lambda: Scenario.model_validate(data), Scenario, str(path), ScenarioError)


def node_name(name: str) -> str:
    """Name of a recording's node in its scenario, which numbers the nodes of a group."""
    return f"{name}-1"


def _types(recording: Recording) -> dict[int, str]:
    """Node position → type: of nodes of equal type that serve the same classes."""
    found: dict[tuple[str, frozenset[str]], str] = {}
    types: dict[int, str] = {}
    for node in recording.nodes:
        served = frozenset(c["name"] for c in recording.classes if _serves(c, node))
        same = sum(kind == node["type"] for kind, _ in found)
        name = node["type"] if same == 0 else f"{node['type']} ({same + 1})"
        types[int(node["idx"])] = found.setdefault((node["type"], served), name)
    return types


def _serves(service: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    by = service.get("served_by")
    return node["type"] in service["fixed_s"] and (by is None or node["idx"] in by)


def _cluster(recording: Recording, types: Mapping[int, str]) -> dict[str, Any]:
    return {
        "types": {name: {"memory_gib": 1.0} for name in dict.fromkeys(types.values())},
        "nodes": [
            {"name": n["name"], "type": types[n["idx"]], "slots": n["slots"], "queue_max": 0}
            for n in recording.nodes
        ],
    }


def _classes(recording: Recording, types: Mapping[int, str]) -> dict[str, Any]:
    return {
        c["name"]: {"unit": c["unit"], **_service(c, recording.nodes, types)}
        for c in recording.classes
        if any(_serves(c, node) for node in recording.nodes)
    }


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
    return {**known, "cancel": "always"}


@dataclass(frozen=True, slots=True)
class _Outage:
    node: str
    start_s: float
    end_s: float

    def spec(self) -> dict[str, Any]:
        """The outage as a fault of the scenario."""
        return {
            "node": node_name(self.node),
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
