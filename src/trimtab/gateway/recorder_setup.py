"""Connects the recorder to the fleet and the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trimtab.gateway.decide.decision_log import Decision
from trimtab.gateway.decide.dispatch_rules import LOOKAHEAD, MAX_RETRIES
from trimtab.gateway.decide.dispatcher import PolicyDispatcher
from trimtab.gateway.decide.registry import Registry
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.record.recorded_rows import ClassEstimate, Snapshot
from trimtab.gateway.record.recorder import Recorder, RecordSettings


def new_recorder(
    settings: RecordSettings | None,
    fleet: Fleet,
    dispatcher: PolicyDispatcher,
    shadow: Callable[[], str],
) -> Recorder | None:
    """The recorder; None = no recording. `shadow()` names the shadow policy; "" = none."""
    if settings is None:
        return None

    def candidates(decision: Any) -> tuple[int, ...]:
        if not isinstance(decision, Decision):
            return ()
        if decision.nodes is dispatcher.registry.names:
            return decision.node_idx
        found = (fleet.find(decision.nodes[j]) for j in decision.node_idx)
        return tuple(node.idx for node in found if node is not None)

    return Recorder(
        settings,
        lambda: _snapshot(fleet, dispatcher, shadow()),
        fleet.loop.time,
        candidates_of=candidates,
        adapter_of=dispatcher.registry.adapter_of,
    )


def _snapshot(fleet: Fleet, dispatcher: PolicyDispatcher, shadow: str) -> Snapshot:
    rules = dispatcher.rules
    entries = [e for pool in dispatcher.pools.values() for e in pool.entries.values()]
    return Snapshot(
        policy=rules.default.spec,
        nodes=fleet.nodes,
        classes=_class_estimates(dispatcher.registry),
        seed=rules.seed,
        shadow=shadow,
        options={
            "held_max": rules.held_max,
            "lookahead": LOOKAHEAD,
            "lane_per_class": True,
            "max_retries": MAX_RETRIES,
            "dispatchers": 1,
        },
        in_flight=[e.exchange for e in entries if e.node_idx >= 0],
        queued=[e.exchange for e in entries if e.node_idx < 0],
    )


def _class_estimates(registry: Registry) -> list[ClassEstimate]:
    rows = []
    for key in registry.class_rows:
        by_type = {name: registry.estimates.of(key, name) for name in registry.types_of(key[0])}
        rows.append(
            ClassEstimate(
                f"{key[0]}/{key[1].value}",
                {name: fixed_s for name, (fixed_s, _) in by_type.items()},
                {name: unit_s for name, (_, unit_s) in by_type.items()},
                served_by=registry.served_by(key[0]),
            )
        )
    return rows
