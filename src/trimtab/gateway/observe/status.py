"""The parts of the dashboard's status that are derived from the store and the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from types import MappingProxyType
from typing import Any, TypedDict

from trimtab.gateway.decide.registry import SignalFigures
from trimtab.gateway.model import Node
from trimtab.gateway.observe import summaries
from trimtab.gateway.observe.metric_store import MetricStore, explained


class NodeFigures(TypedDict):
    """A node as the dashboard shows it."""

    name: str
    url: str
    models: list[str]
    health: str  # up, suspect, down, ejected, draining
    reason: str
    withheld_from: dict[str, str]  # tenants that do not get it, with the reason
    in_flight: int
    capacity: int
    queued: int | None  # waiting requests that the backend reports
    utilisation_frac: float | None  # slots in use, over the last minute
    busy_frac: float | None  # any in flight, over the last minute
    served: int
    failed: int
    silence_s: float | None  # since its last byte, while something is in flight
    reported: dict[str, float]
    signals: SignalFigures | None  # what policies know of it beside its queue


def observed(store: MetricStore) -> dict[str, Any]:
    """Of `admin.control.Status`: traffic, history, balance, formulas, prediction, tenants and counts."""
    balance = summaries.balance(store)
    return {
        "traffic": summaries.traffic(store),
        "history": summaries.history(store),
        "balance": {name: summaries.plain(value) for name, value in balance.items()},
        "formulas": {name: explained(name) for name, value in balance.items() if not isnan(value)},
        "prediction": summaries.prediction(store),
        "tenants": summaries.tenants(store),
        "counts": {
            "hedges": int(store.row("trimtab_hedges_total")[0]),
            "retries": _by_label(store, "trimtab_retries_total"),
            "lost": _by_label(store, "trimtab_attempts_lost_total"),
            "refusals": _by_label(store, "trimtab_refusals_total"),
        },
    }


def node_figures(
    store: MetricStore,
    nodes: Sequence[Node],
    now_s: float,
    signals: Mapping[str, SignalFigures] = MappingProxyType({}),
    withheld: Mapping[str, dict[str, str]] = MappingProxyType({}),
) -> list[NodeFigures]:
    """The figures of each node. `signals`, and tenants that it is `withheld` from: by the node's name."""
    use = summaries.node_use(store)
    return [
        _node(store, node, use.get(node.name), now_s, signals.get(node.name), withheld.get(node.name, {}))
        for node in nodes
    ]


def _node(
    store: MetricStore,
    node: Node,
    use: summaries.NodeUse | None,
    now_s: float,
    signals: SignalFigures | None,
    withheld_from: dict[str, str],
) -> NodeFigures:
    def counted(family: str, own: int) -> int:
        row = store.tables.get(family, {}).get((node.name,))
        return own if row is None else int(row[0])

    in_flight = counted("trimtab_in_flight", node.in_flight)
    return {
        "name": node.name,
        "url": node.url,
        "models": list(node.models),
        "health": node.health.name.lower(),
        "reason": node.reason,
        "withheld_from": withheld_from,
        "in_flight": in_flight,
        "capacity": node.max_requests,
        "queued": int(node.reported["waiting"]) if "waiting" in node.reported else None,
        "utilisation_frac": None if use is None else summaries.plain(use.utilisation_frac),
        "busy_frac": None if use is None else summaries.plain(use.busy_frac),
        "served": counted("trimtab_node_served_total", node.served),
        "failed": counted("trimtab_node_failed_total", node.failed),
        "silence_s": max(0.0, now_s - node.last_byte_s) if in_flight and node.last_byte_s else None,
        "reported": dict(node.reported),
        "signals": signals,
    }


def _by_label(store: MetricStore, family: str) -> dict[str, int]:
    return {labels[0]: int(row[0]) for labels, row in store.tables.get(family, {}).items()}
